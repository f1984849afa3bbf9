"""Numbers that a network reads from its tensors and computes with: compiled networks beside PyTorch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from relax_kit import Computed, compute, prepare
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.sources import open_network
from torch import Tensor
from torch.nn import functional as F

Equal = Callable[..., Any]


def test_arithmetic_on_numbers_that_are_read(equal: Equal) -> None:
    def scaled(x: Tensor) -> Any:
        count, mean = (x > 0).sum().item(), x.mean().item()
        centred = x * (count - 9) / (count + 1) + (30 - count) * x
        whole = x * (count // 2 % 3) + (-count)
        bounded = x / torch.sym_max(mean, 1e-3) + x * torch.sym_min(count, 5)
        powers = x * count**2 + x * torch.sym_sqrt(abs(mean) + 1), x * torch.sym_float(count)
        return centred, whole, bounded, *powers, x * x.flatten()[:1].item()

    equal(scaled, torch.randn(4, 6))


def test_operators_that_take_numbers_take_those_that_are_read(equal: Equal) -> None:
    def of_numbers(x: Tensor) -> Any:
        count, mean = (x > 0).sum().item(), x.mean().item()
        made = torch.full((3,), count * 2), torch.full_like(x, mean), torch.tensor(mean)
        bounded = x.clamp(min=mean), x.clamp(-abs(mean), 1), x.clamp(0, abs(mean) + 1)
        chosen = torch.where(torch.arange(6) < count, x, -x), torch.where(x > 0, mean, 0.0), x.masked_fill(x > 1, mean)
        return *made, *bounded, *chosen, x.abs() ** (mean + 1), x == count, x - x.max().item()

    equal(of_numbers, torch.randn(4, 6))


def test_integers_become_floats_where_they_do_in_python(equal: Equal) -> None:
    def mixed(x: Tensor) -> Any:
        count, mean = (x > 0).sum().item(), x.float().mean().item()
        return x * count, x * mean, x / count, x // count, x.double() * (mean + 1), x[:, count % 4]

    equal(mixed, torch.randint(-9, 9, (4, 6)))


def test_a_count_of_0_as_a_divisor_ends_no_process() -> None:
    """As a CPU does that divides whole numbers by 0; PyTorch raises an error."""

    def divided(x: Tensor) -> Any:
        count = (x > 0).sum().item()
        return x * (100 // count), x * (100 % count)

    x = torch.randn(4, 6).abs()
    mod = prepare(open_network(Computed(divided), (x,)).imported())
    assert [one.tolist() for one in compute(mod, x)] == [one.tolist() for one in divided(x)]
    assert len(compute(mod, -x)) == 2


@pytest.mark.parametrize(
    ("network", "problem", "remedy"),
    [
        (lambda x, n: x.add(x, alpha=n), "aten.add.Tensor, which takes a number of item()", "without item()"),
        (F.leaky_relu, "aten.leaky_relu.default, which takes a number", "without item()"),
        (lambda x, n: x.roll(n, 1), "data-dependent", "compute by tensors"),
        (lambda x, n: x[:, : n - 1], "whose size depends on the values", "pad to the largest size"),
    ],
)
def test_other_uses_of_numbers_are_refused_with_a_remedy(
    network_of: Any, network: Any, problem: str, remedy: str
) -> None:
    module = network_of(lambda x: network(x, (x > 0).sum().item()))
    with pytest.raises(NetworkImportError) as refused:
        open_network(module, (torch.randn(4, 6),)).imported()
    assert problem in refused.value.message
    assert remedy in refused.value.remedy

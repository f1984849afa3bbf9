"""What a quantised network computes of a code alone, and rounds again, is looked up."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from quantised_kit import SIGNED, UNSIGNED, codes
from relax_kit import Computed, compute, relax_of
from tchub.hub.networks.transform.prepare import for_inference, lower
from torch.nn import functional

SCALE, OTHER = 0.05, 0.02


def quantised(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int] = UNSIGNED) -> torch.Tensor:
    """Round a tensor to codes, and return what they stand for."""
    return (codes(x, scale, zero, limits) - zero) * scale


def activation(function: Callable[[torch.Tensor], torch.Tensor], limits: tuple[int, int] = UNSIGNED) -> Any:
    zero = sum(limits) // 2 + 9
    return lambda x: quantised(function(quantised(x, SCALE, zero, limits)), OTHER, zero - 20, limits)


def silu_in_steps(x: torch.Tensor) -> torch.Tensor:
    """Multiply codes by those of their sigmoid, as tools that quantise each operator write it."""
    return x * quantised(torch.sigmoid(x), 1 / 255, 0)


def looks(module: Any, *inputs: torch.Tensor, tables: bool = True) -> tuple[int, Any]:
    """Return how many tables a network has, and the network as fused functions."""
    graph = for_inference(relax_of(module, *inputs), tables=tables)
    return graph.script().count("cls.code_table"), lower(graph)


# All codes and what is cut off, in an order that no vector keeps.
X = torch.linspace(-9, 9, 720).reshape(16, 45).T.contiguous()


@pytest.mark.parametrize(
    "function",
    [
        functional.gelu,
        functional.silu,
        lambda x: functional.gelu(x, approximate="tanh"),
        torch.tanh,
        silu_in_steps,
        lambda x: 1 / (x.abs() + 0.3),
    ],
    ids=["gelu", "silu", "gelu by tanh", "tanh", "silu in steps", "a quotient"],
)
@pytest.mark.parametrize("limits", [UNSIGNED, SIGNED], ids=["uint8", "int8"])
def test_an_activation_is_one_table(function: Any, limits: tuple[int, int]) -> None:
    network = Computed(activation(function, limits))
    count, mod = looks(network, X)
    assert count == 1
    torch.testing.assert_close(torch.from_numpy(compute(mod, X)[0]), network(X), rtol=0, atol=1e-6)
    assert looks(network, X, tables=False)[0] == 0


def test_a_table_is_part_of_the_kernel_before_it() -> None:
    network = Computed(lambda x: activation(functional.gelu)(2 * x.transpose(0, 1).matmul(x)))
    names = {var.name_hint for var in looks(network, X)[1].get_global_vars()}
    assert any("matmul" in name and "code_table" in name for name in names), names


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.relu, "takes no longer than a look"),
        (lambda x: torch.erf(x) + torch.arange(16.0), "adds a row"),
        (lambda x: functional.softmax(x, -1), "adds up other codes"),
        (lambda x: torch.erf(x) * quantised(torch.cos(x), OTHER, 3).flip(0), "takes them in another order"),
    ],
)
def test_what_is_no_function_of_a_code_stays(function: Any, reason: str) -> None:
    network = Computed(activation(function))
    count, mod = looks(network, X)
    assert count == 0, reason
    torch.testing.assert_close(torch.from_numpy(compute(mod, X)[0]), network(X), rtol=0, atol=OTHER * 1.01)


def test_what_is_no_number_is_cut_off_as_without_a_table() -> None:
    network = Computed(lambda x: quantised(torch.log(quantised(x, SCALE, 120)), OTHER, 0, SIGNED))
    (_, looked_up), (_, computed) = (looks(network, X, tables=tables) for tables in (True, False))
    assert compute(looked_up, X)[0].tolist() == compute(computed, X)[0].tolist()


def test_codes_that_are_read_elsewhere_too_are_kept() -> None:
    """Numbers of more than 8 bits have no table."""

    def both(x: torch.Tensor) -> torch.Tensor:
        given = quantised(x, SCALE, 100)
        return quantised(torch.erf(given), OTHER, 90) + given

    def wide(x: torch.Tensor) -> torch.Tensor:
        return quantised(torch.erf(quantised(x, 1e-3, 0, (-32768, 32767))), 1e-3, 0, (-32768, 32767))

    for function, expected in ((both, 1), (wide, 0)):
        count, mod = looks(Computed(function), X)
        assert count == expected
        torch.testing.assert_close(torch.from_numpy(compute(mod, X)[0]), function(X), rtol=0, atol=1e-3)

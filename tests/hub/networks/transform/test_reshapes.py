"""What only moves numbers becomes part of the kernels around it: reshapes, permutations, and parts of a tensor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tvm import relax

Equal = Callable[..., Any]
X = torch.randn(1, 10, 24, generator=torch.Generator().manual_seed(0))


def kernels(mod: Any) -> list[str]:
    """The functions that a network calls, by the operators that they consist of; a reshape alone costs nothing."""
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    names = [call.args[0].name_hint for call in calls if isinstance(call, relax.Call) and len(call.args) > 1]
    plain = ["".join(c for c in name if not c.isdigit()).removeprefix("fused_") for name in names]
    return [name for name in plain if name != "reshape"]


def unbound(linear: nn.Module, x: Tensor) -> Tensor:
    q, k, v = linear(x).reshape(1, 10, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 10, 24)


def split(linear: nn.Module, x: Tensor) -> Tensor:
    heads = linear(x).reshape(1, 10, 3, 24).transpose(1, 2).split([8, 8, 8], -1)
    return F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(1, 10, 24)


def packed(attention: nn.Module, x: Tensor) -> Tensor:
    return attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize(
    ("network", "part"),
    [(unbound, nn.Linear(24, 72)), (split, nn.Linear(24, 72)), (packed, nn.MultiheadAttention(24, 3))],
    ids=["unbound", "split", "packed"],
)
def test_query_key_and_value_are_copied_once_each(equal: Equal, network: Any, part: nn.Module) -> None:
    names = kernels(equal(network, X, parts=(part,)))
    first, second = [number for number, name in enumerate(names) if name.startswith("matmul")][:2]
    assert [name.startswith("strided_slice") for name in names[first + 1 : second]] == [True] * 3


def test_parts_of_an_image_are_joined_by_one_kernel(equal: Equal) -> None:
    def stage(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
        one, other = first(x).chunk(2, 1)
        return torch.cat([one, other, second(other)], 1)

    mod = equal(stage, torch.randn(1, 4, 6, 6), parts=(nn.Conv2d(4, 8, 3), nn.Conv2d(4, 4, 3, padding=1)))
    assert kernels(mod)[-1] == "strided_slice_concatenate_transpose"


def test_slices_of_tensors_that_are_permuted_and_squeezed(equal: Equal) -> None:
    def slices(x: Tensor) -> Any:
        turned = x.permute(3, 0, 2, 1)
        rows = x[:, 0], x[0, 0, 0], x[..., -1], turned[0], turned[1:4:2, :, 1:], x.reshape(-1)[3]
        chosen = (
            x.index_select(2, torch.arange(1, 3)),
            x.index_select(2, torch.tensor([1, 3])),
            x[:, :, [[0, 1], [2, 3]]],
        )
        return *rows, *chosen, *x.split([1, 2], 1), x.transpose(-1, 0).squeeze(-1)[1:3, ..., 1:], *turned.unbind(2)

    assert "take" in kernels(equal(slices, torch.randn(1, 3, 4, 5)))


def test_a_residual_is_added_in_the_kernel_of_the_product_beside_it(equal: Equal) -> None:
    """Whatever shape the tensor that it is had before, as the patches of MobileViT."""

    def residual(linear: nn.Module, x: Tensor) -> Tensor:
        x = x.reshape(2, 24, 5).transpose(1, 2)
        return x.unsqueeze(0) + linear(x)

    mod = equal(residual, torch.randn(2, 120), parts=(nn.Linear(24, 24),))
    assert kernels(mod)[-1] == "matmul_add_add"


def test_squares_are_computed_by_the_sum_that_reads_them(equal: Equal) -> None:
    """As normalised queries and keys of Swin Transformers."""
    mod = equal(lambda linear, x: F.normalize(linear(x).transpose(0, 1), dim=-1), X, parts=(nn.Linear(24, 24),))
    assert kernels(mod)[1] == "multiply_sum"


@pytest.mark.parametrize(
    ("batch", "mask"),
    [(1, (1, 1, 8, 16)), (1, (3, 8, 16)), (2, (2, 1, 1, 16)), (2, (2, 3, 8, 1)), (2, (8, 16))],
    ids=["of queries and keys", "of heads", "of each text's keys", "of each head's queries", "without a batch"],
)
def test_a_mask_joins_the_product_of_queries_and_keys(equal: Equal, batch: int, mask: tuple[int, ...]) -> None:
    """Whose batch and heads are one axis; a mask of a batch's texts is copied for their heads, not for queries."""

    def attention(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        return (query @ key.mT + mask).softmax(-1)

    inputs = torch.randn(batch, 3, 8, 4), torch.randn(batch, 3, 16, 4), torch.randn(mask)
    assert "matmul_add" in kernels(equal(attention, *inputs))

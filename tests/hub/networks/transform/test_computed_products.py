"""Products of quantised data by quantised data, as attention's are, in 8 bits and what stands around them."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from quantised_kit import INSTRUCTIONS, SIGNED, UNSIGNED, check_programs, codes, lowered, prepared
from relax_kit import Computed, calls, compute, name_of, relax_of
from tchub.hub.networks.transform.fused_attention import attentions
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.tile_instructions import TILES, VECTORS
from tile_kit import XEON, compiled, tile_tasks
from torch import nn
from torch.nn import functional

Limits = tuple[int, int]
OF_BYTES = {"float32": (), "tiles": TILES, "vectors": VECTORS[16], "Arm's vectors": VECTORS[4]}


class Product(nn.Module):
    """A product of quantised data by quantised data, which is quantised, too.

    Args:
        zeros: points of both factors; limits: of their numbers.
        axes: how those of both are permuted once they are quantised; None: not at all.
    """

    def __init__(
        self, zeros: tuple[int, int], limits: tuple[Limits, Limits], axes: tuple[list[int], list[int]] | None = None
    ) -> None:
        super().__init__()
        self.zeros, self.limits, self.axes = zeros, limits, axes

    def factors(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the whole numbers that are multiplied."""
        pairs = zip(given, self.zeros, self.limits, strict=True)
        return tuple(codes(x, 0.05, zero, limits) - zero for x, zero, limits in pairs)

    def permuted(self, *pair: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return pair if self.axes is None else tuple(x.permute(axes) for x, axes in zip(pair, self.axes, strict=True))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left, right = self.permuted(*(one * 0.05 for one in self.factors(x, y)))
        return (codes(left @ right, 0.25, 99) - 99) * 0.25

    def exact(self, x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
        """Return the result with sums of whole numbers, which are scaled once."""
        left, right = self.permuted(*(one.double() for one in self.factors(x, y)))
        factor = np.float32(0.05) * np.float32(0.05) / np.float32(0.25)
        rounded = ((left @ right).float() * torch.tensor(factor)).round() + 99
        return ((rounded.clamp(*UNSIGNED) - 99) * 0.25).numpy()


BOTH, MIXED = (UNSIGNED, UNSIGNED), (SIGNED, UNSIGNED)
CASES: dict[str, tuple[Product, tuple[int, ...], tuple[int, ...]]] = {
    "heads of whole tiles": (Product((7, 120), BOTH), (2, 32, 64), (2, 64, 32)),
    "rows, terms and columns of no tile": (Product((0, 131), BOTH), (3, 37, 101), (3, 101, 45)),
    "two batches": (Product((100, 128), BOTH), (2, 2, 40, 64), (2, 2, 64, 64)),
    "of either sign": (Product((-5, 0), (SIGNED, SIGNED)), (2, 32, 48), (2, 48, 32)),
    "of a sign and without": (Product((0, 9), MIXED), (1, 64, 64), (1, 64, 37)),
    "other orders of axes": (Product((7, 9), BOTH, ([1, 2, 0], [0, 2, 1])), (64, 2, 36), (2, 40, 64)),
    "no heads": (Product((3, 4), BOTH), (70, 64), (64, 40)),
}


def inputs(case: str) -> tuple[Product, tuple[torch.Tensor, torch.Tensor]]:
    module, *shapes = CASES[case]
    random = np.random.default_rng(1)
    x, y = (torch.from_numpy(3 * random.standard_normal(shape).astype(np.float32)) for shape in shapes)
    return module, (x, y)


@cache
def imported_case(case: str) -> Any:
    module, given = inputs(case)
    return relax_of(module, *given)


@pytest.mark.parametrize(
    ("of_bytes", "case"),
    [
        *(("tiles", case) for case in CASES),
        *((name, case) for name in OF_BYTES if name != "tiles" for case in ("of either sign", "of a sign and without")),
        ("float32", "other orders of axes"),
    ],
)
def test_a_product_of_data_is_exact(of_bytes: str, case: str) -> None:
    """Bit for bit, whatever the zero points and the types of both are."""
    module, given = inputs(case)
    exact = module.exact(*given)
    assert len(np.unique(exact)) > 20, "most results would be cut off"
    mod = lower(for_inference(imported_case(case), of_bytes=OF_BYTES[of_bytes]))
    np.testing.assert_array_equal(compute(mod, *given)[0], exact)


@pytest.mark.parametrize(
    ("instructions", "case"),
    [
        ("tiles", "two batches"),
        ("tiles", "of either sign"),
        ("tiles", "other orders of axes"),
        *((name, "rows, terms and columns of no tile") for name in INSTRUCTIONS),
        *((name, "of a sign and without") for name in INSTRUCTIONS if name != "short vectors"),
    ],
)
def test_each_program_of_its_space_computes_the_same(instructions: str, case: str) -> None:
    """Whatever number of rows is computed at a time."""
    graph = for_inference(imported_case(case), of_bytes=INSTRUCTIONS[instructions][0])
    check_programs(lower(graph), instructions, 1)


def quantised(x: torch.Tensor, scale: float = 0.05, zero: int = 7, limits: tuple[int, int] = UNSIGNED) -> torch.Tensor:
    return (codes(x, scale, zero, limits) - zero) * scale


def test_what_stands_beside_a_product_is_computed_in_its_kernel() -> None:
    """Also where it comes first in the function."""
    module = Computed(lambda x, y, z: quantised(quantised(x) @ quantised(y), 0.25) + (z.abs() * 2 + 1))
    given = torch.randn(2, 32, 64), torch.randn(2, 64, 32), torch.randn(2, 32, 32)
    (task,) = tile_tasks(lowered(module, *given, of_bytes=TILES))
    assert "abs" in task.name
    (candidate,) = random_candidates(task, XEON, 1)
    assert "tdpb" in compiled(candidate.mod)[1]


_RANDOM = torch.Generator().manual_seed(0)


def numbers(*extents: int) -> torch.Tensor:
    return torch.randn(extents, generator=_RANDOM)


PIXELS = 4 * numbers(1, 16, 9, 9)
ROUNDED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int]] = {
    "a query that is scaled": (
        lambda x, y: quantised(quantised(quantised(x) * 0.125, 0.05 * 0.125) @ quantised(y)),
        (numbers(2, 40, 64), numbers(2, 64, 48)),
        3,
    ),
    "zeros first": (lambda x: quantised(torch.zeros(40, 64) + quantised(x)), (numbers(40, 64),), 1),
    "maxima": (lambda x: quantised(functional.max_pool2d(quantised(x), 3, 2, 1)), (numbers(1, 16, 9, 9),), 1),
    "another scale": (lambda x: quantised(functional.max_pool2d(quantised(x), 3), 0.06), (PIXELS,), 2),
    "another zero point": (lambda x: quantised(functional.max_pool2d(quantised(x), 3), zero=8), (PIXELS,), 2),
    "other limits": (lambda x: quantised(functional.max_pool2d(quantised(x), 3), limits=SIGNED), (PIXELS,), 2),
    "maxima of what is reshaped": (
        lambda x: quantised(functional.max_pool2d(quantised(quantised(x).reshape(1, 16, 8, 8)), 2)),
        (numbers(1, 16, 64),),
        1,
    ),
    "a scalar": (lambda x: quantised(x.sum().sigmoid()) * 0.5, (numbers(4, 4),), 1),
    "numbers of 64 bits": (lambda x: quantised(x.softmax(-1)), (numbers(4, 64).double(),), 1),
    "sums beyond 32 bits": (
        lambda x, y: quantised(quantised(x, 0.05, 255) @ quantised(y, 0.05, 0), 9.0),
        (numbers(16, 66000), numbers(66000, 16)),
        3,
    ),
}


@pytest.mark.parametrize(
    ("of_bytes", "case"),
    [*(("tiles", case) for case in ROUNDED), *(("float32", case) for case in ("a query that is scaled", "maxima"))],
)
def test_codes_are_rounded_once_unless_they_are_quantised_otherwise(of_bytes: str, case: str) -> None:
    function, given, rounded = ROUNDED[case]
    module = Computed(function)
    graph = prepared(module, *given, of_bytes=OF_BYTES[of_bytes])
    assert [name_of(one) for one in calls(graph)].count("round") == rounded
    (ours,), theirs = compute(lower(graph), *given), module(*given).numpy()
    assert ours.shape == theirs.shape
    assert (abs(ours - theirs) > 1e-5).mean() < 0.02


@pytest.mark.parametrize("of_bytes", ["float32", "tiles"])
def test_scores_that_are_not_quantised_stay_a_part_of_attention(of_bytes: str) -> None:
    """Which is padded then, and can be one function."""

    def attention(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (quantised(x) @ quantised(y).transpose(-1, -2) * 0.125).softmax(-1) @ quantised(z)

    graph = prepared(Computed(attention), *(torch.randn(1, 3, 61, 64) for _ in range(3)), of_bytes=OF_BYTES[of_bytes])
    assert attentions(graph)


def attention(*given: torch.Tensor) -> torch.Tensor:
    """Compute attention as ONNX Runtime's tools leave it: each step is quantised, the scale and the mask, too."""
    query, key, value = (quantised(quantised(x, 0.03, 120).transpose(1, 2), 0.03, 120) for x in given)
    scores = quantised(query @ key.transpose(-1, -2), 0.25, 128)
    scores = quantised(scores * 0.125, 0.25 * 0.125, 128)
    scores = quantised(scores + torch.zeros(37, 37), 0.25 * 0.125, 128)
    return quantised(quantised(scores.softmax(-1), 1 / 256, 0) @ value, 0.01, 99)


@pytest.mark.parametrize("of_bytes", ["float32", "tiles"])
def test_attention_is_quantised_once_a_step(of_bytes: str) -> None:
    """A scale of the scores is one of their codes, and neither a mask of zeros nor a copy of heads changes any."""
    random = torch.manual_seed(0)
    module, given = Computed(attention), [torch.randn(1, 37, 2, 64, generator=random) for _ in range(3)]
    graph = prepared(module, *given, of_bytes=OF_BYTES[of_bytes])
    names = [name_of(one) for one in calls(graph)]
    assert names.count("round") == 6, "query, key, value, scores, weights and result"
    assert names.count("divide") == 3, "of what comes in"
    off = compute(lower(graph), *given)[0] - module(*given).numpy()
    assert abs(off).max() < 0.021, "two codes, by weights that are rounded otherwise"
    assert (abs(off) > 1e-5).mean() < 0.01

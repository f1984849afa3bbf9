"""Products of quantised networks are sums of whole numbers, exact in any order, in float32 and in 8 bits."""

import numpy as np
import pytest
import torch
import tvm
from quantised_kit import CASES, SIGNED, UNSIGNED, Pair, Quantised, codes, conv, lowered, prepared
from relax_kit import calls, compute, name_of
from tchub.hub.networks.transform.prepare import lower
from tchub.hub.networks.transform.relax_graph import constant_values
from tchub.hub.networks.transform.tile_products import is_of_tiles
from tchub.zoo.tile_instructions import TILES, VECTORS
from tile_kit import tile_tasks
from torch import nn
from torch.nn import functional


def result(module: nn.Module, x: torch.Tensor, of_bytes: Pair) -> np.ndarray:
    """Return what a network computes without a schedule."""
    return compute(lowered(module, x, of_bytes=of_bytes), x)[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("of_bytes", [(), TILES, VECTORS[16]], ids=["float32", "tiles", "vectors"])
def test_a_quantised_product_is_exact(case: str, of_bytes: Pair) -> None:
    """Bit for bit, with numbers of 8 bits and without."""
    make, shape = CASES[case]
    module, x = make(), 3 * torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    exact = module.exact(x)
    assert len(np.unique(exact)) > 20, "most results would be cut off"
    np.testing.assert_array_equal(result(module, x, of_bytes), exact)


@pytest.mark.parametrize("case", CASES)
def test_without_tiles_whole_numbers_are_multiplied(case: str) -> None:
    """And their sums scaled once, without a division."""
    make, shape = CASES[case]
    every = calls(prepared(make(), torch.randn(shape)))
    (product,) = (one for one in every if name_of(one) in ("matmul", "nn.conv2d"))
    weights = constant_values(product.args[1])
    assert weights is not None
    np.testing.assert_array_equal(weights, np.round(weights))
    assert [name_of(one) for one in every].count("divide") == 1, "of what comes in"


class Pooled(nn.Module):
    """Maxima of what is quantised, which are quantised again as ONNX Runtime's tools do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d((codes(x, 0.05, 7) - 7) * 0.05, 3, 2, 1)
        return (codes(x, 0.05, 7) - 7) * 0.05


def test_maxima_are_of_whole_numbers_and_quantised_once() -> None:
    x = torch.randn(1, 16, 9, 9)
    graph = prepared(Pooled(), x)
    assert [name_of(one) for one in calls(graph)].count("round") == 1
    np.testing.assert_array_equal(compute(lower(graph), x)[0], Pooled()(x).numpy())


class Residual(nn.Module):
    """What is quantised goes to a product and, past it, to a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.products = nn.ModuleList(Quantised(conv(padding=1), (16, 16, 3, 3), zero) for zero in (7, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.products
        x = first(x)
        return codes(second(x) + x, 0.2, 5) - 5


@pytest.mark.parametrize("of_bytes", [(), TILES, VECTORS[16]], ids=["float32", "tiles", "vectors"])
def test_a_residual_is_added_without_a_division(of_bytes: Pair) -> None:
    module, x = Residual(), 3 * torch.randn(1, 16, 8, 8)
    mod = lowered(module, x, of_bytes=of_bytes)
    products = [
        name for name in (var.name_hint for var, _ in mod.functions_items()) if "conv2d" in name or "tile" in name
    ]
    assert len(products) == 2
    assert not any("divide" in name for name in products)
    ours, before = compute(mod, x)[0], torch.from_numpy(module.products[0].exact(x))
    product = codes(torch.from_numpy(module.products[1].exact(before)), 0.1, 3) - 3
    theirs = ((product * np.float32(0.5) + codes(before, 0.1, 3) * np.float32(0.5) - 1.5).round() + 5).clamp(0, 255) - 5
    np.testing.assert_array_equal(ours, theirs.numpy())


def test_codes_that_are_read_as_numbers_are_cut_off_less_their_zero_point() -> None:
    names = [name_of(one) for one in calls(prepared(Residual(), torch.randn(1, 16, 8, 8)))]
    assert names.count("subtract") == 0
    assert names.count("add") == 3, "two biases and the residual"


class Dynamic(nn.Module):
    """A product of data that are quantised by what they are, as `quantize_dynamic` has it."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = Quantised(functional.linear, (32, 64)).whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (x.max() - x.min()) / 255
        zero = (-x.min() / scale).round().clamp(0, 255).to(torch.uint8).float()
        data = ((x / scale).round() + zero).clamp(0, 255).to(torch.uint8)
        return functional.linear(data.float() - zero, self.whole) * scale


@pytest.mark.parametrize("of_bytes", [(), TILES, VECTORS[16]], ids=["float32", "tiles", "vectors"])
def test_a_zero_point_may_be_computed(of_bytes: Pair) -> None:
    module, x = Dynamic(), torch.randn(40, 64)
    mod = lowered(module, x, of_bytes=of_bytes)
    assert any(is_of_tiles(one) for one in mod.functions.values() if isinstance(one, tvm.tirx.PrimFunc)) == bool(
        of_bytes
    )
    np.testing.assert_allclose(compute(mod, x)[0], module(x).numpy(), rtol=1e-6)


class Again(nn.Module):
    """What is quantised is quantised once more, by another scale, zero point or limit."""

    def __init__(self, scale: float, zero: int, limits: tuple[int, int]) -> None:
        super().__init__()
        self.again = scale, zero, limits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero, limits = self.again
        x = functional.max_pool2d((codes(x, 0.05, 7) - 7) * 0.05, 3)
        return (codes(x, scale, zero, limits) - zero) * scale


@pytest.mark.parametrize("again", [(0.06, 7, UNSIGNED), (0.05, 8, UNSIGNED), (0.05, 7, SIGNED)])
def test_what_is_quantised_otherwise_is_rounded_again(again: tuple[float, int, tuple[int, int]]) -> None:
    module, x = Again(*again), 4 * torch.randn(1, 16, 9, 9)
    graph = prepared(module, x)
    assert [name_of(one) for one in calls(graph)].count("round") == 2
    np.testing.assert_allclose(compute(lower(graph), x)[0], module(x).numpy(), atol=1e-5)


class Rounding(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.round(x)


def test_numbers_halfway_between_two_are_rounded_to_the_even_one() -> None:
    """By the operator that TVM vectorises, which LLVM rounds so."""
    x = torch.arange(-64, 64).float().reshape(4, 32) / 2
    module = Rounding()
    np.testing.assert_array_equal(compute(lowered(module, x, of_bytes=()), x)[0], torch.round(x).numpy())


class Grouped(nn.Module):
    """Convolutions of groups, one channel each and eight."""

    def __init__(self) -> None:
        super().__init__()
        options = {"padding": 1}
        self.each = Quantised(conv(groups=32, **options), (32, 1, 3, 3), 9)
        self.some = Quantised(conv(groups=4, **options), (32, 8, 3, 3), 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.some(self.each(x))


@pytest.mark.parametrize("of_bytes", [(), TILES, VECTORS[16]], ids=["float32", "tiles", "vectors"])
def test_grouped_convolutions_are_exact_in_float32(of_bytes: Pair) -> None:
    module, x = Grouped(), torch.randn(1, 32, 9, 9)
    mod = lowered(module, x, of_bytes=of_bytes)
    assert not tile_tasks(mod)
    exact = module.some.exact(torch.from_numpy(module.each.exact(x)))
    np.testing.assert_array_equal(compute(mod, x)[0], exact)


class Shifted(nn.Module):
    """Numbers of 8 bits less one that these do not have, around which an image is padded."""

    def __init__(self, zero: float) -> None:
        super().__init__()
        self.zero, self.whole = zero, Quantised(conv(padding=1), (16, 16, 3, 3)).whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x.float() - self.zero, self.whole, padding=1)


@pytest.mark.parametrize("zero", [300.0, -5.0, 7.5])
def test_a_zero_point_beyond_8_bits_is_no_zero_point(zero: float) -> None:
    module, x = Shifted(zero), torch.randint(0, 256, (1, 16, 9, 9), dtype=torch.uint8)
    mod = lowered(module, x, of_bytes=TILES)
    assert not tile_tasks(mod)
    np.testing.assert_allclose(compute(mod, x)[0], module(x).numpy(), rtol=1e-6, atol=1)

"""Products of quantised networks are sums of whole numbers, exact in any order, in float32 and in 8 bits."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import tvm
from quantised_kit import CASES, Pair, Quantised, codes, conv, imported_case, lowered, lowered_case, prepared
from relax_kit import Computed, calls, compute, name_of
from tchub.hub.networks.transform.prepare import for_inference
from tchub.hub.networks.transform.quantised import split_weights
from tchub.hub.networks.transform.relax_graph import constant_values
from tchub.hub.networks.transform.tile_products import gain_of_tiles, is_of_tiles
from tchub.zoo.tile_instructions import TILES, VECTORS
from tile_kit import tile_tasks
from torch import nn
from torch.nn import functional

OTHERS = ("rows of no tile", "of either sign, shifted", "3x3 with a zero point around it", "of a few channels", "1x1")


@pytest.mark.parametrize(
    ("of_bytes", "case"),
    [
        *((TILES, case) for case in CASES),
        *((VECTORS[16], case) for case in OTHERS),
        *(((), case) for case in OTHERS[1:3]),
    ],
)
def test_a_quantised_product_is_exact(of_bytes: Pair, case: str) -> None:
    """Bit for bit, with numbers of 8 bits and without."""
    make, shape = CASES[case]
    module, x = make(), 3 * torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    exact = module.exact(x)
    assert len(np.unique(exact)) > 20, "most results would be cut off"
    mod = lowered_case(case, of_bytes)
    np.testing.assert_array_equal(compute(mod, x)[0], exact)
    tasks = tile_tasks(mod)
    assert len(tasks) == bool(of_bytes)
    weights, gain = ("int8", 32) if of_bytes == TILES else ("uint32", 4)
    for task in tasks:
        read = {str(param.ty.dtype) for param in task.mod["main"].params}
        assert {weights} < read <= {weights, "int8", "uint8", "int32", "float32"}
        assert gain_of_tiles(task.mod["main"]) == gain
        assert not is_of_tiles(task.mod["main"], halves=True)


@pytest.mark.parametrize("case", ["several batches", "3x3", "3x3 with a zero point around it"])
def test_without_tiles_whole_numbers_are_multiplied(case: str) -> None:
    """And their sums scaled once, without a division."""
    every = calls(for_inference(imported_case(case)))
    (product,) = (one for one in every if name_of(one) in ("matmul", "nn.conv2d"))
    weights = constant_values(product.args[1])
    assert weights is not None
    np.testing.assert_array_equal(weights, np.round(weights))
    assert [name_of(one) for one in every].count("divide") == 1, "of what comes in"


def residual(first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Take what is quantised to a product and, past it, to a sum."""
    x = first(x)
    return codes(second(x) + x, 0.2, 5) - 5


PRODUCTS = [Quantised(conv(padding=1), (16, 16, 3, 3), zero) for zero in (7, 3)]


@pytest.mark.parametrize("of_bytes", [(), TILES], ids=["float32", "tiles"])
def test_a_residual_is_added_without_a_division(of_bytes: Pair) -> None:
    module, x = Computed(residual, *PRODUCTS), 3 * torch.randn(1, 16, 8, 8)
    mod = lowered(module, x, of_bytes=of_bytes)
    products = [
        name for name in (var.name_hint for var, _ in mod.functions_items()) if "conv2d" in name or "tile" in name
    ]
    assert len(products) == 2
    assert not any("divide" in name for name in products)
    ours, before = compute(mod, x)[0], torch.from_numpy(PRODUCTS[0].exact(x))
    product = codes(torch.from_numpy(PRODUCTS[1].exact(before)), 0.1, 3) - 3
    theirs = ((product * np.float32(0.5) + codes(before, 0.1, 3) * np.float32(0.5) - 1.5).round() + 5).clamp(0, 255) - 5
    np.testing.assert_array_equal(ours, theirs.numpy())


def test_codes_that_are_read_as_numbers_are_cut_off_less_their_zero_point() -> None:
    names = [name_of(one) for one in calls(prepared(Computed(residual, *PRODUCTS), torch.randn(1, 16, 8, 8)))]
    assert names.count("subtract") == 0
    assert names.count("add") == 3, "two biases and the residual"


DYNAMIC: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...], int]] = {
    "a matrix product": (functional.linear, (32, 64), (40, 64), 0),
    "a matrix product by weights of uint8": (functional.linear, (32, 64), (40, 64), 51),
    "3x3 with the zero point around it": (conv(padding=1), (32, 32, 3, 3), (1, 32, 9, 7), 0),
    "3x3 of stride 2 by weights of uint8": (conv(padding=1, stride=2), (48, 32, 3, 3), (2, 32, 9, 8), -50),
    "1x1 by weights of uint8": (conv(), (32, 48, 1, 1), (1, 48, 8, 8), 50),
}


@pytest.mark.parametrize(
    ("of_bytes", "case"),
    [
        *((TILES, case) for case in DYNAMIC),
        *((other, "3x3 of stride 2 by weights of uint8") for other in ((), VECTORS[16])),
        ((), "a matrix product by weights of uint8"),
    ],
)
def test_a_zero_point_may_be_computed(of_bytes: Pair, case: str) -> None:
    """As `quantize_dynamic` has it: data are quantised by what they are, and weights may have a zero point."""
    product, weights, inputs, zero_point = DYNAMIC[case]
    whole = Quantised(product, weights).whole + zero_point
    assert (float(whole.abs().max()) > 128) == (zero_point != 0)

    def dynamic(x: torch.Tensor) -> torch.Tensor:
        scale = (x.max() - x.min()) / 255
        zero = (-x.min() / scale).round().clamp(0, 255).to(torch.uint8).float()
        data = ((x / scale).round() + zero).clamp(0, 255).to(torch.uint8)
        return product(data.float() - zero, whole, None) * scale

    module, x = Computed(dynamic), torch.randn(*inputs) + 0.5
    mod = lowered(module, x, of_bytes=of_bytes)
    assert any(is_of_tiles(one) for one in mod.functions.values() if isinstance(one, tvm.tirx.PrimFunc)) == bool(
        of_bytes
    )
    np.testing.assert_allclose(compute(mod, x)[0], module(x).numpy(), rtol=1e-6, atol=1e-5)


def test_a_sum_of_convolutions_of_quantised_data_stays_in_8_bits() -> None:
    """Joined weights would not be of 8 bits."""
    first, second = (Quantised(conv(), (32, 32, size, size)).whole for size in (3, 1))

    def branches(x: torch.Tensor) -> torch.Tensor:
        data = (codes(x, 0.05, 7) - 7) * 0.05
        return conv(padding=1)(data, first * 0.01, None) + conv()(data, second * 0.02, None)

    module, x = Computed(branches), torch.randn(1, 32, 9, 9)
    mod = lowered(module, x, of_bytes=TILES)
    assert len(tile_tasks(mod)) == 2
    np.testing.assert_allclose(compute(mod, x)[0], module(x).numpy(), rtol=1e-4, atol=1e-3)


def test_numbers_halfway_between_two_are_rounded_to_the_even_one() -> None:
    """By the operator that TVM vectorises, which LLVM rounds so."""
    x = torch.arange(-64, 64).float().reshape(4, 32) / 2
    np.testing.assert_array_equal(compute(lowered(Computed(torch.round), x, of_bytes=()), x)[0], torch.round(x).numpy())


def test_grouped_convolutions_are_exact_in_float32() -> None:
    """Of one channel each, and of eight."""
    each = Quantised(conv(groups=32, padding=1), (32, 1, 3, 3), 9)
    some = Quantised(conv(groups=4, padding=1), (32, 8, 3, 3), 9)
    module, x = nn.Sequential(each, some), torch.randn(1, 32, 9, 9)
    mod = lowered(module, x, of_bytes=TILES)
    assert not tile_tasks(mod)
    exact = some.exact(torch.from_numpy(each.exact(x)))
    np.testing.assert_array_equal(compute(mod, x)[0], exact)


@pytest.mark.parametrize("zero", [300.0, -5.0, 7.5])
def test_a_zero_point_beyond_8_bits_is_no_zero_point(zero: float) -> None:
    """Numbers of 8 bits less one that these do not have, around which an image is padded."""
    whole = Quantised(conv(padding=1), (16, 16, 3, 3)).whole
    module = Computed(lambda x: functional.conv2d(x.float() - zero, whole, padding=1))
    x = torch.randint(0, 256, (1, 16, 9, 9), dtype=torch.uint8)
    mod = lowered(module, x, of_bytes=TILES)
    assert not tile_tasks(mod)
    np.testing.assert_allclose(compute(mod, x)[0], module(x).numpy(), rtol=1e-6, atol=1)


def test_weights_are_split_into_whole_numbers_and_scales() -> None:
    """Which are the ones that they were made of, bit for bit."""
    random = np.random.default_rng(0)
    whole = random.integers(-127, 128, (3, 3, 16, 40)).astype(np.float32)
    whole[0, 0, 0] = 127
    whole[..., 7] = 0
    scales = random.uniform(1e-4, 1e-2, 40).astype(np.float32)
    split = split_weights(whole * scales)
    assert split is not None
    np.testing.assert_array_equal(split[0], whole)
    np.testing.assert_array_equal(np.delete(split[1], 7), np.delete(scales, 7))


@pytest.mark.parametrize("most", [1, 128, 255])
def test_the_scale_of_a_column_may_be_that_of_a_tensor(most: int) -> None:
    whole = np.random.default_rng(most).integers(-most, most + 1, (64, 8)).astype(np.float32)
    split = split_weights(whole * np.float32(0.0123))
    assert split is not None
    assert np.abs(split[0]).max() <= max(most, 127)
    np.testing.assert_allclose(split[0] * split[1], whole * np.float32(0.0123), rtol=1e-6)


@pytest.mark.parametrize(
    "weights",
    [np.random.default_rng(0).standard_normal((64, 8)), np.full((4, 4), np.nan), np.arange(8.0)],
    ids=["real numbers", "no numbers", "no matrix"],
)
def test_other_weights_are_not_split(weights: np.ndarray) -> None:
    assert split_weights(weights.astype(np.float32)) is None

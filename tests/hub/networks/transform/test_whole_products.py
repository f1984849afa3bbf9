"""Products of quantised networks are sums of whole numbers, exact in any order, and on tile registers if there are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from relax_kit import calls, compute, name_of
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.device.tile_registers import byte_factors, with_tile_registers
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.networks.transform.quantised import split_weights
from tchub.hub.networks.transform.relax_graph import constant_values
from tchub.hub.networks.transform.tile_products import gain_of_tiles, is_of_tiles
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.tile_instructions import TILES, VECTORS, Factors
from tile_kit import X86, XEON, compiled, tile_tasks
from torch import nn
from torch.nn import functional
from tvm.target import Target
from tvm_ffi import structural_equal

Pair = tuple[Factors, ...]
UNSIGNED, SIGNED = (0, 255), (-128, 127)


def codes(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int] = UNSIGNED) -> torch.Tensor:
    """Return the whole numbers that a tensor is quantised to."""
    return ((x / scale).round() + zero).clamp(*limits)


class Quantised(nn.Module):
    """A product of quantised data and weights with a bias, whose result is quantised, too.

    Args:
        product: of data and weights.
        weights: their extents; each output has a scale of its own.
        zero: point of the data; limits: of their numbers.
    """

    def __init__(
        self,
        product: Callable[..., torch.Tensor],
        weights: tuple[int, ...],
        zero: int = 7,
        limits: tuple[int, int] = UNSIGNED,
    ) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.whole = torch.from_numpy(random.integers(-127, 128, weights).astype(np.float32))
        self.whole.view(weights[0], -1)[:, 0] = 127
        self.scales = torch.from_numpy(random.uniform(1e-3, 2e-3, weights[0]).astype(np.float32))
        self.bias = torch.from_numpy(random.integers(-500, 500, weights[0]).astype(np.float32))
        self.product, self.zero, self.limits = product, zero, limits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ones = [1] * (self.whole.ndim - 1)
        weights = self.whole * self.scales.reshape(-1, *ones)
        data = (codes(x, 0.05, self.zero, self.limits) - self.zero) * 0.05
        result = self.product(data, weights, self.bias * (self.scales * 0.05))
        return (codes(result, 0.1, 3, self.limits) - 3) * 0.1

    def exact(self, x: torch.Tensor) -> np.ndarray:
        """Return the result as ONNX Runtime rounds it: sums of whole numbers, which are scaled once."""
        data = (codes(x, 0.05, self.zero, self.limits) - self.zero).double()
        sums = self.product(data, self.whole.double(), self.bias.double()).float()
        factor = (self.scales * np.float32(0.05)) / np.float32(0.1)
        rounded = (sums * factor.reshape(-1, *[1] * (sums.ndim - 2 if self.whole.ndim > 2 else 0))).round() + 3
        return ((rounded.clamp(*self.limits) - 3) * 0.1).numpy()


def conv(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda x, w, b: functional.conv2d(x, w, b, **options)


CASES: dict[str, tuple[Callable[[], Quantised], tuple[int, ...]]] = {
    "rows of no tile": (lambda: Quantised(functional.linear, (72, 40)), (1, 37, 40)),
    "several batches": (lambda: Quantised(functional.linear, (32, 64)), (3, 10, 64)),
    "a thousand terms": (lambda: Quantised(functional.linear, (64, 1056)), (70, 1056)),
    "rows that are read where they lie": (lambda: Quantised(functional.linear, (64, 128), 0), (64, 128)),
    "of either sign": (lambda: Quantised(functional.linear, (48, 64), 0, SIGNED), (32, 64)),
    "of either sign, shifted": (lambda: Quantised(functional.linear, (48, 64), -9, SIGNED), (32, 64)),
    "3x3": (lambda: Quantised(conv(padding=1), (64, 32, 3, 3), 0), (1, 32, 14, 14)),
    "3x3 with a zero point around it": (lambda: Quantised(conv(padding=1), (32, 48, 3, 3), 100), (2, 48, 9, 7)),
    "3x3 of stride 2": (lambda: Quantised(conv(padding=1, stride=2), (32, 32, 3, 3), 0), (1, 32, 15, 12)),
    "of a few channels": (lambda: Quantised(conv(padding=3, stride=2), (32, 3, 7, 7), 120), (1, 3, 32, 31)),
    "1x1": (lambda: Quantised(conv(), (40, 24, 1, 1)), (1, 24, 8, 9)),
    "1x1 of stride 2": (lambda: Quantised(conv(stride=2), (48, 32, 1, 1)), (1, 32, 10, 10)),
}

# Which vectors compute in 8 bits: the others would be filled up with too much.
FILLED = [case for case in CASES if case not in ("rows of no tile", "1x1")]


def prepared(module: nn.Module, *inputs: torch.Tensor, of_bytes: Pair = ()) -> Any:
    return for_inference(import_exported(torch.export.export(module.eval(), inputs), "network"), of_bytes=of_bytes)


def lowered(module: nn.Module, *inputs: torch.Tensor, of_bytes: Pair) -> Any:
    return lower(prepared(module, *inputs, of_bytes=of_bytes))


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


@pytest.mark.parametrize(
    ("case", "of_bytes", "weights", "gain"),
    [*((case, TILES, "int8", 32) for case in CASES), *((case, VECTORS[16], "uint32", 4) for case in FILLED)],
)
def test_tiles_multiply_numbers_of_8_bits(case: str, of_bytes: Pair, weights: str, gain: int) -> None:
    """Of which vectors take four as one word."""
    make, shape = CASES[case]
    mod = lowered(make(), torch.randn(shape), of_bytes=of_bytes)
    (task,) = tile_tasks(mod)
    read = [str(param.ty.dtype) for param in task.mod["main"].params]
    assert {weights} < {*read} <= {weights, "int8", "uint8", "int32", "float32"}
    assert gain_of_tiles(task.mod["main"]) == gain
    assert not any(
        is_of_tiles(one, halves=True) for one in mod.functions.values() if isinstance(one, tvm.tirx.PrimFunc)
    )


PROGRAMS: dict[str, tuple[Pair, str, str, str]] = {
    "tiles": (TILES, "sapphirerapids", "amx_int8", "tdpb"),
    "vectors": (VECTORS[16], "cascadelake", "avx512_vnni", "vpdpbusd"),
    "short vectors": (VECTORS[8], "alderlake", "avx_vnni", "vpdpbusd"),
}


@pytest.mark.parametrize(
    ("instructions", "case"),
    [(name, case) for name, (of_bytes, *_) in PROGRAMS.items() for case in (CASES if of_bytes is TILES else FILLED)],
)
def test_each_program_computes_the_same(instructions: str, case: str) -> None:
    """Whatever numbers of tiles share rows and columns; on a CPU without the instructions it is compiled."""
    make, shape = CASES[case]
    of_bytes, cpu, flag, instruction = PROGRAMS[instructions]
    target = Target(X86 | {"mcpu": cpu, "num-cores": 2, "opt-level": 0})
    assert byte_factors(target) == of_bytes
    (task,) = tile_tasks(lowered(make(), torch.randn(shape), of_bytes=of_bytes))
    untuned = _computed(task.mod, "llvm")
    for one in random_candidates(task, target, 4 if of_bytes is TILES else 2):
        assert instruction in compiled(one.mod, target)
        if flag in read_host_facts().flags:
            np.testing.assert_array_equal(_computed(with_tile_registers(one.mod), target), untuned)


def test_a_cpu_without_such_an_instruction_multiplies_float32() -> None:
    assert byte_factors(Target(X86 | {"mcpu": "x86-64-v3"})) == ()
    assert byte_factors(Target({"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu"})) == ()


def _computed(mod: Any, target: Any) -> np.ndarray:
    """Return what a task's program computes of random numbers."""
    random = np.random.default_rng(0)
    args = []
    for param in mod["main"].params:
        shape, dtype = [int(n) for n in param.ty.shape], str(param.ty.dtype)
        limits = {"uint8": UNSIGNED, "int8": SIGNED, "int32": (-99, 99), "uint32": (0, 1 << 32)}.get(dtype)
        values = random.integers(*limits, shape) if limits else random.uniform(1e-4, 1e-3, shape)
        args.append(tvm.runtime.tensor(values.astype(dtype)))
    tvm.compile(mod, target=target)["main"](*args)
    return args[-1].numpy()


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


@pytest.mark.parametrize("most", [1, 100, 128, 200, 255])
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


def test_rows_of_8_bits_are_read_where_they_lie() -> None:
    make, shape = CASES["rows that are read where they lie"]
    (task,) = tile_tasks(lowered(make(), torch.randn(shape), of_bytes=TILES))
    (candidate,) = random_candidates(task, XEON, 1)
    text = str(with_tile_registers(candidate.mod))
    assert str(task.mod["main"].params[0].ty.dtype) == "uint8"
    assert "T.address_of(p0[" in text


@pytest.mark.parametrize("of_bytes", [TILES, VECTORS[16]], ids=["tiles", "vectors"])
def test_a_network_of_real_numbers_is_computed_as_without_tiles(of_bytes: Pair) -> None:
    module, x = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Unflatten(1, (4, 24)), nn.Sigmoid()), torch.randn(64, 64)
    assert structural_equal(prepared(module, x, of_bytes=of_bytes), prepared(module, x), map_free_vars=True)


class Tied(nn.Module):
    """The same weights for data without a sign and for data with one."""

    def __init__(self) -> None:
        super().__init__()
        self.unsigned, self.signed = (
            Quantised(functional.linear, (64, 64), 0, limits) for limits in (UNSIGNED, SIGNED)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.unsigned(x), self.signed(x)])


@pytest.mark.parametrize("of_bytes", [TILES, VECTORS[16]], ids=["tiles", "vectors"])
def test_weights_may_be_shared_by_data_with_a_sign_and_without(of_bytes: Pair) -> None:
    module, x = Tied(), torch.randn(32, 64)
    mod = lowered(module, x, of_bytes=of_bytes)
    assert sum(task.weight for task in tile_tasks(mod)) == 2
    exact = np.concatenate([module.unsigned.exact(x), module.signed.exact(x)])
    np.testing.assert_array_equal(compute(mod, x)[0], exact)


@pytest.mark.parametrize(
    ("channels", "outputs", "tiles"), [(64, 64, True), (48, 96, True), (16, 16, False), (3, 16, False)]
)
def test_vectors_compute_what_fills_their_tiles(channels: int, outputs: int, tiles: bool) -> None:
    """Padding to 64 terms and 32 columns would cost more than 8 bits save."""
    module, x = Quantised(conv(padding=1), (outputs, channels, 3, 3), 0), torch.randn(1, channels, 16, 16)
    mod = lowered(module, x, of_bytes=VECTORS[16])
    assert bool(tile_tasks(mod)) == tiles
    np.testing.assert_array_equal(compute(mod, x)[0], module.exact(x))

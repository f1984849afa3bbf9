"""Products of a few rows with weights of 4 or 8 bits: what they were before the import, and as right as float32."""

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from relax_kit import Computed, compute, functions, relax_of
from runtime_kit import model_of
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.networks.frontend.onnx_fold import folded
from tchub.hub.networks.tasks import weight_bytes
from tchub.hub.networks.transform import block_products
from tchub.hub.networks.transform.prepare import for_inference
from torch import nn, tensor

random = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small weights be worth it, too."""
    monkeypatch.setattr(block_products, "_WORTH_BYTES", 0)


def quantised(terms: int, columns: int, size: int, least: int, most: int) -> np.ndarray:
    """Weights whose blocks of a column have a scale each; a block is zero, and one has zeros and its least number."""
    whole = random.integers(least, most + 1, (terms // size, size, columns))
    whole[:, 0], whole[0, :, 1], whole[0, 1:, 2] = least, 0, 0
    scales = random.uniform(0.01, 0.02, (terms // size, 1, columns)).astype(np.float32)
    return (whole * scales).astype(np.float32).reshape(terms, columns)


def network(weights: np.ndarray, shape: list[int], lanes: int = 16, pairs: bool = True) -> Any:
    """A product with weights, made ready for inference."""
    layer = nn.Linear(*weights.shape, bias=False)
    layer.weight.data = tensor(weights.T.copy())
    return for_inference(
        relax_of(layer, tensor(random.standard_normal(shape).astype(np.float32))), lanes=lanes, pairs=pairs
    )


def test_weights_may_stand_as_they_are_read() -> None:
    """As ONNX has them; PyTorch has them the other way round."""
    weights = tensor(quantised(64, 64, 32, -8, 7))
    mod = relax_of(Computed(lambda x: x @ weights), tensor(random.standard_normal((1, 64)).astype(np.float32)))
    assert functions(for_inference(mod, pairs=True)) == {"block_product"}


CASES = {
    "4 bits": ((64, 64, 32, -8, 7), "4 bits"),
    "4 bits without the least number, and columns that fill no vector": ((96, 41, 16, -7, 7), "4 bits"),
    "8 bits of a column": ((48, 32, 48, -127, 127), "8 bits"),
    "4 bits with zero points": ((64, 32, 32, -11, 9), "8 bits"),
    "8 bits of a long column": ((1024, 16, 1024, -127, 127), "8 bits"),
    "few numbers": ((64, 32, 64, -4, 4), "4 bits"),
}


@pytest.mark.x86
@pytest.mark.parametrize(
    ("mcpu", "flag", "lanes"), [("skylake-avx512", "avx512bw", 16), ("haswell", "avx2", 8)], ids=["AVX-512", "AVX2"]
)
@pytest.mark.parametrize("shape", [[1, 1], [3], [2, 2]], ids=str)
@pytest.mark.parametrize(("weights", "stored"), CASES.values(), ids=CASES)
def test_a_few_rows_are_multiplied_by_whole_numbers(
    weights: Any, stored: str, shape: list[int], mcpu: str, flag: str, lanes: int
) -> None:
    """As exactly as in float32, for data of several sizes, zeros among them."""
    values = quantised(*weights)
    mod = network(values, [*shape, len(values)], lanes)
    assert functions(mod) == {"block_product"}
    groups, scales = block_products.packed_weights(values, 16) or ()
    assert len(values) // groups.shape[1] == (8 if stored == "4 bits" else 4)
    assert len(values) // scales.shape[1] <= 256, "more could exceed the sums' 32 bits"
    x = random.standard_normal((*shape, len(values))).astype(np.float32)
    x[..., :16] *= 1000
    x[..., -16:] = 0
    if flag in read_host_facts().flags:
        target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "opt-level": 0})
        (ours,) = compute(mod, tensor(x), target=target)
        right = x.astype(np.float64) @ values
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-6 * np.abs(right).max())


@pytest.mark.x86
def test_codes_and_tiny_and_huge_numbers_are_multiplied_exactly() -> None:
    """Codes of data are whole numbers, and so are their sums; the rest of a block is not lost beside an outlier."""
    whole = random.integers(-127, 128, (64, 32)).astype(np.float32)
    codes = random.integers(-255, 256, (3, 64)).astype(np.float32)
    np.testing.assert_array_equal(computed(whole, codes), codes.astype(np.float64) @ whole)
    outlier = random.standard_normal((3, 64)).astype(np.float32)
    outlier[:, 5], whole[5] = 1e5, 0
    np.testing.assert_allclose(computed(whole, outlier), outlier @ whole, rtol=0, atol=1e5 * 2**-19)
    for size in (1e-25, 1e25):
        x = (random.standard_normal((3, 64)) * size).astype(np.float32)
        right = x.astype(np.float64) @ whole
        np.testing.assert_allclose(computed(whole, x), right, rtol=0, atol=1e-6 * np.abs(right).max())


def computed(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Multiply by the kernel, for the widest vectors of this CPU."""
    lanes, mcpu = (16, "skylake-avx512") if "avx512bw" in read_host_facts().flags else (8, "haswell")
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "opt-level": 0})
    mod = network(weights, [*x.shape], lanes)
    assert functions(mod) == {"block_product"}
    return compute(mod, tensor(x), target=target)[0]


@pytest.mark.x86
def test_what_is_no_number_stays_none() -> None:
    values = quantised(64, 32, 32, -8, 7)
    x = random.standard_normal((3, 64)).astype(np.float32)
    x[0, 3], x[1, 40] = np.nan, np.inf
    ours = computed(values, x)
    assert np.isnan(ours[0]).all()
    assert not np.isfinite(ours[1]).any()
    np.testing.assert_allclose(ours[2], x[2] @ values, rtol=0, atol=1e-3)


def test_other_products_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows, of numbers that are no multiples, with other instructions, and of weights that a cache holds."""
    values = quantised(64, 64, 32, -8, 7)
    other = values.copy()
    other[5, 7] += 0.003
    wide, three = quantised(64, 64, 32, -300, 300), quantised(64, 64, 64, -1, 1)
    sparse = values * (random.random(values.shape) < 0.4)
    taken = functions(network(values, [4, 64]))
    assert "block_product" in taken
    assert "block_product" not in functions(network(values, [5, 64]))
    assert "block_product" not in functions(network(values, [4, 64], pairs=False))
    assert "block_product" not in functions(network(other, [4, 64]))
    for weights in (wide, three, sparse, np.eye(64, dtype=np.float32)):
        assert "block_product" not in functions(network(weights, [4, 64]))
    monkeypatch.setattr(block_products, "_WORTH_BYTES", values.nbytes + 1)
    assert "block_product" not in functions(network(values, [4, 64]))


def test_its_weights_are_those_that_the_network_reads() -> None:
    """By which it is timed with weights that come from memory."""
    assert weight_bytes(network(quantised(64, 64, 32, -8, 7), [1, 64])) == 64 * 64 / 2 + 2 * 64 * 4


@pytest.mark.parametrize(("bits", "symmetric"), [(4, True), (4, False), (8, True)])
def test_what_onnx_runtimes_tool_quantised_is_seen(bits: int, symmetric: bool) -> None:
    x = random.standard_normal((1, 64)).astype(np.float32)
    weights = random.standard_normal((64, 16)).astype(np.float32)
    proto = model_of("MatMul", {"x": x}, {"w": weights}, 1, 17, "")
    tool = MatMulNBitsQuantizer(proto, bits=bits, block_size=32, is_symmetric=symmetric)
    tool.process()
    (held,) = (one for one in folded(tool.model.model, {"x": x.shape}, "net").graph.initializer if one.dims == [64, 16])
    packed = block_products.packed_weights(onnx.numpy_helper.to_array(held), 16)
    assert packed is not None
    assert packed[0].shape[1] == 64 // (8 if (bits, symmetric) == (4, True) else 4)

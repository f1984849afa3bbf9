"""ONNX Runtime's own operators: written as ONNX's, they compute what ONNX Runtime computes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.quantization import matmul_nbits_quantizer, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from relax_kit import compute, prepare
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.onnx_file import read_onnx
from tchub.hub.networks.frontend.onnx_fold import folded
from tchub.hub.networks.frontend.onnx_runtime import exact_products
from torch import nn

Arrays = Mapping[str, np.ndarray]
BATCH, ROWS, WIDE, HEADS = 2, 5, 24, 3
OWN = "com.microsoft"
random = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def of_bytes(kind: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max + 1, shape).astype(kind)


def positive(*shape: int) -> np.ndarray:
    return random.uniform(0.01, 0.02, shape).astype(np.float32)


def model_of(operator: str, given: Arrays, weights: Arrays, outputs: int, opset: int, domain: str, **facts: Any) -> Any:
    """A model of one node, whose inputs have the order of both mappings; names that begin with `-` are left out."""
    unread = [f"unread{i}" for i in range(facts.pop("unread", 0))]
    names = ["" if name[0] == "-" else name for name in (*given, *weights)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results + unread, domain=domain, **facts)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
    graph = helper.make_graph(
        [node], "one",
        [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in given.items()],
        [onnx.ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in weights.items() if name[0] != "-"],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(OWN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run(model: Any, given: Arrays) -> list[Any]:
    options: Any = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(given)))


X, NORM = numbers(BATCH, ROWS, WIDE), {"scale": numbers(WIDE), "shift": numbers(WIDE)}
PRODUCT = {"weights": numbers(WIDE, 3 * WIDE), "bias": numbers(3 * WIDE)}
IMAGE, FILTERS = numbers(1, 4, 6, 6), {"w": numbers(8, 4, 3, 3), "b": numbers(8)}
LENGTHS = np.array([3, ROWS], np.int32)
KEEPS = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
CUBE = np.array([[[int(term <= row) for term in range(ROWS)] for row in range(ROWS)]] * BATCH, np.int32)
QKV = {"q": X, "k": numbers(BATCH, 7, WIDE), "v": numbers(BATCH, 7, WIDE)}
CODES = {"a": of_bytes("uint8", ROWS, WIDE), "b": of_bytes("int8", WIDE, 16)}
NONE = np.zeros(0, np.float32)

CASES: dict[str, tuple[str, Arrays, Arrays, int, dict[str, Any]]] = {
    "gelu": ("Gelu", {"x": X}, {}, 1, {}),
    "gelu with a bias": ("BiasGelu", {"x": X}, {"b": numbers(WIDE)}, 1, {}),
    "gelu by tanh": ("FastGelu", {"x": X}, {"b": numbers(WIDE)}, 1, {}),
    "gelu by a sigmoid": ("QuickGelu", {"x": X}, {}, 1, {"alpha": 1.5}),
    "norm of a sum": ("SkipLayerNormalization", {"x": X, "skip": numbers(BATCH, ROWS, WIDE)},
                      NORM | {"b": numbers(WIDE)}, 1, {"epsilon": 1e-5}),
    "norm of a sum, and what nobody reads": ("SkipLayerNormalization", {"x": X, "skip": X}, NORM, 1,
                                             {"epsilon": 1e-5, "unread": 2}),
    "norm of a sum by its root": ("SkipSimplifiedLayerNormalization", {"x": X, "skip": numbers(BATCH, ROWS, WIDE)},
                                  {"scale": NORM["scale"]}, 1, {"epsilon": 1e-6}),
    "embeddings": ("EmbedLayerNormalization",
                   {"ids": random.integers(0, 9, (BATCH, ROWS)).astype("int32"),
                    "kinds": random.integers(0, 2, (BATCH, ROWS)).astype("int32")},
                   {"words": numbers(9, WIDE), "positions": numbers(8, WIDE), "of kinds": numbers(2, WIDE)} | NORM
                   | {"mask": KEEPS}, 2, {"epsilon": 1e-5}),
    "convolution and leaky ReLU": ("FusedConv", {"x": IMAGE}, FILTERS, 1,
                                   {"activation": "LeakyRelu", "activation_params": [0.1], "pads": [1, 1, 1, 1]}),
    "convolution, sum and ReLU": ("FusedConv", {"x": IMAGE}, FILTERS | {"z": numbers(1, 8, 4, 4)}, 1,
                                  {"activation": "Relu"}),
    "convolution with bounds": ("FusedConv", {"x": IMAGE}, FILTERS, 1,
                                {"activation": "Clip", "activation_params": [0.0, 6.0], "strides": [2, 2]}),
    "product with bias and activation": ("FusedGemm", {"x": X[0]}, {"w": numbers(8, WIDE), "b": numbers(8)}, 1,
                                         {"activation": "LeakyRelu", "activation_alpha": 0.2, "transB": 1}),
    "transposed product": ("FusedMatMul", {"x": X, "y": numbers(BATCH, WIDE, ROWS)}, {}, 1,
                           {"transA": 1, "transB": 1, "alpha": 0.5}),
    "product of quantised data": ("MatMulIntegerToFloat", CODES,
                                  {"sa": positive(1)[0], "sb": positive(16), "za": np.uint8(7),
                                   "zb": of_bytes("int8", 16), "bias": numbers(16)}, 1, {}),
    "product of data to be quantised": ("DynamicQuantizeMatMul", {"x": X},
                                        {"b": CODES["b"], "sb": positive(1)[0]}, 1, {}),
    "product of columns of one scale": ("MatMulIntegerToFloat", CODES,
                                        {"sa": positive(1)[0], "sb": positive(1)[0], "za": np.uint8(7),
                                         "zb": of_bytes("int8", 16)}, 1, {}),
    "attention": ("Attention", {"x": X}, PRODUCT, 1, {"num_heads": HEADS}),
    "attention to lengths": ("Attention", {"x": X}, PRODUCT | {"mask": LENGTHS}, 1, {"num_heads": HEADS}),
    "attention between bounds": ("Attention", {"x": X}, PRODUCT | {"mask": np.array([4, ROWS, 1, 0], np.int32)}, 1,
                                 {"num_heads": HEADS}),
    "attention to what is before and counts": ("Attention", {"x": X}, PRODUCT | {"mask": KEEPS[:, ::-1]}, 1,
                                               {"num_heads": HEADS, "unidirectional": 1,
                                                "mask_filter_value": float(np.finfo(np.float32).min)}),
    "attention behind none": ("Attention", {"x": X}, PRODUCT | {"-m": NONE, "past": numbers(2, BATCH, HEADS, 0, 8)}, 2,
                              {"num_heads": HEADS}),
    "attention with a mask": ("Attention", {"x": X}, PRODUCT | {"mask": KEEPS}, 1,
                              {"num_heads": HEADS, "scale": 0.3}),
    "attention with a mask a row": ("Attention", {"x": X}, PRODUCT | {"mask": CUBE}, 1, {"num_heads": HEADS}),
    "attention to what is before": ("Attention", {"x": X}, PRODUCT, 1, {"num_heads": HEADS, "unidirectional": 1}),
    "attention with other scores": ("Attention", {"x": X},
                                    PRODUCT | {"-m": NONE, "-p": NONE, "more": numbers(1, HEADS, ROWS, ROWS)}, 1,
                                    {"num_heads": HEADS}),
    "attention of heads": ("MultiHeadAttention", QKV, {"bias": numbers(3 * WIDE)}, 1, {"num_heads": HEADS}),
    "attention of heads with a mask": ("MultiHeadAttention", QKV,
                                       {"-b": NONE, "mask": np.array([[1] * 4 + [0] * 3, [1] * 7], np.int32)}, 3,
                                       {"num_heads": HEADS}),
    "attention of heads to heads": ("MultiHeadAttention",
                                    {"q": X, "k": numbers(BATCH, HEADS, 7, 8), "v": numbers(BATCH, HEADS, 7, 8)}, {}, 1,
                                    {"num_heads": HEADS}),
    "attention of heads behind others": ("MultiHeadAttention", QKV,
                                         {"-b": NONE, "-m": NONE, "-a": NONE, "past": numbers(BATCH, HEADS, 4, 8),
                                          "past values": numbers(BATCH, HEADS, 4, 8)}, 3, {"num_heads": HEADS}),
    "attention behind others": ("Attention", {"x": X},
                                PRODUCT | {"-m": NONE, "past": numbers(2, BATCH, HEADS, 4, 8)}, 2,
                                {"num_heads": HEADS, "unidirectional": 1}),
    "quantised attention": ("QAttention", {"x": of_bytes("uint8", BATCH, ROWS, WIDE)},
                            {"w": of_bytes("int8", WIDE, 3 * WIDE), "bias": numbers(3 * WIDE), "s": positive(1)[0],
                             "by": positive(1)[0], "mask": LENGTHS, "z": np.uint8(120), "zw": np.int8(0)}, 1,
                            {"num_heads": HEADS}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [12, 17, 20])
def test_an_operator_is_written_as_others_that_compute_the_same(case: str, opset: int) -> None:
    operator, given, weights, outputs, facts = CASES[case]
    if opset == 12 and operator == "MatMulIntegerToFloat":
        opset = 13  # which has scales of columns
    model = model_of(operator, given, weights, outputs, opset, OWN, **facts)
    written = folded(model, {name: array.shape for name, array in given.items()}, "net")
    assert {node.domain for node in written.graph.node} == {""}
    for ours, theirs in zip(run(written, given), run(model, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
        assert np.ptp(theirs) > 0.1


@pytest.mark.parametrize(("operator", "weights"), [("SimplifiedLayerNormalization", 1), ("LayerNormalization", 2)])
def test_norms_have_no_domain(operator: str, weights: int, tmp_path: Path) -> None:
    """And stand in files of opsets that do not have them."""
    model = model_of(operator, {"x": X}, dict(list(NORM.items())[:weights]), 1, 12, "", epsilon=1e-3)
    written = folded(model, {"x": X.shape}, "net")
    assert operator not in {node.op_type for node in written.graph.node}
    np.testing.assert_allclose(run(written, {"x": X})[0], run(model, {"x": X})[0], rtol=1e-4, atol=1e-5)
    path, output = tmp_path / "norm.onnx", helper.make_tensor_value_info("y0", TensorProto.FLOAT, X.shape)
    model.graph.output[0].CopyFrom(output)
    onnx.save(model, path)
    read = read_onnx(path, {}).model
    assert {node.domain for node in read.graph.node} == {""}
    assert [one.domain for one in read.opset_import] == ["", OWN]


def test_a_norm_of_an_old_file_may_be_over_several_axes() -> None:
    weights = {"scale": numbers(ROWS, WIDE), "shift": numbers(ROWS, WIDE)}
    model = model_of("LayerNormalization", {"x": X}, weights, 1, 12, "", axis=1)
    written = folded(model, {"x": X.shape}, "net")
    np.testing.assert_allclose(run(written, {"x": X})[0], run(model, {"x": X})[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("operator", "given", "outputs", "facts"),
    [
        ("SkipLayerNormalization", {"x": X, "skip": X, "scale": NORM["scale"]}, 3, {}),
        ("SimplifiedLayerNormalization", {"x": X, "scale": NORM["scale"]}, 2, {}),
        ("Attention", {"x": X} | PRODUCT, 1, {"num_heads": HEADS, "do_rotary": 1}),
        ("MultiHeadAttention", QKV, 1, {"num_heads": HEADS, "unidirectional": 1}),
        ("MatMulNBits", {"x": X, "w": of_bytes("uint8", 16, 1, 16), "s": positive(16)}, 1, {"N": 16, "block_size": 32}),
        ("MatMulNBits", {"x": X}, 1, {"N": 16, "K": WIDE, "block_size": 0}),
    ],
)
def test_a_form_that_is_not_known_is_refused(operator: str, given: Arrays, outputs: int, facts: dict[str, Any]) -> None:
    """TVM has some of the operators, and would give zeros for outputs that it does not compute."""
    first, *weights = given.items()
    model = model_of(operator, dict([first]), dict(weights), outputs, 17, OWN, **facts)
    with pytest.raises(NetworkImportError, match=f"of ONNX Runtime .*{operator}, node 'y0'") as caught:
        folded(model, {first[0]: first[1].shape}, "net")
    assert "before ONNX Runtime" in caught.value.remedy


def test_nodes_of_the_same_weights_share_them() -> None:
    weights = {"w": of_bytes("uint8", 16, 1, 16), "s": positive(16)}
    model = model_of("MatMulNBits", {"x": X}, weights, 1, 17, OWN, K=WIDE, N=16, block_size=32)
    other = helper.make_node("MatMulNBits", ["x", *weights], ["z"], domain=OWN, K=WIDE, N=16, block_size=32)
    model.graph.node.append(other)
    model.graph.output.append(onnx.ValueInfoProto(name="z"))
    written = folded(model, {"x": X.shape}, "net")
    assert sum(tensor.dims == [WIDE, 16] for tensor in written.graph.initializer) == 1


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_a_few_bits_have_a_scale_for_each_block(bits: int, symmetric: bool) -> None:
    """As ONNX Runtime's tool quantises them, with columns of one and a half blocks."""
    x = numbers(3, 48)
    model = model_of("MatMul", {"x": x}, {"w": numbers(48, 10)}, 1, 17, "")
    tool = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        model, bits=bits, block_size=32, is_symmetric=symmetric, accuracy_level=4
    )
    tool.process()
    quantised = tool.model.model
    assert [node.op_type for node in quantised.graph.node] == ["MatMulNBits"]
    written = folded(quantised, {"x": x.shape}, "net")
    assert exact_products(quantised), "which would round the other factor"
    np.testing.assert_allclose(run(written, {"x": x})[0], run(quantised, {"x": x})[0], rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    """A block of an encoder as BERT has it, in the form that the tools know."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDE) for _ in range(2))
        self.inner, self.outer = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = (part(x).view(BATCH, ROWS, HEADS, WIDE // HEADS) for part in (self.query, self.key, self.value))
        query, key, value = (part.permute(0, 2, 1, 3) for part in parts)
        scores = query @ key.transpose(-1, -2) / (WIDE // HEADS) ** 0.5
        low = (1.0 - mask[:, None, None, :].to(torch.float32)) * -10000.0
        mixed = ((scores + low).softmax(-1) @ value).permute(0, 2, 1, 3).reshape(BATCH, ROWS, WIDE)
        x = self.norms[0](self.out(mixed) + x)
        return self.norms[1](self.outer(nn.functional.gelu(self.inner(x))) + x)


class Encoder(nn.Module):
    """Blocks behind embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(50, WIDE), nn.Embedding(ROWS, WIDE)
        self.norm, self.blocks = nn.LayerNorm(WIDE), nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(ids) + self.positions(torch.arange(ROWS)[None]))
        for block in self.blocks:
            x = block(x, mask)
        return x


@pytest.mark.parametrize("quantised", [False, True])
def test_a_network_that_onnx_runtimes_tools_optimised(tmp_path: Path, quantised: bool) -> None:
    torch.manual_seed(0)
    ids, mask = torch.randint(0, 50, (BATCH, ROWS)), torch.from_numpy(KEEPS).long()
    path, optimised = tmp_path / "encoder.onnx", tmp_path / "optimised.onnx"
    names = {"input_names": ["ids", "mask"], "output_names": ["y"]}
    torch.onnx.export(Encoder().eval(), (ids, mask), str(path), dynamo=False, opset_version=17, **names)
    optimize_model(str(path), "bert", num_heads=HEADS, hidden_size=WIDE).save_model_to_file(str(optimised))
    if quantised:
        quantize_dynamic(optimised, optimised, extra_options={"DefaultTensorType": TensorProto.FLOAT})
    network = read_onnx(optimised, {})
    own = {node.op_type for node in network.model.graph.node if node.domain == OWN}
    assert own >= {"QAttention" if quantised else "Attention", "SkipLayerNormalization"}
    given = {"ids": ids.numpy(), "mask": mask.numpy()}
    (ours,) = compute(prepare(network.imported()), ids, mask)
    np.testing.assert_allclose(ours, run(onnx.load(optimised), given)[0], atol=2e-2 if quantised else 1e-4)

"""ONNX Runtime's own operators: written as ONNX's, they compute what ONNX Runtime computes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from onnxruntime.quantization import matmul_nbits_quantizer, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from relax_kit import compute, prepare
from runtime_kit import OWN, Arrays, Case, check_written, model_of, numbers, of_bytes, positive, random, run
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.onnx_file import read_onnx
from tchub.hub.networks.frontend.onnx_fold import folded
from tchub.hub.networks.frontend.onnx_runtime import exact_products
from torch import nn

BATCH, ROWS, WIDE, HEADS = 2, 5, 24, 3
X, NORM = numbers(BATCH, ROWS, WIDE), {"scale": numbers(WIDE), "shift": numbers(WIDE)}
PRODUCT = {"weights": numbers(WIDE, 3 * WIDE), "bias": numbers(3 * WIDE)}
IMAGE, FILTERS = numbers(1, 4, 6, 6), {"w": numbers(8, 4, 3, 3), "b": numbers(8)}
KEEPS = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
QKV = {"q": X, "k": numbers(BATCH, 7, WIDE), "v": numbers(BATCH, 7, WIDE)}
CODES = {"a": of_bytes("uint8", ROWS, WIDE), "b": of_bytes("int8", WIDE, 16)}

IDS = random.integers(0, 9, (BATCH, ROWS))
TABLES = {"tokens": (9, WIDE), "positions": (8, WIDE), "of kinds": (2, WIDE), "scale": (WIDE,), "shift": (WIDE,)}
BITS = {"bits": 4, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}

CASES: dict[str, Case] = {
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
    "product of floats of four bits": ("MatMulBnb4", {"x": X},
                                       {"w": of_bytes("uint8", 10 * WIDE // 2), "largest": positive(15) * 50}, 1,
                                       {"K": WIDE, "N": 10, "block_size": 16, "quant_type": 0}),
    "product of normal floats of four bits": ("MatMulBnb4", {"x": X},
                                              {"w": of_bytes("uint8", 10 * WIDE // 2), "largest": positive(15) * 50}, 1,
                                              {"K": WIDE, "N": 10, "block_size": 16, "quant_type": 1}),
    "rows of a table of four bits": ("GatherBlockQuantized", {"ids": IDS},
                                     {"w": of_bytes("uint8", 9, 24), "scales": positive(9, 3) * 9}, 1,
                                     BITS | {"order": ["w", "ids", "scales"]}),
    "rows of a table of four bits with zero points": ("GatherBlockQuantized", {"ids": IDS},
                                                      {"w": of_bytes("uint8", 9, 24), "scales": positive(9, 3) * 9,
                                                       "zeros": of_bytes("uint8", 9, 2)}, 1,
                                                      BITS | {"order": ["w", "ids", "scales", "zeros"]}),
    "rows of a table of eight bits": ("GatherBlockQuantized", {"ids": IDS},
                                      {"w": of_bytes("uint8", 9, 48), "scales": positive(9, 3)}, 1,
                                      BITS | {"bits": 8, "order": ["w", "ids", "scales"]}),
    "quantised tensors joined": ("QLinearConcat", {"x": CODES["a"], "y": of_bytes("uint8", 3, WIDE)},
                                 {"s": positive(1)[0], "z": np.uint8(9), "sx": positive(1)[0], "zx": np.uint8(5),
                                  "sy": positive(1)[0] * 2, "zy": np.uint8(7)}, 1,
                                 {"axis": 0, "order": ["s", "z", "x", "sx", "zx", "y", "sy", "zy"]}),
    "choice of quantised tensors": ("QLinearWhere",
                                    {"c": CODES["a"] > 99, "x": CODES["a"], "y": of_bytes("uint8", 1, WIDE)},
                                    {"s": positive(1)[0], "z": np.uint8(9), "sx": positive(1)[0], "zx": np.uint8(5),
                                     "sy": positive(1)[0] * 2, "zy": np.uint8(7)}, 1,
                                    {"order": ["c", "x", "sx", "zx", "y", "sy", "zy", "s", "z"]}),
    "quantised embeddings": ("QEmbedLayerNormalization",
                             {"ids": random.integers(0, 9, (BATCH, ROWS)).astype("int32"),
                              "kinds": random.integers(0, 2, (BATCH, ROWS)).astype("int32")},
                             {name: of_bytes("uint8", *shape) for name, shape in TABLES.items()} | {"mask": KEEPS}
                             | {f"s{i}": positive(1)[0] for i in range(5)} | {f"z{i}": np.uint8(99) for i in range(5)},
                             2, {"epsilon": 1e-5}),
    "product of columns of one scale": ("MatMulIntegerToFloat", CODES,
                                        {"sa": positive(1)[0], "sb": positive(1)[0], "za": np.uint8(7),
                                         "zb": of_bytes("int8", 16)}, 1, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [12, 17, 20])
def test_an_operator_is_written_as_others_that_compute_the_same(case: str, opset: int) -> None:
    of_columns = CASES[case][0] == "MatMulIntegerToFloat"  # whose scales are of columns, from opset 13 on
    check_written(CASES[case], 13 if of_columns and opset == 12 else opset)


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

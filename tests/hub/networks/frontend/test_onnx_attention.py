"""Attention of ONNX Runtime's own: written as ONNX's operators, it computes what ONNX Runtime computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx_kit import FLOAT, INT64, Info, model, node
from relax_kit import compute, prepare
from runtime_kit import OWN, Case, check_written, model_of, numbers, of_bytes, positive, random, run
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.frontend.onnx_file import reference_module
from tchub.hub.networks.frontend.onnx_fold import folded
from tchub.hub.networks.sources import open_network

BATCH, ROWS, WIDE, HEADS = 2, 5, 24, 3
X = numbers(BATCH, ROWS, WIDE)
PRODUCT = {"weights": numbers(WIDE, 3 * WIDE), "bias": numbers(3 * WIDE)}
LENGTHS = np.array([3, ROWS], np.int32)
KEEPS = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
CUBE = np.array([[[int(term <= row) for term in range(ROWS)] for row in range(ROWS)]] * BATCH, np.int32)
QKV = {"q": X, "k": numbers(BATCH, 7, WIDE), "v": numbers(BATCH, 7, WIDE)}
NONE = np.zeros(0, np.float32)

CASES: dict[str, Case] = {
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


@pytest.mark.parametrize("opset", [12, 20])
@pytest.mark.parametrize("case", CASES)
def test_attention_is_written_as_operators_that_compute_the_same(case: str, opset: int) -> None:
    check_written(CASES[case], opset)


SHARED, NUMBERS, FIRST = 2, 16, 4
"""Heads of keys and values, the numbers of each, and how many rows were before."""
QUERIES, KEYS = numbers(BATCH, ROWS, 4 * NUMBERS), numbers(BATCH, ROWS, SHARED * NUMBERS)
ANGLES = {"cosines": numbers(16, NUMBERS // 2), "sines": numbers(16, NUMBERS // 2)}


def grouped(
    rows: int, before: int, lengths: Sequence[int], turned: bool = False, packed: bool = False, **facts: Any
) -> Case:
    """A case of keys behind others; `lengths` counts what is valid of each sequence, of `before + rows`."""
    batch = len(lengths)
    past = {name: numbers(batch, SHARED, before, NUMBERS) for name in ("past", "past values")}
    parts = {"q": QUERIES[:batch, :rows], "k": KEYS[:batch, :rows], "v": KEYS[:batch, ::-1][:, :rows]}
    if packed:
        parts = {"q": np.concatenate(list(parts.values()), axis=2)}
    given = parts | ({"-k": NONE, "-v": NONE} if packed else {}) | past
    weights = {"ends": np.array(lengths, np.int32) - 1, "total": np.array(before + rows, np.int32)}
    facts = {"num_heads": 4, "kv_num_heads": SHARED, "do_rotary": int(turned)} | facts
    return "GroupQueryAttention", given, weights | (ANGLES if turned else {}), 3, facts


GROUPED = {
    "a prompt": grouped(ROWS, 0, [ROWS, ROWS]),
    "a prompt with rotated positions": grouped(ROWS, 0, [ROWS, ROWS], turned=True),
    "a step": grouped(1, FIRST, [FIRST + 1, FIRST + 1], turned=True),
    "a step behind several lengths": grouped(1, FIRST, [FIRST - 1, FIRST + 1], turned=True),
    "several steps": grouped(3, FIRST, [FIRST + 3], turned=True),
    "several steps behind less than there may be": grouped(3, FIRST, [FIRST + 1], turned=True),
    "neighbours are turned": grouped(ROWS, 0, [ROWS, ROWS], turned=True, rotary_interleaved=1),
    "one tensor of queries, keys and values": grouped(1, FIRST, [FIRST + 1, FIRST + 1], turned=True, packed=True),
    "a window": grouped(3, FIRST, [FIRST + 3], local_window_size=3),
    "a bound of scores, and a scale": grouped(ROWS, 0, [ROWS, ROWS], softcap=2.0, scale=0.3),
}


@pytest.mark.parametrize("case", GROUPED)
def test_heads_of_queries_share_keys_and_values_that_follow_earlier_ones(case: str) -> None:
    check_written(GROUPED[case], 17)


def test_what_is_behind_the_end_of_a_prompt_is_not_attended_to() -> None:
    """Its own rows are not defined: ONNX Runtime reads what nobody wrote."""
    operator, given, weights, outputs, facts = grouped(ROWS, 0, [3, ROWS], turned=True)
    proto = model_of(operator, given, weights, outputs, 17, OWN, **facts)
    ours, theirs = (run(one, given)[0] for one in (folded(proto, {n: x.shape for n, x in given.items()}, "net"), proto))
    np.testing.assert_allclose(ours[0, :3], theirs[0, :3], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("at", ["by heads", "by columns", "from the first row"])
def test_positions_turn_pairs_of_numbers(at: str) -> None:
    x = QUERIES.reshape(BATCH, ROWS, 4, NUMBERS).transpose(0, 2, 1, 3) if at == "by heads" else QUERIES
    positions = np.array([7]) if at == "from the first row" else random.integers(0, 16, (BATCH, ROWS))
    check_written(
        ("RotaryEmbedding", {"x": x, "at": positions}, ANGLES, 1, {"interleaved": int(at == "by columns")}), 17
    )


def decoder(path: Path) -> None:
    """Save a layer as exporters of decoders write it, whose lengths are the sums of a mask."""
    cache = ["batch", SHARED, "past", NUMBERS]
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        *(node("MatMul", ["x", f"w{part}"], [part]) for part in "qkv"),
        node("ReduceSum", ["mask", "last"], ["sums"], keepdims=0),
        node("Sub", ["sums", "one"], ["ends"]),
        node("Cast", ["ends"], ["lengths"], to=TensorProto.INT32),
        node("Shape", ["mask"], ["sizes"]),
        node("Gather", ["sizes", "one"], ["length"]),
        node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        node("GroupQueryAttention", [*"qkv", "keys", "values", "lengths", "total", *ANGLES], ["a", "k2", "v2"],
             domain=OWN, num_heads=4, kv_num_heads=SHARED, do_rotary=1),
        node("MatMul", ["a", "out"], ["y"]),
    ]  # fmt: skip
    inputs = [Info(name, INT64, ["batch", rows]) for name, rows in (("ids", "rows"), ("mask", "total"))]
    inputs += [Info(name, FLOAT, cache) for name in ("keys", "values")]
    weights = {"wq": numbers(WIDE, 4 * NUMBERS), "wk": numbers(WIDE, 32), "wv": numbers(WIDE, 32)}
    weights |= {"table": numbers(50, WIDE), "out": numbers(4 * NUMBERS, 9)} | ANGLES
    small = {"last": np.array([-1]), "one": np.array(1)}
    onnx.save(model(nodes, {"y": 3, "k2": 4, "v2": 4}, inputs=inputs, **weights, **small), path)


@pytest.mark.parametrize(("rows", "past"), [(1, 6), (4, 0)], ids=["a step", "a prompt"])
def test_a_layer_of_a_decoder_is_imported(tmp_path: Path, rows: int, past: int) -> None:
    decoder(tmp_path / "net.onnx")
    shapes = {"batch": [BATCH], "rows": [rows], "past": [past], "total": [past + rows]}
    network = open_network(tmp_path / "net.onnx", shapes=shapes)
    inputs = network.inputs()
    assert bool((inputs[1] == 1).all()), "else rows would not be defined"
    assert inputs[0].max() > 2, "rows of the table"
    results = compute(prepare(network.imported()), *inputs)
    for ours, theirs in zip(results, reference_module(tmp_path / "net.onnx")(*inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_total_length_that_does_not_fit_is_refused_with_the_one_that_does(tmp_path: Path) -> None:
    decoder(tmp_path / "net.onnx")
    network = open_network(tmp_path / "net.onnx", shapes={"batch": [1], "rows": [1], "past": [6], "total": [9]})
    with pytest.raises(
        NetworkImportError, match="total length is 9 of attention to 6 earlier keys and 1 new"
    ) as caught:
        network.imported()
    assert "so that it is 7" in caught.value.remedy

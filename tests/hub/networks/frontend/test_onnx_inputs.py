"""Example inputs of ONNX files: what an output check can say something by, whatever an exporter wrote them as."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from onnx_kit import FLOAT, INT64, Info, model, node
from tchub.hub.networks.frontend.onnx_file import reference_module
from tchub.hub.networks.rivals import ReferenceNetwork, arrays
from tchub.hub.networks.sources import open_network

TABLE = np.random.default_rng(0).standard_normal((50, 4)).astype("float32")
CLASSES = np.arange(50).reshape(1, 1, 50)
BATCH, STEPS = 3, 40


def inputs_of(
    tmp_path: Path, nodes: Sequence[Any], inputs: Sequence[Any], free: bool = True, **constants: Any
) -> list[np.ndarray]:
    """Return the example inputs of a model, which ONNX Runtime takes."""
    path = tmp_path / "net.onnx"
    onnx.save(model(nodes, {"y": 3}, inputs=inputs, **constants), path)
    sizes = {"batch": [BATCH], "steps": [STEPS]}
    network = open_network(path, shapes=sizes if free else None)
    inputs = network.inputs()
    assert all(result.isfinite().all() for result in reference_module(path)(*inputs))
    return [x.numpy() for x in inputs]


@pytest.mark.parametrize("kind", [FLOAT, INT64])
def test_numbers_that_choose_rows_are_of_the_table_also_as_reals(tmp_path: Path, kind: int) -> None:
    """As Keras has them, whose models take everything as float32."""
    nodes = [node("Cast", ["x"], ["ids"], to=INT64), node("Gather", ["table", "ids"], ["y"])]
    (x,) = inputs_of(tmp_path, nodes, [Info("x", kind, ["batch", "steps"])], table=TABLE)
    assert x.dtype == ("float32" if kind == FLOAT else "int64")
    assert (x.min() >= 0, x.max() < 50, len(np.unique(x)) > 20) == (True, True, True)


def test_numbers_that_are_compared_with_each_class_are_classes(tmp_path: Path) -> None:
    """As JAX writes `one_hot`; with zeros and ones alone all samples would be alike."""
    nodes = [
        node("Unsqueeze", ["x", "last"], ["ids"]),
        node("Equal", ["ids", "classes"], ["same"]),
        node("Cast", ["same"], ["real"], to=FLOAT),
        node("MatMul", ["real", "table"], ["y"]),
    ]
    constants = {"last": np.array([-1]), "classes": CLASSES, "table": TABLE}
    (x,) = inputs_of(tmp_path, nodes, [Info("x", INT64, ["batch", "steps"])], **constants)
    assert (x.min() >= 0, x.max() < 50, len(np.unique(x)) > 20) == (True, True, True)


@pytest.mark.parametrize("free", [True, False], ids=["free sizes", "fixed sizes"])
def test_a_mask_stays_one_and_lengths_are_those_of_sequences(tmp_path: Path, free: bool) -> None:
    """Of lengths 0 and 1 a network would see next to nothing."""
    nodes = [
        node("Range", ["zero", "steps", "one"], ["order"]),
        node("Unsqueeze", ["lengths", "last"], ["column"]),
        node("Less", ["order", "column"], ["inside"]),
        node("Equal", ["mask", "one"], ["kept"]),
        node("And", ["inside", "kept"], ["both"]),
        node("Cast", ["both"], ["real"], to=FLOAT),
        node("Unsqueeze", ["real", "last"], ["y"]),
    ]
    batch, steps = ("batch", "steps") if free else (BATCH, STEPS)
    inputs = [Info("mask", INT64, [batch, steps]), Info("lengths", INT64, [batch])]
    inputs += [Info("speaker", FLOAT, [batch, 5])] * free  # which has no steps
    constants = {"zero": np.int64(0), "one": np.int64(1), "steps": np.int64(STEPS), "last": np.array([-1])}
    mask, lengths, *_ = inputs_of(tmp_path, nodes, inputs, free, **constants)
    assert set(np.unique(mask)) == {0, 1}
    assert lengths[0] == STEPS
    assert (lengths.min() >= STEPS / 2, lengths.max() <= STEPS) == (True, True)


IDS, IMAGE_OF_BYTES = Info("x", INT64, [64]), Info("x", TensorProto.UINT8, [64, 1])
FROM_INTEGERS: dict[str, tuple[Any, Sequence[Any]]] = {
    "rows of a table": (IDS, [node("Gather", ["table", "x"], ["r"])]),
    "rows of a table of 8 bits": (
        IDS,
        [node("Gather", ["codes", "x"], ["row"]), node("DequantizeLinear", ["row", "s"], ["r"])],
    ),
    "rows of a table that is read from 8 bits": (
        IDS,
        [node("DequantizeLinear", ["codes", "s"], ["t"]), node("Gather", ["t", "x"], ["r"])],
    ),
    "an image of bytes": (
        IMAGE_OF_BYTES,
        [node("Transpose", ["x"], ["t"]), node("Cast", ["t"], ["b"], to=FLOAT), node("Mul", ["b", "s"], ["r"])],
    ),
}


@pytest.mark.parametrize(("given", "nodes"), FROM_INTEGERS.values(), ids=FROM_INTEGERS)
def test_integers_move_by_what_the_network_makes_of_them(tmp_path: Path, given: Any, nodes: Sequence[Any]) -> None:
    """Which says of a quantised network how far its output moves where a code does."""
    proto = model(
        [*nodes, node("Mul", ["r", "large"], ["y"])],
        {"y": 2},
        inputs=[given],
        table=TABLE,
        codes=np.arange(100, dtype="int8").reshape(50, 2),
        s=np.float32(0.01),
        large=np.float32(1000),
    )
    onnx.save(proto, tmp_path / "net.onnx")
    inputs = open_network(tmp_path / "net.onnx").inputs()
    if given is IMAGE_OF_BYTES:
        inputs = [torch.arange(64, dtype=torch.uint8).reshape(64, 1)]
    torch.save(inputs, tmp_path / "inputs.pt")
    reference = ReferenceNetwork({"reference": str(tmp_path / "net.onnx"), "inputs": str(tmp_path / "inputs.pt")})
    (right,) = arrays(reference.run())
    moves = np.stack([moved[0] - right for moved in reference.shaken()])
    assert (moves[0] != moves[1]).any()
    assert 1e-5 < np.abs(moves).max() / np.abs(right).max() < 3e-4
    assert (moves[:, right == 0] == 0).all()


def test_masks_and_positions_do_not_move(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], ["mask"], to=FLOAT),
        node("Cast", ["ids"], ["real"], to=FLOAT),
        node("Add", ["mask", "real"], ["y"]),
    ]
    given = [Info("x", TensorProto.UINT8, [8]), Info("ids", INT64, [8])]
    onnx.save(model(nodes, {"y": 1}, inputs=given), tmp_path / "net.onnx")
    torch.save([torch.arange(8).to(torch.uint8) % 2, torch.arange(8)], tmp_path / "inputs.pt")
    reference = ReferenceNetwork({"reference": str(tmp_path / "net.onnx"), "inputs": str(tmp_path / "inputs.pt")})
    (right,) = arrays(reference.run())
    assert all((moved == right).all() for (moved,) in reference.shaken())

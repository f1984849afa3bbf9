"""Example inputs of ONNX files: what an output check can say something by, whatever an exporter wrote them as."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_kit import FLOAT, INT64, Info, model, node
from tchub.hub.networks.frontend.onnx_file import reference_module
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

"""Read an ONNX model with care: data outside of its folder, sizes that no memory holds, operators that TVM lacks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from ...zoo.errors import last_line
from .errors import NetworkImportError

COPIES = 3
"""Weights are in memory as ONNX's, as TVM's constants and in the library that is written."""


def load_onnx(path: Path) -> Any:
    """Read an ONNX file and the weights beside it.

    Raises:
        NetworkImportError: `onnx` is not installed; the file is damaged, refers to data outside of its folder, or needs
            more memory than the machine has; or TVM lacks one of its operators.
    """
    try:
        import onnx
    except ImportError:
        raise NetworkImportError(
            "reading ONNX files needs the package onnx", remedy="pip install 'tchub[onnx]'", path=str(path)
        ) from None
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf has errors of its own
        raise NetworkImportError(
            f"{path} is no ONNX file, or is cut short: {last_line(error)}", remedy="export it again", path=str(path)
        ) from error
    tensors = list(tensors_of(model))
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(path, tensor)
    _check_memory(path, tensors)
    try:
        onnx.checker.check_model(str(path))
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:
        raise NetworkImportError(
            f"{path} is no valid ONNX model: {last_line(error)}", remedy="export it again", path=str(path)
        ) from error
    _check_operators(path, model)
    return model


def graphs_of(model: Any) -> Iterator[Any]:
    """Yield the graph of an ONNX model, its functions, and the graphs in the branches and loops of both."""
    pending = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for attribute in _attributes(graph):
            pending += [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]


def tensors_of(model: Any) -> Iterator[Any]:
    """Yield every tensor that a model holds."""
    for graph in graphs_of(model):
        yield from getattr(graph, "initializer", ())  # a function has none
        for sparse in getattr(graph, "sparse_initializer", ()):
            yield from (sparse.values, sparse.indices)
        for attribute in _attributes(graph):
            yield from [*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])]


def _attributes(graph: Any) -> Iterator[Any]:
    return (attribute for node in graph.node for attribute in node.attribute)


def _check_external(path: Path, tensor: Any) -> None:
    """The file of a weight lies below the model's folder, links followed, and has the bytes that are asked for."""
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location = facts.get("location", "")
    folder = path.parent.resolve()
    data = (folder / location).resolve()
    absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
    if not location or absolute or ".." in PureWindowsPath(location).parts or not data.is_relative_to(folder):
        raise NetworkImportError(
            f"{path} reads data outside of its folder: the weight {tensor.name!r} is in {location!r}",
            remedy="take the file from a source that you trust, with its data beside it",
            path=str(path),
            location=location,
        )
    if not data.is_file():
        raise NetworkImportError(
            f"{path} lacks its data: there is no file {location!r} beside it",
            remedy="copy the file with the weights too",
            path=str(path),
            location=location,
        )
    wanted = [facts.get(key, "0") for key in ("offset", "length")]
    if not all(text.isdecimal() for text in wanted) or sum(map(int, wanted)) > data.stat().st_size:
        raise NetworkImportError(
            f"{path} is damaged: the weight {tensor.name!r} lies beyond the end of {location!r}",
            remedy="export it again",
            path=str(path),
        )


def _check_memory(path: Path, tensors: list[Any]) -> None:
    size = sum(4 * prod(tensor.dims) for tensor in tensors)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if any(n < 0 for tensor in tensors for n in tensor.dims) or COPIES * size > memory:
        raise NetworkImportError(
            f"{path} has weights of {size / 1e9:.3g} GB, which take {COPIES * size / 1e9:.3g} GB of memory while they "
            f"are compiled; this machine has {memory / 1e9:.3g}",
            remedy="take a smaller network, or a machine with more memory",
            path=str(path),
        )


def _check_operators(path: Path, model: Any) -> None:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    known = {*_get_convert_map(), "If"} - {None}
    functions = {(function.domain, function.name) for function in model.functions}
    for node in (node for graph in graphs_of(model) for node in graph.node):
        if (node.domain, node.op_type) not in functions and (
            node.op_type not in known or node.domain not in ("", "ai.onnx")
        ):
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise NetworkImportError(
                f"TVM has no operator {operator}: node {node.name or node.output[0]!r} of {path}",
                remedy="export the network with other operators, e.g. another opset, or from PyTorch as .pt2",
                path=str(path),
                operator=operator,
                node=node.name or node.output[0],
            )

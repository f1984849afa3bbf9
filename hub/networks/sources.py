"""Open what `tune` takes: a reference network, a `.pt2` or `.onnx` file, a transformers config, or a module."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import Module

from .errors import NetworkImportError, NetworkLoadError, file_error, reading
from .frontend.exported_file import from_exported, from_torch, load_exported
from .frontend.network import Network
from .frontend.onnx_file import read_onnx
from .frontend.shapes import Shapes, choices
from .frontend.transformers_config import read_config
from .weights import weights_on_disk
from .workloads import load_network

_SUFFIXES = (".pt2", ".onnx", ".json")


def open_network(
    source: str | Path | Network | Module | ExportedProgram,
    example_inputs: Sequence[Any] | Tensor | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    shapes: Shapes | None = None,
) -> Network:
    """Open a network by name, from a file, or from PyTorch.

    Args:
        source: a name of `zoo.corpus.workloads.NETWORKS`; a `.pt2` file of `torch.export.save`; an `.onnx`
            file; a transformers `config.json`, or the folder that holds one (weights are random unless the folder
            holds `model.safetensors`: latency does not depend on them); a `torch.nn.Module`, which is exported in
            inference mode and left as it is; or a `torch.export.ExportedProgram`.
        example_inputs: of a module: its positional arguments, or the only one.
        example_kwargs: of a module: its arguments by name.
        name: of a module or a program in reports; None for the name of the module's class, or `network`.
        shapes: sizes to tune at where the shapes are dynamic, e.g. `{"batch": [1, 8]}`; see `Network.variants`.

    Raises:
        NetworkLoadError: neither a known name nor a file.
        NetworkImportError: the file cannot be read, or is of no known kind; PyTorch cannot export the module, or its
            example inputs are missing.
    """
    if not isinstance(source, str | Path | Network):
        return from_torch(source, example_inputs, example_kwargs, name, shapes)
    if example_inputs is not None or example_kwargs is not None:
        raise NetworkImportError(
            "example inputs go with a torch.nn.Module alone: a network by name or from a file has its own",
            remedy="leave them out; a checkpoint is given by name: checkpoint='tcl-epyc'",
        )
    if not isinstance(source, Network):
        path = Path(source)
        if (path / "config.json").is_file():
            path = path / "config.json"
        if path.is_file():
            with reading(path):
                match path.suffix.lower():
                    case ".pt2":
                        return from_exported(weights_on_disk(load_exported(path)), path.stem, shapes)
                    case ".onnx":
                        return read_onnx(path, shapes)
                    case ".json":
                        return read_config(path, shapes)
            remedy = f"give a name, or a file in {', '.join(_SUFFIXES)}"
            raise file_error(path, "is of no kind that can be tuned", remedy)
        if path.suffix in _SUFFIXES:
            raise NetworkLoadError(f"there is no file {path}", remedy="check the path", path=str(path))
        source = load_network(str(source))
    choices(source.name, [], shapes)  # its shapes are fixed
    return source

"""What `tchub tune` takes: a reference network's name, a `.pt2` or `.onnx` file, or a transformers config."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...zoo.errors import last_line
from .errors import NetworkImportError, UnknownNetworkError
from .network import Network, load_network

if TYPE_CHECKING:
    import torch

DEFAULT_TOKENS = 128
DEFAULT_PIXELS = 224


def open_network(source: str | Path | Network) -> Network:
    """A network by name or from a file.

    Args:
        source: a name of `zoo.corpus.workloads.NETWORKS`; a `.pt2` file of `torch.export.save`; an `.onnx`
            file; a transformers `config.json`, or the folder that holds one (weights are random: latency
            does not depend on them).

    Raises:
        UnknownNetworkError: neither a known name nor a file.
        NetworkImportError: the file cannot be read, or is of no known kind.
    """
    if isinstance(source, Network):
        return source
    path = Path(source)
    if (path / "config.json").is_file():
        path = path / "config.json"
    if path.is_file():
        return _open_file(path)
    if path.suffix in _READERS:
        raise UnknownNetworkError(f"there is no file {path}", remedy="check the path", path=str(path))
    return load_network(str(source))


def _open_file(path: Path) -> Network:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise NetworkImportError(
            f"{path} is of no kind that can be tuned",
            remedy=f"give a name, or a file that ends in {', '.join(_READERS)}",
            path=str(path),
        )
    try:
        return reader(path)
    except NetworkImportError:
        raise
    except Exception as error:
        raise NetworkImportError(
            f"{path} cannot be read: {last_line(error)}",
            remedy="export it again with the installed versions of PyTorch, transformers and ONNX",
            path=str(path),
        ) from error


def _read_pt2(path: Path) -> Network:
    import torch

    exported = torch.export.load(path)
    complaint = _complaint(exported)
    if complaint is not None:
        what, remedy = complaint
        raise NetworkImportError(f"{path} {what}", remedy=remedy, path=str(path))
    return Network(path.stem, lambda: exported, lambda: _inputs_of(exported), "pt2")


def _complaint(exported: Any) -> tuple[str, str] | None:
    """Why a program cannot be called with tensors one by one, or its output not be checked, and the remedy; or None."""
    import torch

    positional, named = exported.example_inputs or ((), {})
    signature = exported.graph_signature
    if named:
        return (
            f"takes inputs by name: {', '.join(named)}",
            "export it with positional inputs: torch.export.export(model, (x, y))",
        )
    if odd := [type(value).__name__ for value in positional if not isinstance(value, torch.Tensor)]:
        return (
            f"takes inputs that are no tensors: {', '.join(odd)}",
            "set numbers in the module before it is exported, and take each tensor of a list as an input of its own",
        )
    if not all(isinstance(d, int) for meta in _described(exported, signature.user_inputs) for d in meta.shape):
        return "has dynamic shapes", "export it with fixed shapes"
    metas = _described(exported, [*signature.user_inputs, *signature.user_outputs])
    if torch.bfloat16 in (getattr(meta, "dtype", None) for meta in metas):  # TVM's output would have another type
        return "takes or gives bfloat16", "export it in float32"
    return None


def _described(exported: Any, names: Sequence[Any]) -> list[Any]:
    """Shape and data type of the inputs or outputs of these names, as PyTorch's tensors without data."""
    return [node.meta["val"] for node in exported.graph.nodes if node.name in names]


def _inputs_of(exported: Any) -> tuple[torch.Tensor, ...]:
    """The example inputs that were saved, else seeded ones of the same shapes."""
    import torch

    if exported.example_inputs is not None:
        return tuple(exported.example_inputs[0])
    generator = torch.Generator().manual_seed(0)
    return tuple(
        torch.randn(*meta.shape, generator=generator, dtype=meta.dtype)
        if meta.dtype.is_floating_point
        else torch.zeros(*meta.shape, dtype=meta.dtype)
        for meta in _described(exported, exported.graph_signature.user_inputs)
    )


def _read_config(path: Path) -> Network:
    """A transformers model with random weights, batch 1."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise NetworkImportError(
            f"{path} is no transformers configuration: it has no model_type",
            remedy="give the config.json of a transformers model",
            path=str(path),
        )
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem

    def export() -> Any:
        import torch

        module, inputs = _build(fields)
        with torch.no_grad():
            return torch.export.export(module, inputs)

    return Network(name, export, lambda: _build(fields)[1], "transformers")


def _build(fields: dict[str, Any]) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    import torch
    import transformers

    class FirstOutput(torch.nn.Module):
        """Calls the model with its main input and returns its first output."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.main = model.main_input_name

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(**{self.main: x}, return_dict=False)[0]

    options = {key: value for key, value in fields.items() if key not in ("model_type", "torch_dtype", "dtype")}
    config = transformers.AutoConfig.for_model(fields["model_type"], **options)
    config._attn_implementation = "eager"  # plain matmul and softmax, which TVM can tune
    config.use_cache = False
    torch.manual_seed(0)
    named = getattr(transformers, (fields.get("architectures") or [""])[0], None)
    model = named(config) if named else transformers.AutoModel.from_config(config)
    return FirstOutput(model.float()).eval(), (_main_input(model.main_input_name, config),)


def _main_input(kind: str, config: Any) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(0)
    if kind == "input_ids":
        length = min(DEFAULT_TOKENS, getattr(config, "max_position_embeddings", None) or DEFAULT_TOKENS)
        return torch.randint(0, config.vocab_size, (1, length), generator=generator)
    if kind == "pixel_values":
        size = getattr(config, "image_size", None) or DEFAULT_PIXELS
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return torch.randn(1, getattr(config, "num_channels", 3), height, width, generator=generator)
    raise NetworkImportError(
        f"the model takes {kind}, whose shape the configuration does not tell",
        remedy="export it with torch.export.save and give the .pt2 file",
        main_input=kind,
    )


def _read_onnx(path: Path) -> Network:
    from .onnx_file import read_onnx

    return read_onnx(path)


_READERS = {".pt2": _read_pt2, ".onnx": _read_onnx, ".json": _read_config}

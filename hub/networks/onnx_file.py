"""ONNX files as networks: TVM's own importer, and ONNX's reference evaluator for the output check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import NetworkImportError
from .network import Network, refused
from .shapes import Shapes
from .signature import Signature

if TYPE_CHECKING:
    import torch
    from tvm import IRModule


@dataclass(frozen=True)
class OnnxNetwork(Network):
    """A network from an ONNX file; it has no exported program.

    Attributes:
        path: the file.
    """

    path: Path = Path()

    def module(self) -> torch.nn.Module:
        """The network as a module that asks ONNX's reference evaluator (NumPy: right, and slow)."""
        return reference_module(self.path)

    def imported(self) -> IRModule:
        """Return the network as Relax operators, weights as constants; its function takes the inputs one by one."""
        from tvm.relax.frontend.onnx import from_onnx

        shapes = {name: list(shape) for name, shape, _ in _inputs(_load(self.path))}
        with refused(self.name, "import"):
            return from_onnx(_load(self.path), shape_dict=shapes, keep_params_in_input=False)

    def signature(self) -> Signature:
        """Return how the network is called: with tensors by position or by name."""
        model = _load(self.path)
        names = [name for name, _, _ in _inputs(model)]
        return Signature.of_function(self.imported()["main"], names, [output.name for output in model.graph.output])


def reference_module(path: Path) -> torch.nn.Module:
    """ONNX's reference evaluator as a PyTorch module."""
    import torch
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(path))

    class Reference(torch.nn.Module):
        """Runs the evaluator on the inputs in the file's order."""

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            named = {str(name): x.numpy() for name, x in zip(evaluator.input_names, inputs, strict=True)}
            return tuple(torch.as_tensor(out) for out in evaluator.run(None, named))

    return Reference()


def read_onnx(path: Path, shapes: Shapes | None = None) -> OnnxNetwork:
    """A network from an ONNX file.

    Raises:
        NetworkImportError: `onnx` is not installed, the file is damaged, or a shape is not fixed.
    """
    found = _inputs(_load(path))

    def refuse() -> Any:
        raise NetworkImportError(f"{path} has no PyTorch form", remedy="use its module() or relax_module()")

    return OnnxNetwork(path.stem, refuse, lambda: _example(found), "onnx", path=path)


def _load(path: Path) -> Any:
    try:
        import onnx
    except ImportError:
        raise NetworkImportError(
            "reading ONNX files needs the package onnx", remedy="pip install 'tchub[onnx]'", path=str(path)
        ) from None
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    return model


def _inputs(model: Any) -> list[tuple[str, tuple[int, ...], Any]]:
    """Name, shape and NumPy type of each input that is not a weight."""
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    found = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = tuple(d.dim_value for d in tensor.shape.dim)
        if not all(shape):
            raise NetworkImportError(
                f"input {value.name} has no fixed shape",
                remedy="fix it with onnx.tools.update_model_dims, or export with fixed shapes",
                input=value.name,
            )
        found.append((value.name, shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    return found


def _example(inputs: list[tuple[str, tuple[int, ...], Any]]) -> tuple[torch.Tensor, ...]:
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    return tuple(
        torch.from_numpy(
            rng.standard_normal(shape).astype(dtype) if np.issubdtype(dtype, np.floating) else np.zeros(shape, dtype)
        )
        for _, shape, dtype in inputs
    )

"""ONNX files as networks: TVM's own importer, and ONNX Runtime or ONNX's reference evaluator for the output check."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import NetworkImportError
from .network import Network, refused
from .onnx_model import graphs_of, load_onnx
from .precision import onnx_in_float32, precision_notes
from .shapes import FreeSize, Shapes, choices, label
from .signature import Signature

if TYPE_CHECKING:
    import numpy as np
    import torch
    from tvm import IRModule

_TYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "bfloat16")


@dataclass(frozen=True)
class OnnxInput:
    """An input of an ONNX file that is not a weight.

    Attributes:
        name: as the file has it.
        shape: sizes; a text for one that is free.
        dtype: NumPy's.
        rows: of the table that it is an index of, where that can be told; 2 else.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any]
    rows: int

    def fixed(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Shape at these sizes."""
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)

    def example(self, sizes: dict[str, int], rng: np.random.Generator) -> np.ndarray:
        """Random values: normal, of the table's rows, or true and false."""
        import numpy as np

        shape = self.fixed(sizes)
        if np.issubdtype(self.dtype, np.integer):
            return rng.integers(0, self.rows, shape).astype(self.dtype)
        return (
            rng.integers(0, 2, shape).astype(bool)
            if self.dtype == bool
            else rng.standard_normal(shape).astype(self.dtype)
        )


@dataclass(frozen=True)
class OnnxNetwork(Network):
    """A network from an ONNX file; it has no exported program.

    Attributes:
        path: the file.
        sizes: its free sizes, by name.
    """

    path: Path = Path()
    sizes: dict[str, int] = field(default_factory=dict)

    def module(self) -> torch.nn.Module:
        """The network as a module that asks ONNX Runtime, or ONNX's reference evaluator (NumPy: right, and slow)."""
        return reference_module(self.path)

    def imported(self) -> IRModule:
        """Return the network as Relax operators, weights as constants; its function takes the inputs one by one."""
        from tvm.relax.frontend.onnx import from_onnx

        model = load_onnx(self.path)
        onnx_in_float32(model)
        shapes = {given.name: list(given.fixed(self.sizes)) for given in _inputs(model)}
        with refused(self.name, "import", self.where):
            return from_onnx(model, shape_dict=shapes, keep_params_in_input=False)

    def where(self, operator: str) -> str:
        """Say nothing: operators that TVM lacks are named with their node before the import."""
        return ""

    def signature(self) -> Signature:
        """Return how the network is called: with tensors by position or by name."""
        model = load_onnx(self.path)
        inputs, outputs = _inputs(model), model.graph.output
        names = [given.name for given in inputs], [output.name for output in outputs]
        computed = Signature.of_function(self.imported()["main"], *names)
        caller = [given.dtype.name for given in inputs], [_dtype(output).name for output in outputs]
        taken, returned = (
            tuple(replace(spec, dtype=dtype) for spec, dtype in zip(specs, dtypes, strict=True))
            for specs, dtypes in zip((computed.inputs, computed.outputs), caller, strict=True)
        )
        return replace(computed, inputs=taken, outputs=returned)


def reference_module(path: Path) -> torch.nn.Module:
    """Return an ONNX file as a PyTorch module: run by ONNX Runtime if that is installed, else by ONNX's evaluator."""
    import torch

    names, original = _reference(path)

    class ReferenceNetwork(torch.nn.Module):
        """Runs the original on the inputs in the file's order."""

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            named = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
            return tuple(torch.as_tensor(out) for out in original.run(None, named))

    return ReferenceNetwork()


def _reference(path: Path) -> tuple[list[str], Any]:
    """Names of the inputs, and what runs them: an object with `run(outputs, inputs)`."""
    model = load_onnx(path)
    half = onnx_in_float32(model)
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(model)
        return [str(name) for name in evaluator.input_names], evaluator
    source = model.SerializeToString() if half else str(path)  # a model with its weights may be too large for a text
    session = InferenceSession(source, providers=["CPUExecutionProvider"])
    return [given.name for given in session.get_inputs()], session


def read_onnx(path: Path, shapes: Shapes | None = None) -> OnnxNetwork:
    """Return the network of an ONNX file, with a variant for each choice of its free sizes.

    Args:
        path: of the file.
        shapes: sizes by `dim_param`, or by `INPUT.AXIS`; see `shapes.choices`.

    Raises:
        NetworkImportError: see `load_onnx`; or sizes are missing or wrong.
    """
    model = load_onnx(path)
    notes = precision_notes(onnx_in_float32(model))
    inputs = _inputs(model)
    free = _free_sizes(inputs)

    def refuse() -> Any:
        raise NetworkImportError(f"{path} has no PyTorch form", remedy="use its module() or relax_module()")

    def network(sizes: dict[str, int]) -> OnnxNetwork:
        name = label(path.stem, sizes, free, shapes)
        return OnnxNetwork(name, refuse, lambda: _examples(inputs, sizes), "onnx", notes=notes, path=path, sizes=sizes)

    results = [network(sizes) for sizes in choices(path.stem, free, shapes)]
    first = replace(results[0], name=path.stem)
    return replace(first, fixed=tuple(results)) if len(results) > 1 else first


def _inputs(model: Any) -> list[OnnxInput]:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    results = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        if not value.type.HasField("tensor_type"):
            raise NetworkImportError(
                f"input {value.name} is no tensor", remedy="export it with tensors as inputs", input=value.name
            )
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            raise NetworkImportError(
                f"input {value.name} has no shape",
                remedy="export it with the number of axes at least",
                input=value.name,
            )
        shape = [
            dim.dim_value if dim.dim_value > 0 else dim.dim_param or f"{value.name}.{axis}"
            for axis, dim in enumerate(tensor.shape.dim)
        ]
        dtype = _dtype(value)
        if dtype.name not in _TYPES:
            raise NetworkImportError(
                f"input {value.name} is of {dtype.name}, which is not supported",
                remedy=f"export it with inputs of {', '.join(_TYPES)}",
                input=value.name,
            )
        results.append(OnnxInput(value.name, tuple(shape), dtype, _rows(model, value.name, weights)))
    return results


def _dtype(value: Any) -> np.dtype[Any]:
    from onnx.helper import tensor_dtype_to_np_dtype

    return tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def _rows(model: Any, name: str, weights: dict[str, Any]) -> int:
    """Rows of the smallest table that the input is an index of."""
    tables = [
        weights[node.input[0]].dims[0]
        for graph in graphs_of(model)
        for node in graph.node
        if node.op_type == "Gather" and node.input[1] == name and node.input[0] in weights
    ]
    return min(tables, default=2)


def _free_sizes(inputs: list[OnnxInput]) -> list[FreeSize]:
    places: dict[str, list[tuple[str, int | None]]] = {}
    for given in inputs:
        for axis, size in enumerate(given.shape):
            if isinstance(size, str):
                places.setdefault(size, []).append((given.name, axis))
    return [FreeSize(name, tuple(where)) for name, where in places.items()]


def _examples(inputs: list[OnnxInput], sizes: dict[str, int]) -> tuple[torch.Tensor, ...]:
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    return tuple(torch.from_numpy(given.example(sizes, rng)) for given in inputs)

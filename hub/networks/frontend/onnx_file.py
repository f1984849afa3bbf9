"""ONNX files as networks: TVM's own importer, and ONNX Runtime for the output check."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import torch
from tvm import IRModule
from tvm.tirx import IntImm

from ....zoo.errors import last_line
from ..errors import NetworkImportError, file_error
from .exported_file import precision_notes
from .network import Network, at_sizes, check_memory, refused
from .onnx_fold import folded
from .onnx_graph import graphs_of, sort_nodes, tensors_of
from .onnx_inputs import dtype_of, examples, inputs_of, values_of, with_values
from .onnx_learned import LEARNED, without_strings
from .onnx_quantised import dequantise_layers
from .onnx_recurrent import RECURRENT_REMEDIES, imported, with_recurrences
from .onnx_runtime import RUNTIME, RUNTIME_REMEDY, exact_products, norms_apart, own_norms
from .shapes import FreeSize, Shapes
from .signature import Signature, TensorSpec

# Where an operator of a domain has no translation.
_REMEDIES = {
    f"{RUNTIME}.nchwc": "ONNX Runtime optimised the file for one CPU: take the one from before, or optimise it again "
    "with GraphOptimizationLevel.ORT_ENABLE_EXTENDED",
    LEARNED: "leave trees, kernel machines and strings to ONNX Runtime, and tune the network before or after them",
    RUNTIME: RUNTIME_REMEDY,
}
_MOST_IN_MEMORY = (1 << 31) - (1 << 20)  # bytes of a model that protobuf can write
_STATES = "states of quantised LSTM layers have 16 bits or more; ONNX Runtime rounds them to 8"
_BLOCKS = "weights of 2 to 8 bits in blocks become float32; on x86 products of up to four rows read 4 or 8 bits"
_IN_BLOCKS = frozenset(("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"))
# Operators whose results TVM gives as many rows as there may be, or a size that no task can have.
_SELECTING = ("Compress", "NonMaxSuppression", "NonZero")


@dataclass(frozen=True)
class OnnxNetwork(Network):
    """A network from an ONNX file; it has no exported program.

    Attributes:
        model: what it holds, in float32.
        switches: inputs that are one whole number or truth value, where the file has branches.
        values: of those that are fixed, and no inputs any more.
        taken: its inputs, as the caller sees them.
        returned: names and data types of its outputs.
    """

    path: Path = Path()
    model: Any = None
    switches: tuple[str, ...] = ()
    values: dict[str, int] = field(default_factory=dict)
    taken: tuple[TensorSpec, ...] = ()
    returned: dict[str, str] = field(default_factory=dict)

    def imported(self) -> IRModule:
        """Return the network as Relax operators, weights as constants; its function takes the inputs one by one."""
        shapes = {spec.name: list(spec.shape) for spec in self.taken}
        nodes = [node for graph in graphs_of(self.model) for node in graph.node if node.domain in _REMEDIES]
        remedies = {node.op_type: _REMEDIES[node.domain] for node in nodes} | RECURRENT_REMEDIES
        if remedy := self._branch_remedy():
            remedies[""] = remedy
        with refused(self.name, "import", self.where, remedies):
            model = with_recurrences(folded(self.model, shapes, self.name), shapes)
            for node in (node for graph in graphs_of(model) for node in graph.node):
                if node.op_type in _SELECTING:
                    raise self._unsized("operator", f"{node.op_type}, node {node.name or node.output[0]!r}")
            mod = imported(model, shapes)
        for name, type_ in zip(self.returned, _output_types(mod), strict=True):
            sizes: Any = getattr(type_, "shape", None)
            if sizes is None or not all(isinstance(size, IntImm) for size in sizes):
                raise self._unsized("output", name)
        return mod

    def _branch_remedy(self) -> str | None:
        """Return what helps where a branch that an input chooses cannot be imported, or None where there is none."""
        free = [name for name in self.switches if name not in self.values]
        return f"fix the input that chooses a branch, e.g. --shape {free[0]}=1" if free else None

    def _unsized(self, kind: str, where: str) -> NetworkImportError:
        return NetworkImportError(
            f"{self.name} has an {kind} whose size depends on the values of its inputs ({where}), and a compiled "
            "network has fixed sizes",
            remedy=(self._branch_remedy() if kind == "output" else None)
            or "export the part before it, or pad to the largest size instead of selecting",
            network=self.name,
        )

    def file(self, folder: Path) -> Path:
        """Return the path of the ONNX file, or of one in `folder` without the inputs that are fixed."""
        if not self.values:
            return self.path.resolve()
        import onnx

        path = folder / "network.onnx"
        outside = self.model.ByteSize() > _MOST_IN_MEMORY
        onnx.save(self.model, str(path), save_as_external_data=outside)
        if outside:  # which takes the weights out of the model
            onnx.load_external_data_for_model(self.model, str(folder))
        return path

    def where(self, operator: str) -> str:
        """Return the first node of an operator."""
        nodes = (node for graph in graphs_of(self.model) for node in graph.node if node.op_type == operator)
        return next((f"node {node.name or node.output[0]!r}" for node in nodes), "")

    def signature(self, imported: IRModule | None = None) -> Signature:
        """Return how the network is called: with tensors by position or by name."""
        shapes = [
            tuple(map(int, one.shape)) for one in _output_types(self.imported() if imported is None else imported)
        ]
        named = zip(self.returned.items(), shapes, strict=True)
        return Signature.of_tensors(self.taken, [TensorSpec(name, shape, dtype) for (name, dtype), shape in named])


def _output_types(mod: IRModule) -> list[Any]:
    result: Any = mod["main"].ret_ty
    return list(getattr(result, "fields", [result]))


def reference_module(path: Path, optimised: bool = True, shake: Callable[[Any], bool] | None = None) -> torch.nn.Module:
    """Return an ONNX file as a PyTorch module that ONNX Runtime runs on the inputs in the file's order.

    Args:
        optimised: False to run each operator alone, as the file has it. Quantised operators that are fused round at
            other places.
        shake: changes a model of less than 2 GB in place, and returns whether it did, see `shake_from_integers`.

    Raises:
        NetworkImportError: ONNX Runtime does not take the file.
    """
    model = load_onnx(path)
    changed = any([without_strings(model), onnx_in_float32(model), dequantise_layers(model)])
    if model.ByteSize() < _MOST_IN_MEMORY:
        changed |= exact_products(model)
        changed |= shake is not None and shake(model)
    source = model.SerializeToString() if changed else str(path)  # a large one is better read from disk
    import onnxruntime

    runtime: Any = onnxruntime  # of which pyright knows half
    options = runtime.SessionOptions()
    # More threads than cores of the process that compares, which has real-time priority, wait for each other for long.
    options.intra_op_num_threads = torch.get_num_threads()
    # As `exact_products` does for operators of the file: not to round what weights of 4 bits are multiplied by.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        original = runtime.InferenceSession(source, options, ["CPUExecutionProvider"])
    except Exception as error:  # of its own many kinds
        reason = " ".join(str(error).split())[:500]
        raise file_error(path, f"is no network that ONNX Runtime can run: {reason}") from error
    names = [one.name for one in inputs_of(model)]

    class OnnxReference(torch.nn.Module):
        input_names = names

        def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            named = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
            return tuple(torch.as_tensor(out) for out in original.run(None, named))

    return OnnxReference()


def read_onnx(path: Path, shapes: Shapes | None = None) -> Network:
    """Return the network of an ONNX file, with a variant for each choice of its free sizes.

    Args:
        shapes: sizes by `dim_param`, or by `INPUT.AXIS`; see `shapes.choices`. An integer or truth value that is an
            input, e.g. one that chooses a branch, becomes a constant where its name has one number here.

    Raises:
        NetworkImportError: see `load_onnx`; or sizes are missing or wrong.
    """
    model = load_onnx(path)
    cut = without_strings(model)
    inputs, returned = inputs_of(model), {output.name: dtype_of(output).name for output in model.graph.output}
    operators = {node.op_type for graph in graphs_of(model) for node in graph.node}
    quantised = any(part in name for part in ("Quantize", "QLinear", "QGemm", "Integer") for name in operators)
    in_8_bits = dequantise_layers(model)
    notes = (
        *precision_notes(onnx_in_float32(model), quantised),
        *[_STATES] * in_8_bits,
        *[_BLOCKS] * bool(operators & _IN_BLOCKS),
        *[f"maps of classes are tensors, and outputs of strings left out: {', '.join(cut)}"] * bool(cut),
    )
    axes = [(size, (given.name, axis)) for given in inputs for axis, size in enumerate(given.shape)]
    names = dict.fromkeys(size for size, _ in axes if isinstance(size, str))
    where = {name: tuple(axis for size, axis in axes if size == name) for name in names}
    pasts = {one.name for one in inputs if one.past}
    # Before the first step of a decoder there are no keys and values.
    free = [
        FreeSize(name, own, least=int(any(axis < 2 or one not in pasts for one, axis in own)))
        for name, own in where.items()
    ]
    values = values_of([one for one in inputs if one.is_switch and one.name not in names], shapes or {}, path.stem)
    if values:
        shapes, model = (
            {name: sizes for name, sizes in (shapes or {}).items() if name not in values},
            with_values(model, values),
        )
        notes = (*notes, f"fixed inputs: {', '.join(f'{name}={value}' for name, value in values.items())}")
    branches = any(node.op_type == "If" for graph in graphs_of(model) for node in graph.node)
    facts: dict[str, Any] = {"path": path, "model": model, "returned": returned, "notes": notes, "values": values}
    facts["switches"] = tuple(one.name for one in inputs if one.is_switch) if branches else ()

    def refuse() -> Any:
        raise file_error(path, "has no PyTorch form", "import it into TVM")

    def make(name: str, sizes: dict[str, int]) -> Network:
        rest = [one for one in inputs if one.name not in values]
        fixed = [tuple(size if isinstance(size, int) else sizes[size] for size in one.shape) for one in rest]
        taken = tuple(TensorSpec(one.name, shape, one.dtype.name) for one, shape in zip(rest, fixed, strict=True))

        return OnnxNetwork(name, refuse, partial(examples, rest, taken), taken=taken, **facts)

    label = "-".join([path.stem, *(f"{name}{value}" for name, value in values.items())])
    return at_sizes(label, free, shapes, make)


def load_onnx(path: Path) -> Any:
    """Read an ONNX file and the weights beside it.

    Raises:
        NetworkImportError: ONNX or its runtime is not installed; the file is damaged, refers to data outside of its
            folder, or needs more memory than the machine has.
    """
    if not (find_spec("onnx") and find_spec("onnxruntime")):
        raise file_error(path, "cannot be read without the packages onnx and onnxruntime", "pip install 'tchub[onnx]'")
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf has errors of its own
        raise file_error(path, f"is no ONNX file, or is cut short: {last_line(error)}") from error
    tensors = list(tensors_of(model))
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(path, tensor)
    if any(n < 0 for tensor in tensors for n in tensor.dims):
        raise file_error(path, "has a weight of a negative size")
    check_memory(path, sum(prod(tensor.dims) for tensor in tensors))
    try:
        # Some tools leave out the shape of an output that they add, or append its node; ONNX Runtime takes both.
        whole = all(output.type.tensor_type.HasField("shape") for output in model.graph.output)
        moved = [graph for graph in graphs_of(model) if sort_nodes(graph)]
        changed = bool(moved or own_norms(model)) or not whole
        if not whole:
            model = onnx.shape_inference.infer_shapes(model)
        if not changed:
            onnx.checker.check_model(str(path))  # of any size
        onnx.load_external_data_for_model(model, str(path.parent))
        if changed and model.ByteSize() < _MOST_IN_MEMORY:
            results = [output.type.tensor_type for output in model.graph.output if output.type.HasField("tensor_type")]
            bare = [one for one in results if not one.HasField("shape")]  # which nothing says before it is imported
            for one in bare:
                one.shape.SetInParent()
            with norms_apart(model):
                onnx.checker.check_model(model)
            for one in bare:
                one.ClearField("shape")
    except Exception as error:
        first, *_ = str(error).strip().splitlines() or [type(error).__name__]  # then comes where it is
        other = "export it at a newer opset, or without what became this operator"
        remedy = other if "No Op registered" in first else "export it again"
        raise file_error(path, f"is no valid ONNX model: {first}", remedy) from error
    return model


def _check_external(path: Path, tensor: Any) -> None:
    """Refuse a weight's file outside of the model's folder, links followed, or without the bytes that are asked for."""
    facts = {entry.key: entry.value for entry in tensor.external_data}
    location, folder = facts.get("location", ""), path.parent.resolve()
    data = (folder / location).resolve()
    wanted = [facts.get(key, "0") for key in ("offset", "length")]
    problem = ""
    if not location or "\\" in location or ".." in Path(location).parts or not data.is_relative_to(folder):
        problem = "reads data outside of its folder"
    elif not data.is_file():
        problem = "lacks its data"
    elif not all(text.isdecimal() for text in wanted) or sum(map(int, wanted)) > data.stat().st_size:
        problem = "is damaged, or its data cut short"
    if problem:
        problem = f"{problem}: the weight {tensor.name!r} is in {location!r}"
        raise file_error(path, problem, "take the file from a source that you trust, with its data beside it")


def onnx_in_float32(model: Any) -> list[str]:
    """Make float32 of an ONNX model's half precision, in place.

    Returns:
        The types it had, e.g. `["float16"]`.
    """
    from onnx import TensorProto, numpy_helper

    names = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
    dtypes = set[str]()
    for tensor in tensors_of(model):
        if tensor.data_type in names:
            dtypes.add(names[tensor.data_type])
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float32"), tensor.name))
    for graph in graphs_of(model):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in ("to", "dtype") and attribute.i in names:
                    dtypes.add(names[attribute.i])
                    attribute.i = TensorProto.FLOAT
        for value in [v for key in ("input", "output", "value_info") for v in getattr(graph, key)]:
            kind = getattr(value, "type", None)  # a function's inputs are names
            if kind is not None and kind.tensor_type.elem_type in names:
                dtypes.add(names[kind.tensor_type.elem_type])
                kind.tensor_type.elem_type = TensorProto.FLOAT
    return sorted(dtypes)

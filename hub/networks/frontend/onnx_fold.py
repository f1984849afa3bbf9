"""ONNX graphs written out for TVM's importer: constants computed, loops and branches unrolled, products of reals."""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from ....zoo.errors import last_line
from ..errors import NetworkImportError
from .onnx_graph import (
    DEFAULT,
    FEW,
    GraphWriter,
    attributes_of,
    graphs_in,
    graphs_of,
    infer_types,
    names_taken,
    opset_of,
    rename,
)
from .onnx_learned import LEARNED, LEARNED_RULES
from .onnx_operators import RULES, run
from .onnx_quantised import FLOAT, INTEGERS, QUANTISED, dequantised, product_of_integers, read_as_floats, real
from .onnx_runtime import OWN_RULES, RUNTIME, RUNTIME_REMEDY, is_own_norm

# Operators that the importer lacks, or has of another domain, and that ONNX defines by others.
_DEFINED = frozenset((
    *("Attention", "BlackmanWindow", "CausalConvWithState", "Celu", "CenterCropPad", "HammingWindow", "HannWindow"),
    *("LinearAttention", "NegativeLogLikelihoodLoss", "RotaryEmbedding", "SequenceMap", "SoftmaxCrossEntropyLoss"),
    *("SwiGLU", "Swish"),
))  # fmt: skip
_RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_OF_LOOPS = (
    "export it with a number of steps that is fixed and small; where an input is that number, fix it, e.g. --shape "
    "INPUT=4; or leave the loop out of what is tuned"
)
# Operators that a loop may become.
_MOST_NODES = 5000
_VALUES_OF_NODE = 4  # constants that may be computed for each of these


def folded(model: Any, shapes: Mapping[str, Sequence[int]], network: str) -> Any:
    """Return an ONNX model at fixed shapes in operators that TVM has; itself where there is nothing to do.

    What depends on sizes alone is computed. A loop whose number of steps is known then becomes as many copies of its
    body, a scan too, and a branch whose condition is known becomes the one that is taken. Functions are inlined.

    Args:
        model: stays as it is.
        shapes: of its inputs, by name.

    Raises:
        NetworkImportError: a loop runs as often as values of inputs say, or too often to be written out.
    """
    import onnx

    used = {node.op_type for node in model.graph.node if node.domain in DEFAULT}
    if model.functions or used & _DEFINED:
        model = _inlined(model, used & _DEFINED)
    fold = _Fold(model, shapes, network)
    names: dict[str, str] = {}
    fold.write(model.graph.node, names, outermost=True)
    if not fold.changed:
        return model
    for output in model.graph.output:
        source = names.get(str(output.name), str(output.name))
        if source in fold.values:  # a constant may not be an output itself
            source = fold.constant(fold.values[source])
        if source != output.name:
            fold.op("Identity", source, output=output.name)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    fold.put(result.graph)
    # TVM loads every constant, also of a type that it does not have.
    values = [*result.graph.input, *result.graph.output]
    read = names_taken(*fold.nodes).union(str(value.name) for value in values)
    for at in reversed(range(len(result.graph.initializer))):
        if result.graph.initializer[at].name not in read:
            del result.graph.initializer[at]
    return result


def _inlined(model: Any, kinds: Collection[str]) -> Any:
    """Return a model without its own functions, and without operators that ONNX defines as such."""
    import onnx
    from onnx import defs, inliner

    model = inliner.inline_local_functions(model)
    # The inliner asks for the type of every input of an operator, also of one that is left out.
    absent = onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
    held = [onnx.helper.make_tensor_value_info(x.name, x.data_type, x.dims) for x in model.graph.initializer]
    model.graph.value_info.extend([absent, *held])
    for node in model.graph.node:
        if node.op_type in kinds and node.domain in DEFAULT:
            schema, given = defs.get_schema(node.op_type, opset_of(model)), {one.name for one in node.attribute}
            for name, attribute in schema.attributes.items():  # an inlined body does not know their defaults
                if name not in given and attribute.default_value.name:
                    node.attribute.append(attribute.default_value)
    ids = [(domain, name) for domain in DEFAULT for name in sorted(kinds)]
    return inliner.inline_selected_functions(model, ids, inline_schema_functions=True)


class _Fold(GraphWriter):
    """Writes an ONNX graph out; names of what stands in a loop or branch are new.

    Attributes:
        changed: whether something else than a copy of the graph was written.
    """

    def __init__(self, model: Any, shapes: Mapping[str, Sequence[int]], network: str) -> None:
        super().__init__("folded_")
        self.changed = False
        self._model, self._shapes, self._network = model, shapes, network
        self.opset, self.version = opset_of(model), model.ir_version
        self._types: dict[str, Any] | None = None
        self._inferred = 0  # how much was written that the types take into account
        # ONNX infers no types behind an operator of another domain, until that is written in ONNX's own.
        self._foreign = any(node.domain not in DEFAULT for node in model.graph.node)
        self.floats: dict[str, str] = {}  # real numbers by the name of the integers that they are
        self.read_as_floats = frozenset[str]()
        graphs = list(graphs_of(model))
        self._read = names_taken(*(node for graph in graphs for node in graph.node)).union(
            str(getattr(output, "name", output)) for graph in graphs for output in graph.output
        ) - {""}
        self._hold(model.graph)

    def _hold(self, graph: Any, renamed: bool = False) -> dict[str, str]:
        """Make the constants of a graph known; return the names of those of a body."""
        from onnx import numpy_helper

        small = [x for x in graph.initializer if renamed or prod(x.dims) <= FEW]
        names = {tensor.name: self.fresh() if renamed else tensor.name for tensor in small}
        self.values |= {names[tensor.name]: numpy_helper.to_array(tensor) for tensor in small}
        return names

    def write(self, nodes: Sequence[Any], names: dict[str, str], outermost: bool = False) -> None:
        """Write nodes, of whose tensors `names` says how they are called here; add those of their outputs."""
        if outermost:
            self.read_as_floats = read_as_floats(self._model.graph)
        for node in nodes:
            inputs = [names.get(name, name) for name in map(str, node.input)]
            outputs = self._written(node, inputs, names)
            if outputs is None:
                outputs = [name if outermost or not name else self.fresh() for name in node.output]
                self._copy(node, inputs, outputs, names)
            names |= {name: output for name, output in zip(node.output, outputs, strict=False) if name}

    def _copy(self, node: Any, inputs: Sequence[str], outputs: Sequence[str], names: Mapping[str, str]) -> None:
        import onnx

        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.extend(outputs)
        for graph in graphs_in(copy):
            rename(graph, names)
        self.nodes.append(copy)

    def _written(self, node: Any, inputs: list[str], names: dict[str, str]) -> list[str] | None:
        """Write a node in another way than as it is, and return the names of its outputs; None for a copy."""
        kind = node.op_type
        outputs = real(self, node, inputs) if kind in QUANTISED else None
        if kind == "DequantizeLinear":
            outputs = dequantised(self, node, inputs)
        if outputs is None and node.domain in DEFAULT:
            if kind in ("Loop", "Scan"):
                outputs = (self._loop if kind == "Loop" else self._scan)(node, inputs, names)
            elif kind == "If":
                outputs = self._if(node, inputs[0], names)
            elif kind in INTEGERS:
                outputs = product_of_integers(self, node, inputs)
            elif kind == "Cast" and inputs[0] in self.floats and attributes_of(node).get("to") == FLOAT:
                outputs = [self.floats[inputs[0]]]
            elif (arrays := self._computed(node, inputs)) is not None:
                outputs = [self.constant(array) for array in arrays]
            elif is_own_norm(node, self.opset) and (kind not in RULES or not self.reads(node.output[1:])):
                outputs = self._of_runtime(node, inputs)
            elif kind in RULES:
                outputs = RULES[kind](self, node, inputs)
        if outputs is None and node.domain == RUNTIME and kind in OWN_RULES:
            outputs = self._of_runtime(node, inputs)
        elif node.domain == LEARNED and kind in LEARNED_RULES:
            outputs = LEARNED_RULES[kind](self, node, inputs)
        # TVM reads the attribute `value` of a constant alone.
        self.changed |= outputs is not None and (kind != "Constant" or node.attribute[0].name != "value")
        return outputs

    def _of_runtime(self, node: Any, inputs: list[str]) -> list[str]:
        """Write an operator of ONNX Runtime's own. TVM has some, too, and does not know all their inputs."""
        reason = "in a form that is not known here"
        try:
            outputs = OWN_RULES[node.op_type](self, node, inputs)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason, outputs = last_line(error), None
        if outputs is None:
            raise self._error(node, f"has an operator of ONNX Runtime {reason}", RUNTIME_REMEDY)
        return outputs

    # Constants

    def _computed(self, node: Any, inputs: Sequence[str]) -> list[np.ndarray] | None:
        """Return the outputs of a node of known inputs, or of the size of one; None where they are not known."""
        if node.op_type in ("Shape", "Size"):
            dims, facts = self.dims(inputs[0]), attributes_of(node)
            if dims is None:
                return None
            part = dims[facts.get("start", 0) : facts.get("end")]
            return [np.array(part if node.op_type == "Shape" else prod(dims), np.int64)]
        known = {name: self.values[name] for name in inputs if name in self.values}
        if len(known) < len(set(inputs) - {""}) or node.op_type in _RANDOM:
            return None
        if node.op_type == "Identity":
            return list(known.values())
        return run(node, inputs, known, self.opset, self.version)

    def reads(self, names: Sequence[str]) -> bool:
        """Return whether anything reads one of some outputs."""
        return not self._read.isdisjoint(names)

    def weight(self, name: str) -> np.ndarray | None:
        """Return a constant of the model, of any size, or None for what is computed."""
        from onnx import numpy_helper

        if name in self.values:
            return self.values[name]
        constants = (node for node in self.nodes if node.op_type == "Constant" and name in node.output)
        tensors = chain(
            (tensor for tensor in self._model.graph.initializer if tensor.name == name),
            (attribute.t for node in constants for attribute in node.attribute if attribute.name == "value"),
        )
        return next(map(numpy_helper.to_array, tensors), None)

    def dims(self, name: str) -> list[int] | None:
        """Return the sizes of a tensor, or None where not all are known."""
        if name in self.values:
            return list(self.values[name].shape)
        dims = _sizes(self._type(name))
        if dims is None and self._inferred < self._written_so_far():  # what was computed since may fix it
            self._infer()
            dims = _sizes(self._type(name))
        return dims

    def dtype(self, name: str) -> int:
        """Return the type of a tensor's elements as ONNX numbers them; 0 where it is not known."""
        from onnx.helper import np_dtype_to_tensor_dtype

        if name in self.values:
            return np_dtype_to_tensor_dtype(self.values[name].dtype)
        tensor = self._type(name)
        return 0 if tensor is None else int(tensor.elem_type)

    def _type(self, name: str) -> Any:
        if self._types is None:
            self._types = infer_types(self._model, self._shapes)
        if name not in self._types:  # in a body that was written out, or behind a constant that was computed
            self._infer()
        return self._types.get(name)

    def _infer(self) -> None:
        """Infer the types of what is written so far."""
        self._types = (self._types or {}) | infer_types(self._model, self._shapes, self)
        self._inferred = self._written_so_far()

    def _written_so_far(self) -> int:
        return len(self.values) + (len(self.nodes) if self._foreign else 0)

    # Loops

    def _body(
        self, graph: Any, inputs: Sequence[str], names: Mapping[str, str], constants: Mapping[str, str]
    ) -> list[str]:
        """Write the graph of a body or branch once; return the names of its outputs."""
        inner = {**names, **constants, **dict(zip((one.name for one in graph.input), inputs, strict=True))}
        self.write(graph.node, inner)
        return [inner.get(name, name) for name in (str(output.name) for output in graph.output)]

    def _if(self, node: Any, condition: str, names: Mapping[str, str]) -> list[str] | None:
        """Write the branch that is taken. Where inputs decide, write both and select; None for outputs of other sizes.

        TVM's importer fuses nothing in a branch, which may cost more than the one that is not taken.
        """
        facts, start = attributes_of(node), len(self.nodes)
        branches = [facts["then_branch"], facts["else_branch"]]
        if condition in self.values:
            branches = branches[:1] if self.values[condition].item() else branches[1:]
        written = [self._body(branch, [], names, self._hold(branch, renamed=True)) for branch in branches]
        if len(written) == 1:
            return written[0]
        pairs = list(zip(*written, strict=True))
        for one, other in pairs:
            if (dims := self.dims(one)) is None or dims != self.dims(other) or self.dtype(one) != self.dtype(other):
                del self.nodes[start:]
                return None
        condition = self.reshaped(condition, [])
        return [self.op("Where", condition, *pair) for pair in pairs]

    def _loop(self, node: Any, inputs: list[str], names: Mapping[str, str]) -> list[str]:
        """Write each step of a loop; ONNX has a limit of the steps, a condition before each, or both."""
        limit, condition, *states = [*inputs, "", ""][: max(2, len(inputs))]
        if not (limit or condition) or any(name and name not in self.values for name in (limit, condition)):
            raise self._error(node, _UNKNOWN)
        body, columns, step, start = attributes_of(node)["body"], [], 0, (len(self.nodes), len(self.values))
        constants = self._hold(body, renamed=True)
        # The number of the step and the condition have no axes or, where a body slices by them, one.
        shapes = [[1] * len(one.type.tensor_type.shape.dim) for one in body.input[:2]]
        more = bool(self.values[condition].item()) if condition else True
        while more and (not limit or step < self.values[limit].item()):
            counters = [np.full(shape, value) for shape, value in zip(shapes, (step, True), strict=True)]
            given = [*map(self.constant, counters), *states]
            condition_after, *results = self._body(body, given, names, constants)
            states, new = results[: len(states)], results[len(states) :]
            columns.append(new)
            self._check_size(node, start)
            if condition:
                if condition_after not in self.values:
                    raise self._error(node, _UNKNOWN)
                more = bool(self.values[condition_after].item())
            step += 1
        if not columns and len(node.output) > len(states):
            raise self._error(node, "has a loop that never runs, whose output nobody knows the size of")
        return [*states, *(self._stacked(column) for column in zip(*columns, strict=True))]

    def _scan(self, node: Any, inputs: list[str], names: Mapping[str, str]) -> list[str]:
        """Write each step of a scan, which takes a slice of each of its last inputs and gives one of each output."""
        facts = attributes_of(node)
        body, number = facts["body"], facts["num_scan_inputs"]
        states, tensors = inputs[: len(inputs) - number], inputs[len(inputs) - number :]
        axes = facts.get("scan_input_axes", [0] * number)
        dims = self.dims(tensors[0])
        if dims is None or self.opset < 9:  # whose scan has a batch
            raise self._error(node, _UNKNOWN)
        length, columns, start = dims[axes[0]], [], (len(self.nodes), len(self.values))
        backwards = facts.get("scan_input_directions", [0] * number)
        constants = self._hold(body, renamed=True)
        for step in range(length):
            places = [length - 1 - step if back else step for back in backwards]
            slices = [
                self.op("Gather", x, self.constant(np.int64(at)), axis=axis)
                for x, at, axis in zip(tensors, places, axes, strict=True)
            ]
            results = self._body(body, [*states, *slices], names, constants)
            columns.append(results[len(states) :])
            states = results[: len(states)]
            self._check_size(node, start)
        columns = list(zip(*columns, strict=True))
        axes = facts.get("scan_output_axes", [0] * len(columns))
        backwards = facts.get("scan_output_directions", [0] * len(columns))
        outputs = zip(columns, axes, backwards, strict=True)
        return [*states, *(self._stacked(x[::-1] if back else x, axis) for x, axis, back in outputs)]

    def _stacked(self, parts: Sequence[str], axis: int = 0) -> str:
        if self.opset >= 13:
            at = self.constant(np.array([axis], np.int64))
            return self.op("Concat", *(self.op("Unsqueeze", part, at) for part in parts), axis=axis)
        return self.op("Concat", *(self.op("Unsqueeze", part, axes=[axis]) for part in parts), axis=axis)

    def _check_size(self, node: Any, start: tuple[int, int]) -> None:
        """Raise where a loop that is written out has too many operators, or computes too much of constants alone."""
        nodes, values = len(self.nodes) - start[0], len(self.values) - start[1]
        if max(nodes, values // _VALUES_OF_NODE) > _MOST_NODES:
            raise self._error(node, f"has a loop of more than {_MOST_NODES} operators")

    def _error(self, node: Any, problem: str, remedy: str = _OF_LOOPS) -> NetworkImportError:
        where = f"node {node.name or next(iter(node.output), '')!r}"
        return NetworkImportError(
            f"{self._network} {problem} ({node.op_type}, {where})",
            remedy=remedy,
            network=self._network,
            operator=node.op_type,
            location=where,
        )


def _sizes(tensor: Any) -> list[int] | None:
    """Return the sizes of a tensor of which ONNX knows the type, or None where not all are known."""
    if tensor is None or not tensor.HasField("shape"):
        return None
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    return None if -1 in dims else dims


_UNKNOWN = "has a loop that runs as often as values of its inputs say"

"""Signature of a network: the tensors of its compiled function, and the nested values they stand in.

The compiled function takes the tensors among the arguments, one by one, and returns a tuple of the tensors among the
results. Constants (numbers, texts, None) are in the signature alone: `drop_constants` takes them out of a program
before TVM imports it. PyTorch is needed to read a program, and not to call what was compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import isfinite
from typing import Annotated, Any

import msgspec

from ..errors import NetworkImportError, NetworkInputError
from .trees import Constant, Tree


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a network takes or returns.

    Attributes:
        name: unique among the inputs or the outputs, e.g. `input_ids`, `output_0`.
        dtype: as the caller sees it, e.g. `float32`, `int64`, `bool`, `bfloat16`.
    """

    name: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    dtype: str

    @property
    def computed(self) -> str:
        """Data type of the compiled function's parameter or result: half precision is computed in float32."""
        return "float32" if self.dtype in ("bfloat16", "float16") else self.dtype

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def check(self, where: str, value: Any) -> Any:
        """Return a tensor (PyTorch's, NumPy's, any with `shape` and `dtype`) that is of this shape and type.

        Raises:
            NetworkInputError: it is not.
        """
        shape, dtype = getattr(value, "shape", None), str(getattr(value, "dtype", "")).removeprefix("torch.")
        if shape is None or tuple(shape) != self.shape or dtype != self.dtype:
            given = type(value).__name__ if shape is None else f"{dtype}{list(shape)}"
            raise NetworkInputError(
                f"{where} is {given}, expected a tensor {self}",
                remedy="the network is compiled for fixed shapes and types: convert it with .to or .astype, or tune "
                "the network for the other shape",
                argument=where,
            )
        return value


@dataclass(frozen=True)
class Signature:
    """Arguments and results of a network, for one set of fixed shapes.

    Attributes:
        inputs: the compiled function's parameters, in order.
        outputs: the tensors of the tuple that it returns, in order.
        args: trees of the arguments by position.
        names: of `args`; empty where they are not known.
        kwargs: trees of the arguments by name.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    args: tuple[Tree, ...]
    names: tuple[str, ...]
    kwargs: dict[str, Tree]
    returns: Tree

    def __post_init__(self) -> None:
        """Raise ValueError unless the trees, which are read from files, hold each tensor once."""
        for tensors, trees in ((self.inputs, (*self.args, *self.kwargs.values())), (self.outputs, (self.returns,))):
            numbers = [leaf.value for tree in trees for _, leaf in tree.leaves() if leaf.kind == "tensor"]
            if sorted(numbers, key=str) != sorted(range(len(tensors)), key=str):
                raise ValueError("the arguments or the results do not hold each tensor once")
        if len(self.names) not in (0, len(self.args)):
            raise ValueError("there are not as many names as arguments")

    @classmethod
    def of_exported(cls, exported: Any) -> Signature:
        """Read the signature of a `torch.export.ExportedProgram` with fixed shapes, as the user calls it.

        Raises:
            NetworkImportError: an argument or a result is neither a tensor nor a constant, or a shape is dynamic.
        """
        signature, entry = exported.graph_signature, exported.module_call_graph[0].signature
        described = {node.name: node.meta.get("val") for node in exported.graph.nodes}
        kinds = ("USER_INPUT", "USER_OUTPUT", "LOSS_OUTPUT")
        taken, returned = (
            [_leaf(spec.arg, described) for spec in specs if spec.kind.name in kinds]
            for specs in (signature.input_specs, signature.output_specs)
        )
        args, kwargs = _tree(exported.call_spec.in_spec, _numbered(taken)).children
        result = _tree(exported.call_spec.out_spec, _numbered(returned))
        outputs = [spec for spec in returned if isinstance(spec, TensorSpec)]
        paths = [path for path, leaf in result.leaves() if leaf.kind == "tensor"]
        shown = [path if path and not path[0].isdigit() else f"output_{path}".rstrip("_") for path in paths]
        unique = [name if shown.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(shown)]
        names: list[str] = [] if entry is None else list(entry.forward_arg_names or ())
        known = len(names) == len(args.children) + len(kwargs.children)
        return cls(
            tuple(spec for spec in taken if isinstance(spec, TensorSpec)),
            tuple(replace(spec, name=name) for spec, name in zip(outputs, unique, strict=True)),
            args.children,
            tuple(names[: len(args.children)]) if known else (),
            dict(zip(map(str, kwargs.keys), kwargs.children, strict=True)),
            result,
        )

    @classmethod
    def of_tensors(cls, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Signature:
        """Return the signature of a function of tensors by position or by name.

        It returns a tensor, or, where there are several, all of them by name, as ONNX files do.
        """
        taken, returned = (tuple(Tree("tensor", i) for i in range(len(specs))) for specs in (inputs, outputs))
        result = returned[0] if len(outputs) == 1 else Tree("results", None, tuple(s.name for s in outputs), returned)
        return cls(tuple(inputs), tuple(outputs), taken, tuple(spec.name for spec in inputs), {}, result)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the tensors of a call in the order of `inputs`.

        Raises:
            NetworkInputError: an argument is missing, unexpected, or has another structure, constant, shape or type.
        """
        numbered: dict[int, tuple[str, Any]] = {}
        for where, tree, value in self._bound(args, kwargs):
            tree.flatten(value, where, numbered)
        return [spec.check(*numbered[i]) for i, spec in enumerate(self.inputs)]

    def order(self, named: Mapping[str, Any]) -> list[Any]:
        """Return tensors that are given by the names of `inputs` in their order.

        Raises:
            NetworkInputError: one is missing, unexpected, or has another shape or data type.
        """
        names = [spec.name for spec in self.inputs]
        if wrong := {*names} ^ {*named}:
            raise NetworkInputError(
                f"the input {min(wrong)} is {'missing' if min(wrong) in names else 'unexpected'}",
                remedy=f"give these inputs: {', '.join(f'{spec.name}: {spec}' for spec in self.inputs) or 'none'}",
                argument=min(wrong),
            )
        return [spec.check(spec.name, named[spec.name]) for spec in self.inputs]

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """Build the network's result from its tensors, in the order of `outputs`."""
        return self.returns.unflatten(tensors)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tree, Any]]:
        """Yield name, tree and value of each argument."""
        names = self.names or tuple(f"argument {i}" for i in range(len(self.args)))
        rest = dict(zip(names[len(args) :], self.args[len(args) :], strict=True)) | self.kwargs
        missing = [name for name, tree in rest.items() if name not in kwargs and tree != Tree("constant")]
        wrong = ""
        if len(args) > len(names):
            wrong = f"the network takes {len(names)} arguments by position, got {len(args)}"
        elif unexpected := [name for name in kwargs if name not in rest]:
            wrong = f"unexpected argument {unexpected[0]}"
        elif missing:
            wrong = f"the argument {missing[0]} is missing"
        if wrong:
            raise NetworkInputError(wrong, remedy=f"call the network as it was exported: {self}")
        yield from zip(names, self.args, args, strict=False)
        yield from ((name, tree, kwargs.get(name)) for name, tree in rest.items())

    def __str__(self) -> str:
        names = [f"{name}: " for name in self.names] or [""] * len(self.args)
        shown = [name + tree.shown(self.inputs) for name, tree in zip(names, self.args, strict=True)]
        shown += [f"{name}={tree.shown(self.inputs)}" for name, tree in self.kwargs.items()]
        return f"({', '.join(shown)}) -> {self.returns.shown(self.outputs)}"


def drop_constants(exported: Any) -> Any:
    """Take constants out of the inputs and outputs of a program, in place; it can be imported then, and not called."""
    signature, graph = exported.graph_signature, exported.graph
    placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    for spec in [s for s in signature.input_specs if s.kind.name == "USER_INPUT" and not _is_tensor(s.arg)]:
        graph.erase_node(placeholders[spec.arg.name])
        signature.input_specs.remove(spec)
    output = graph.output_node()
    kept = [_is_tensor(spec.arg) for spec in signature.output_specs]
    output.args = (tuple(value for value, keep in zip(output.args[0], kept, strict=True) if keep),)
    signature.output_specs[:] = [spec for spec, keep in zip(signature.output_specs, kept, strict=True) if keep]
    exported.graph_module.recompile()
    return exported


def _is_tensor(argument: Any) -> bool:
    return type(argument).__name__ == "TensorArgument"


def _leaf(argument: Any, described: Mapping[str, Any]) -> TensorSpec | Constant:
    if _is_tensor(argument):
        meta = described[argument.name]
        if not all(isinstance(size, int) for size in meta.shape):
            raise NetworkImportError(
                f"{argument.name} has a dynamic shape: {list(map(str, meta.shape))}",
                remedy="export it with fixed shapes",
                tensor=argument.name,
            )
        return TensorSpec(argument.name, tuple(meta.shape), str(meta.dtype).removeprefix("torch."))
    value = getattr(argument, "value", argument)
    if not isinstance(value, Constant) or (isinstance(value, float) and not isfinite(value)):
        raise NetworkImportError(
            f"the network takes or returns {type(value).__name__ if not isinstance(value, float) else value}",
            remedy="let it take and return tensors, numbers, texts and None",
        )
    return value


def _numbered(values: Sequence[TensorSpec | Constant]) -> Iterator[Tree]:
    numbers = count()
    for value in values:
        yield Tree("tensor", next(numbers)) if isinstance(value, TensorSpec) else Tree("constant", value)


def _tree(spec: Any, leaves: Iterator[Tree]) -> Tree:
    """Return the tree of a PyTorch tree specification, whose leaves are the next of `leaves`."""
    if spec.is_leaf():
        return next(leaves)
    children = tuple(_tree(child, leaves) for child in spec.children())
    name, keys = spec.type.__name__, spec.context
    if name in ("list", "tuple", "deque"):
        return Tree("tuple" if name == "tuple" else "list", None, tuple(range(len(children))), children)
    if name == "namedtuple":
        return Tree("namedtuple", keys.__name__, tuple(keys._fields), children)
    if spec.type.__module__ == "torch.return_types":  # of `x.topk(5)`, say
        return Tree("namedtuple", name, spec.type.__match_args__, children)
    if isinstance(keys, list) and keys and isinstance(keys[-1], list):
        keys = keys[1] if name == "defaultdict" else keys[0]  # or a dataclass: names of fields, of empty fields
    if not isinstance(keys, list | tuple) or len(keys) != len(children):
        raise NetworkImportError(
            f"the network takes or returns {name}, whose fields are not known",
            remedy="let it take and return tensors, lists, tuples, dictionaries and dataclasses",
        )
    kind = "dict" if name in ("dict", "OrderedDict", "defaultdict") else "results"
    return Tree(kind, None, tuple(keys), children)

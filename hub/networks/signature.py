"""Signature of a network: the tensors of its compiled function, and the nested values they stand in.

The compiled function takes the tensors among the arguments, one by one, and returns a tuple of the tensors among the
results. Constants (numbers, texts, None) are in the signature alone: `drop_constants` takes them out of a program
before TVM imports it. PyTorch is needed to read a program, and not to call what was compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from math import isfinite
from typing import Annotated, Any

import msgspec

from .errors import NetworkImportError, NetworkInputError
from .trees import Constant, Tree, check_tree, flatten, leaves, unflatten


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that a network takes or returns.

    Attributes:
        name: unique among the inputs or the outputs, e.g. `input_ids`, `output_0`.
        dtype: as the caller sees it, e.g. `float32`, `int64`, `bool`, `bfloat16`.
        computed: of the compiled function's parameter or result; other than `dtype` where a half-precision network is
            computed in float32. The caller of the function casts.
    """

    name: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    dtype: str
    computed: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Arguments:
    """Trees of a call's arguments; see `trees`.

    Attributes:
        args: of those by position.
        names: of `args`; empty where they are not known.
        kwargs: of those by name.
    """

    args: list[Tree]
    names: list[str]
    kwargs: dict[str, Tree]


@dataclass(frozen=True)
class Signature:
    """Arguments and results of a network, for one set of fixed shapes.

    Attributes:
        inputs: the compiled function's parameters, in order.
        outputs: the tensors of the tuple that it returns, in order.
        arguments: their trees.
        returns: the tree of the result.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arguments: Arguments
    returns: Tree

    @classmethod
    def of_exported(cls, exported: Any, compiled: Any = None) -> Signature:
        """Read the signature of a `torch.export.ExportedProgram` with fixed shapes.

        Args:
            exported: the program as the user calls it.
            compiled: the program that is compiled, where it computes with other data types.

        Raises:
            NetworkImportError: an argument or a result is neither a tensor nor a constant, or a shape is dynamic.
        """
        given, returned = _border(exported)
        numbered = _numbered(given)
        args, kwargs = (_tree(child, numbered) for child in exported.call_spec.in_spec.children())
        args, kwargs = args["tuple"], dict(kwargs["dict"])
        result = _tree(exported.call_spec.out_spec, _numbered(returned))
        inputs, outputs = _tensors(given), _tensors(returned)
        names = [spec.name for spec in inputs], _output_names(result)
        computed = map(_tensors, _border(exported if compiled is None else compiled))
        taken, gives = (
            tuple(replace(spec, name=name, computed=inner.dtype) for spec, name, inner in zip(*some, strict=True))
            for some in zip((inputs, outputs), names, computed, strict=True)
        )
        return cls(taken, gives, Arguments(args, _argument_names(exported, len(args), len(kwargs)), kwargs), result)

    @classmethod
    def of_function(cls, function: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Signature:
        """Make the signature of a Relax function of fixed shapes that takes tensors by position or by name.

        It returns a tensor, or, where there are several, all of them by name, as ONNX files do.
        """
        result = function.ret_ty
        taken = tuple(starmap(_typed, zip(inputs, (p.ty for p in function.params), strict=True)))
        returned = tuple(starmap(_typed, zip(outputs, getattr(result, "fields", [result]), strict=True)))
        tensors = [{"tensor": i} for i in range(max(len(inputs), len(outputs)))]
        named = {"results": [[name, tensor] for name, tensor in zip(outputs, tensors, strict=False)]}
        arguments = Arguments(tensors[: len(inputs)], list(inputs), {})
        return cls(taken, returned, arguments, tensors[0] if len(outputs) == 1 else named)

    def check(self) -> None:
        """Raise ValueError unless the trees, which were read from a file, hold each input once."""
        trees = [*self.arguments.args, *self.arguments.kwargs.values()]
        for tree in trees:
            check_tree(tree, len(self.inputs))
        check_tree(self.returns, len(self.outputs))
        numbers = [leaf["tensor"] for tree in trees for _, leaf in leaves(tree) if "tensor" in leaf]
        named = len(self.arguments.names) in (0, len(self.arguments.args))
        if not named or sorted(numbers) != [*range(len(self.inputs))]:
            raise ValueError("the arguments have no names, or do not hold each input once")

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the tensors of a call (PyTorch's, NumPy's, any with `shape` and `dtype`) in the order of `inputs`.

        Raises:
            NetworkInputError: an argument is missing, unexpected, or has another structure, constant, shape or type.
        """
        numbered: dict[int, tuple[str, Any]] = {}
        for where, tree, value in self._bound(args, kwargs):
            flatten(tree, value, where, numbered)
        for i, spec in enumerate(self.inputs):
            _check_tensor(spec, *numbered[i])
        return [numbered[i][1] for i in range(len(self.inputs))]

    def order(self, named: Mapping[str, Any]) -> list[Any]:
        """Return tensors that are given by the names of `inputs` in their order.

        Raises:
            NetworkInputError: one is missing, unexpected, or has another shape or data type.
        """
        names = [spec.name for spec in self.inputs]
        for kind, wrong in (("missing", set(names) - set(named)), ("unexpected", set(named) - set(names))):
            if wrong:
                raise NetworkInputError(
                    f"the input {min(wrong)} is {kind}",
                    remedy=f"give these inputs: {', '.join(f'{spec.name}: {spec}' for spec in self.inputs) or 'none'}",
                    argument=min(wrong),
                )
        for spec in self.inputs:
            _check_tensor(spec, spec.name, named[spec.name])
        return [named[name] for name in names]

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        """Build the network's result from its tensors, in the order of `outputs`."""
        return unflatten(self.returns, tensors)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tree, Any]]:
        """Yield name, tree and value of each argument."""
        positional, names, named = self.arguments.args, self.arguments.names, self.arguments.kwargs
        names = names or [f"argument {i}" for i in range(len(positional))]
        rest = dict(zip(names[len(args) :], positional[len(args) :], strict=True)) | named
        missing = [name for name, tree in rest.items() if name not in kwargs and tree != {"value": None}]
        wrong = ""
        if len(args) > len(positional):
            wrong = f"the network takes {len(positional)} arguments by position, got {len(args)}"
        elif unexpected := [name for name in kwargs if name not in rest]:
            wrong = f"unexpected argument {unexpected[0]}"
        elif missing:
            wrong = f"the argument {missing[0]} is missing"
        if wrong:
            raise NetworkInputError(wrong, remedy=f"call the network as it was exported: {self}")
        yield from zip(names, positional, args, strict=False)
        yield from ((name, tree, kwargs.get(name)) for name, tree in rest.items())

    def __str__(self) -> str:
        names = [f"{name}: " for name in self.arguments.names] or [""] * len(self.arguments.args)
        shown = [name + _shown(tree, self.inputs) for name, tree in zip(names, self.arguments.args, strict=True)]
        shown += [f"{name}={_shown(tree, self.inputs)}" for name, tree in self.arguments.kwargs.items()]
        return f"({', '.join(shown)}) -> {_shown(self.returns, self.outputs)}"


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


def _border(exported: Any) -> tuple[list[TensorSpec | Constant], list[TensorSpec | Constant]]:
    """Return the inputs and the outputs of a program, flat."""
    signature = exported.graph_signature
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    kinds = ("USER_INPUT", "USER_OUTPUT", "LOSS_OUTPUT")
    specs = (signature.input_specs, signature.output_specs)
    taken, returned = ([_leaf(s.arg, values) for s in some if s.kind.name in kinds] for some in specs)
    return taken, returned


def _leaf(argument: Any, values: Mapping[str, Any]) -> TensorSpec | Constant:
    if _is_tensor(argument):
        meta = values[argument.name]
        if not all(isinstance(size, int) for size in meta.shape):
            raise NetworkImportError(
                f"{argument.name} has a dynamic shape: {list(map(str, meta.shape))}",
                remedy="export it with fixed shapes",
                tensor=argument.name,
            )
        dtype = str(meta.dtype).removeprefix("torch.")
        return TensorSpec(argument.name, tuple(meta.shape), dtype, dtype)
    value = getattr(argument, "value", argument)
    if not isinstance(value, Constant) or (isinstance(value, float) and not isfinite(value)):
        raise NetworkImportError(
            f"the network takes or returns {type(value).__name__ if not isinstance(value, float) else value}",
            remedy="let it take and return tensors, numbers, texts and None",
        )
    return value


def _tensors(values: Sequence[TensorSpec | Constant]) -> list[TensorSpec]:
    return [value for value in values if isinstance(value, TensorSpec)]


def _numbered(values: Sequence[TensorSpec | Constant]) -> Iterator[Tree]:
    number = 0
    for value in values:
        yield {"tensor": number} if isinstance(value, TensorSpec) else {"value": value}
        number += isinstance(value, TensorSpec)


def _tree(spec: Any, numbered: Iterator[Tree]) -> Tree:
    """The tree of a PyTorch tree specification, whose leaves are the next of `numbered`."""
    if spec.is_leaf():
        return next(numbered)
    children = [_tree(child, numbered) for child in spec.children()]
    name, context = spec.type.__name__, spec.context
    if name in ("list", "tuple", "deque"):
        return {"tuple" if name == "tuple" else "list": children}
    if name == "namedtuple" or spec.type.__module__ == "torch.return_types":  # of `x.topk(5)`, say
        kind, fields = (context, context._fields) if name == "namedtuple" else (spec.type, spec.type.__match_args__)
        return {"namedtuple": [kind.__name__, [list(pair) for pair in zip(fields, children, strict=True)]]}
    keys = context
    if isinstance(context, list) and context and isinstance(context[-1], list):
        keys = context[1] if name == "defaultdict" else context[0]  # or a dataclass: names of fields, of empty fields
    if name in ("dict", "OrderedDict", "defaultdict"):
        return {"dict": [list(pair) for pair in zip(keys, children, strict=True)]}
    if not isinstance(keys, list | tuple) or len(keys) != len(children):
        raise NetworkImportError(
            f"the network takes or returns {name}, whose fields are not known",
            remedy="let it take and return tensors, lists, tuples, dictionaries and dataclasses",
        )
    return {"results": [list(pair) for pair in zip(keys, children, strict=True)]}


def _argument_names(exported: Any, positional: int, named: int) -> list[str]:
    """Names of the positional arguments, where PyTorch kept them."""
    signature = exported.module_call_graph[0].signature
    names: list[str] = [] if signature is None else list(signature.forward_arg_names or ())
    return names[:positional] if len(names) == positional + named else []


def _output_names(returns: Tree) -> list[str]:
    """A name for each tensor of a result: its path."""
    numbered = [(path, leaf["tensor"]) for path, leaf in leaves(returns) if "tensor" in leaf]
    paths = [path for path, _ in sorted(numbered, key=lambda pair: pair[1])]
    names = [path if path and not path[0].isdigit() else f"output_{path}".rstrip("_") for path in paths]
    return [name if names.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(names)]


def _typed(name: str, kind: Any) -> TensorSpec:
    return TensorSpec(name, tuple(map(int, kind.shape)), str(kind.dtype), str(kind.dtype))


def _check_tensor(spec: TensorSpec, where: str, value: Any) -> None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        raise NetworkInputError(
            f"{where} is {type(value).__name__}, expected a tensor of {spec.dtype}",
            remedy="give a tensor of PyTorch or an array of NumPy",
            argument=where,
        )
    if tuple(shape) != spec.shape:
        raise NetworkInputError(
            f"{where} has the wrong shape: expected {spec.shape}, got {tuple(shape)}",
            remedy="the network is compiled for fixed shapes: give this one, or tune the network for the other",
            argument=where,
        )
    given = str(dtype).removeprefix("torch.")
    if given != spec.dtype:
        raise NetworkInputError(
            f"{where} has the wrong data type: expected {spec.dtype}, got {given}",
            remedy=f"convert it, in PyTorch with .to(torch.{spec.dtype}), in NumPy with .astype({spec.dtype!r})",
            argument=where,
        )


def _shown(tree: Tree, specs: Sequence[TensorSpec]) -> str:
    if "tensor" in tree:
        return str(specs[tree["tensor"]])
    if "value" in tree:
        return repr(tree["value"])
    kind, inner = next(iter(tree.items()))
    if kind in ("list", "tuple"):
        shown = ", ".join(_shown(child, specs) for child in inner)
        return f"[{shown}]" if kind == "list" else f"({shown})"
    pairs = inner[1] if kind == "namedtuple" else inner
    return "{" + ", ".join(f"{key}: {_shown(child, specs)}" for key, child in pairs) + "}"

"""Numbers that a network reads from its tensors, as by `item()`, as tensors of rank 0.

For TVM, such a number is a size alone. PyTorch's export keeps it as a symbol, and Python's arithmetic on symbols as
nodes of the graph: `x * (n - 9) / (n + 1)` has a difference and a sum of numbers beside a product and a quotient of
tensors. Here tensors take the place of the numbers wherever an operator takes a tensor.
"""

import operator
from typing import Any

import torch
from torch.fx import Node

_aten = torch.ops.aten
_ARITHMETIC: dict[Any, Any] = {
    operator.add: _aten.add.Tensor,
    operator.sub: _aten.sub.Tensor,
    operator.mul: _aten.mul.Tensor,
    operator.truediv: _aten.div.Tensor,
    operator.floordiv: _aten.floor_divide.default,
    operator.mod: _aten.remainder.Tensor,
    operator.pow: _aten.pow.Tensor_Tensor,
    operator.neg: _aten.neg.default,
    operator.abs: _aten.abs.default,
    abs: _aten.abs.default,
    torch.sym_min: _aten.minimum.default,
    torch.sym_max: _aten.maximum.default,
    torch.sym_float: _aten.clone.default,
    torch.sym_sqrt: _aten.sqrt.default,
}
_OF_FLOATS = (operator.truediv, operator.pow, torch.sym_float, torch.sym_sqrt)
_DIVISIONS = (operator.floordiv, operator.mod)
_OF_TENSORS: dict[Any, Any] = {
    _aten.clamp.default: _aten.clamp.Tensor,
    _aten.pow.Tensor_Scalar: _aten.pow.Tensor_Tensor,
}
_MAKERS = (_aten.full.default, _aten.scalar_tensor.default)


def read_as_tensors(nodes: list[Any]) -> None:
    """Compute with tensors of rank 0 in place of the numbers that are read from tensors, in a decomposed program.

    Args:
        nodes: of the program's graphs, in their order; new ones are inserted between them.

    Raises:
        ValueError: an operator takes such a number, and no tensor in its place; TVM would crash.
    """
    tensors = dict[Any, Node]()  # by the number that is read, or computed of such
    for node in nodes:
        if node.target == _aten._local_scalar_dense.default:
            source = node.args[0]
            tensors[node] = _insert(node, _aten.reshape.default, source, []) if source.meta["val"].ndim else source
        elif tensors.keys().isdisjoint(node.all_input_nodes):
            continue
        elif node.target in _ARITHMETIC:
            tensors[node] = _computed(node, tensors)
        elif isinstance(node.target, torch._ops.OpOverload):
            _take_tensors(node, tensors)


def _computed(node: Node, tensors: dict[Any, Node]) -> Node:
    """Compute in the types of Python's numbers: int64 and float64."""
    numbers = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in node.args]
    is_whole = node.target not in _OF_FLOATS and all(isinstance(number, int | torch.SymInt) for number in numbers)
    dtype = torch.int64 if is_whole else torch.float64
    args = [_tensor(node, arg, tensors, dtype) for arg in node.args]
    if is_whole and node.target in _DIVISIONS:  # a CPU ends a process that divides by 0
        one = _insert(node, _aten.full.default, [], 1, dtype=dtype)
        args[1] = _insert(node, _aten.where.self, _insert(node, _aten.eq.Scalar, args[1], 0), one, args[1])
    result = _insert(node, _ARITHMETIC[node.target], *args)
    if isinstance(node.meta["val"], torch.SymInt) and not is_whole:  # a power of whole numbers
        return _insert(node, _aten._to_copy.default, result, dtype=torch.int64)
    return result


def _take_tensors(node: Node, tensors: dict[Any, Node]) -> None:
    """Give an operator tensors for numbers; those that are sizes stay, as a network of open sizes is refused elsewhere.

    Raises:
        ValueError: a number is none of both.
    """
    target: Any = node.target
    if target in _MAKERS and node.args[-1] in tensors:
        value = _tensor(node, node.args[-1], tensors, node.meta["val"].dtype)
        node.target, node.args, node.kwargs = _aten.expand.default, (value, [*node.meta["val"].shape]), {}
        return
    if target._overloadname == "Scalar":
        target = getattr(target.overloadpacket, "Tensor", target)
    target = _OF_TENSORS.get(target, target)
    args, others = list(node.args), list(node.kwargs.values())
    for i, (arg, argument) in enumerate(zip(args, target._schema.arguments, strict=False)):
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            if arg in tensors:
                args[i] = tensors[arg]
            elif isinstance(arg, int | float):
                args[i] = _tensor(node, arg, tensors, torch.int64 if isinstance(arg, int) else torch.float64)
        elif str(argument.type) in ("number", "Optional[number]"):
            others.append(arg)
    if not tensors.keys().isdisjoint(arg for arg in others if isinstance(arg, Node)):
        raise ValueError(f"Unsupported function types ['{node.target}, which takes a number of item() and no tensor']")
    node.target, node.args = target, tuple(args)


def _tensor(before: Node, number: Any, tensors: dict[Any, Node], dtype: torch.dtype) -> Node:
    """Return a node before another: the tensor of a number, in a data type."""
    source = tensors.get(number)
    if source is None:
        return _insert(before, _aten.full.default, [], number, dtype=dtype)
    return source if source.meta["val"].dtype == dtype else _insert(before, _aten._to_copy.default, source, dtype=dtype)


def _insert(before: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    with before.graph.inserting_before(before):
        node = before.graph.call_function(target, args, kwargs)
    values = [_described(arg.meta["val"]) if isinstance(arg, Node) else arg for arg in args]
    node.meta = {**before.meta, "val": target(*values, **kwargs)}
    return node


def _described(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(value.shape, dtype=value.dtype, device="meta")

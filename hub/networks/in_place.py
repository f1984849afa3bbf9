"""Results in the memory of an argument that nothing reads afterwards.

What is added to a product, as the stream of a residual network is, has the shape of the result and is often read there
for the last time. A result with memory of its own would push that stream out of the cache in which the next function
finds it.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from tvm import IRModule, relax, tirx
from tvm.ir import Call, GlobalVar, Range, TensorLoad
from tvm.ir.transform import module_pass
from tvm.sym import detect_iter_map
from tvm.sym.iter_affine_map import IterMapLevel
from tvm.tirx import BufferStore, For, IfThenElse, IntImm, Ramp, Var
from tvm_ffi import structural_equal, structural_map

from ..device.statements import LOOPS, nodes_in
from .transform.elementwise import is_of_blocks
from .transform.relax_graph import operator_name

_ALLOCATION, _VIEWS = "builtin.alloc_tensor", ("reshape", "memory.view")


def results_in_place() -> Any:
    """Return a pass over a module whose functions are given their results' memory, as `CallTIRRewrite` leaves it.

    The memory is that of an argument which is read there for the last time. Each element is read before the result's is
    stored in its place. Functions of blocks are lowered for it.
    """

    @module_pass(opt_level=0, name="TchubResultsInPlace")
    def run(mod: Any, _: Any) -> IRModule:
        variants = _Variants(mod)
        functions, names = dict(mod.functions_items()), set[str]()
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                functions[var] = own = _shared(func, variants)
                names |= {called.name_hint for called in nodes_in(own.body, GlobalVar)}
        kept = {v: f for v, f in functions.items() if v.name_hint in names or v.name_hint not in variants.replaced}
        return IRModule(kept | variants.functions, mod.attrs, mod.global_infos)

    return run


# The graph -------------------------------------------------------------------------------------------


def _shared(func: Any, variants: "_Variants") -> Any:
    """Return a Relax function whose calls store results in their arguments, where they can."""
    blocks = list(func.body.blocks)
    if len(blocks) != 1:  # what is read afterwards is not to be seen from one block
        return func
    bindings = list(blocks[0].bindings)
    memory = _Memory(bindings, func.body.body, variants.is_kernel)
    for position, binding in enumerate(bindings):
        call = binding.value
        if not isinstance(call, Call) or not variants.is_kernel(call.op) or len(call.args) < 2:
            continue
        *args, result = call.args
        for number in memory.free(position, args, result):
            own = variants.get(call.op, number)
            if own is not None:
                share = memory.allocation(result)
                bindings[share] = relax.VarBinding(bindings[share].var, args[number])
                direct = Call(own, args, call.attrs, call.ty_args, ret_ty=call.ty)
                bindings[position] = relax.VarBinding(binding.var, direct)
                memory.join(result, args[number])
                break
    block = relax.BindingBlock(bindings)
    return relax.Function(func.params, relax.SeqExpr([block], func.body.body), func.ret_ty, func.is_pure, func.attrs)


class _Memory:
    """Which variables of a block are of the same memory, and where each memory is read for the last time."""

    def __init__(self, bindings: Sequence[Any], result: Any, is_kernel: Callable[[Any], bool]) -> None:
        self._allocated: dict[Any, int] = {}
        self._same: dict[Any, Any] = {}  # of a variable, the one that was allocated
        self._first: dict[Any, float] = {}
        self._last: dict[Any, float] = {}
        for position, binding in enumerate(bindings):
            var, value = binding.var, binding.value
            name = operator_name(value) if isinstance(value, Call) else ""
            if name == _ALLOCATION:
                self._allocated[var], self._same[var] = position, var
            elif isinstance(value, Var) or name in _VIEWS:
                source = value if isinstance(value, Var) else value.args[0]
                if (root := self._root(source)) is not None:
                    self._same[var] = root
            else:
                # Branches, tuples and functions of the graph may keep it.
                self._use(value, position if isinstance(value, Call) and is_kernel(value.op) else inf)
        self._use(result, inf)

    def _root(self, value: Any) -> Any:
        return self._same.get(value) if isinstance(value, Var) else None

    def _use(self, value: Any, position: float) -> None:
        for root in (one for one in map(self._root, nodes_in(value, Var)) if one is not None):
            self._first.setdefault(root, position)
            self._last[root] = max(self._last.get(root, position), position)

    def allocation(self, result: Any) -> int:
        """Return the position at which a result's memory is allocated."""
        return self._allocated[self._root(result)]

    def free(self, position: int, args: Sequence[Any], result: Any) -> Iterator[int]:
        """Yield the numbers of the arguments of a call whose memory its result may have."""
        roots, own = [self._root(arg) for arg in args], self._root(result)
        if own is None or self._first[own] != position:
            return
        for number, (arg, root) in enumerate(zip(args, roots, strict=True)):
            alone = root is not None and not root.same_as(own) and sum(root.same_as(one) for one in roots) == 1
            if alone and self._last[root] == position and structural_equal(arg.ty, result.ty):
                yield number

    def join(self, result: Any, arg: Any) -> None:
        """Take a result's memory to be an argument's."""
        own, root = self._root(result), self._root(arg)
        self._last[root] = self._last[own]
        for var, one in self._same.items():
            if one.same_as(own):
                self._same[var] = root


# The functions ---------------------------------------------------------------------------------------


class _Variants:
    """Functions of a module that store their result in an argument.

    Attributes:
        functions: by variable.
        replaced: names of the functions that they are variants of.
    """

    def __init__(self, mod: IRModule) -> None:
        self._mod = mod
        self._of_loops: dict[str, Any] = {}
        self._variables: dict[tuple[str, int], Any] = {}
        self.functions: dict[Any, Any] = {}
        self.replaced: set[str] = set()

    def is_kernel(self, op: Any) -> bool:
        """Return whether what is called is a tensor function of the module."""
        return isinstance(op, GlobalVar) and isinstance(self._mod[op], tirx.PrimFunc)

    def get(self, var: Any, number: int) -> Any:
        """Return the variable of a function that stores its result in the argument of that number; None without one."""
        key = var.name_hint, number
        if key not in self._variables:
            func = self._stored_in(var, number)
            self._variables[key] = None
            if func is not None:
                self._variables[key] = own = GlobalVar(f"{var.name_hint}_in_place{number}")
                relax.expr._update_type(own, func.ty)
                self.functions[own] = func
                self.replaced.add(var.name_hint)
        return self._variables[key]

    def _stored_in(self, var: Any, number: int) -> Any:
        """Return a tensor function that stores its result in an argument; None where that would change the result."""
        func: Any = self._mod[var]
        if not _is_read_first(func.body, func.params[number], func.params[-1]):  # before it is lowered: that takes time
            return None
        lowered = self._lowered(var)
        *params, result = lowered.params
        argument, stores = params[number], list(_stores(lowered.body, result))
        if not _is_read_first(lowered.body, argument, result) or len(stores) != 1 or not _is_once(*stores[0]):
            return None

        def moved(store: Any) -> Any:
            return BufferStore(argument, store.value, store.indices) if store.buffer.same_as(result) else store

        return tirx.PrimFunc(params, structural_map(lowered.body, (BufferStore, moved)), func.ret_type, func.attrs)

    def _lowered(self, var: Any) -> Any:
        """Return a function whose blocks are loops."""
        if var.name_hint not in self._of_loops:
            func: Any = self._mod[var]
            mod: Any = LOOPS(IRModule({"main": func})) if is_of_blocks(func) else {"main": func}
            self._of_loops[var.name_hint] = mod["main"]
        return self._of_loops[var.name_hint]


def _is_read_first(body: Any, argument: Any, result: Any) -> bool:
    """Return whether statements read an element of an argument only in the one that stores the result's."""
    loads, stores, calls = (nodes_in(body, kind) for kind in (TensorLoad, BufferStore, Call))
    both = argument, result
    if any(any(one.same_as(arg) for one in both) for call in calls for arg in call.args):
        return False  # by its address
    own = [store for store in stores if store.buffer.same_as(result)]
    if len(own) != 1 or any(store.buffer.same_as(argument) for store in stores):
        return False
    read = [load for load in nodes_in(own[0].value, TensorLoad) if load.source.same_as(argument)]
    if len(read) != sum(load.source.same_as(argument) for load in loads):
        return False
    again = any(load.source.same_as(result) for load in loads)
    return not again and all(structural_equal(load.indices, own[0].indices) for load in read)


def _stores(stmt: Any, buffer: Any) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Yield the stores to a buffer, with the loops and the conditions around each."""
    if isinstance(stmt, BufferStore) and stmt.buffer.same_as(buffer):
        yield stmt, [], []
    elif isinstance(stmt, tirx.SeqStmt):
        for one in stmt.seq:
            yield from _stores(one, buffer)
    elif isinstance(stmt, tirx.AttrStmt):
        yield from _stores(stmt.body, buffer)
    elif isinstance(stmt, For):
        for store, loops, conditions in _stores(stmt.body, buffer):
            yield store, [stmt, *loops], conditions
    elif isinstance(stmt, IfThenElse) and stmt.else_case is None:
        for store, loops, conditions in _stores(stmt.then_case, buffer):
            yield store, loops, [stmt.condition, *conditions]


def _is_once(store: Any, loops: Sequence[Any], conditions: Sequence[Any]) -> bool:
    """Return whether a statement stores each element once, in loops and under conditions."""
    ranges: Any = {loop.loop_var: Range.from_min_extent(loop.min, loop.extent) for loop in loops}

    def scalar(index: Any) -> Any:
        """Return an index, a vector's as a loop over its lanes."""
        if not isinstance(index, Ramp):
            return index
        base: Any = index.base
        lane: Any = Var("lane", base.ty)
        zero, lanes = (IntImm(str(base.ty.dtype), n) for n in (0, int(index.lanes)))  # type: ignore[arg-type]
        ranges[lane] = Range.from_min_extent(zero, lanes)
        return base + index.stride * lane

    scalars = [scalar(index) for index in store.indices]
    condition: Any = tirx.all(*conditions) if conditions else True
    return bool(detect_iter_map(scalars, ranges, condition, IterMapLevel.Bijective).indices)

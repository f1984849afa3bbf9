"""The operators of a lowered network, the kernels that may be made of them, and the predicted time of each.

A kernel is what `FuseTIR` can make one function of and MetaSchedule can schedule. Its time is that of its call, of the
bytes that it reads and writes, and of its operations, also of those that it repeats.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import DataType, IRModule, relax
from tvm.ir import Op
from tvm.relax.analysis import has_reshape_pattern
from tvm.s_tir.stmt import SBlockRealize
from tvm.tirx import IntImm

from ....zoo.corpus.tir import flops_of, product_flops
from .elementwise import blocks_in
from .relax_graph import OPAQUE, TAKES_ELEMENTWISE, static_shape

# TVM's patterns: elementwise operators, those that broadcast, those that move elements, and reductions.
ELEMENTWISE, BROADCAST, INJECTIVE, REDUCTION = 0, 1, 2, 3
# Kernels that are looked at for one result.
MOST_STAGES = 64
# Elements of a product's tile that are computed from one element of an input before it is computed again.
_TILE = 48
# Of the peak rate: of vectors without multiply-adds and with dependencies, and of elements taken one by one.
_VECTOR_SHARE, _SCALAR_SHARE = 1 / 4, 1 / 32
# Operations for the index of an element that moves.
_INDEX_FLOPS = 2


@dataclass(frozen=True)
class MachineRates:
    """What a machine does in a second; the defaults are those of a core of a server of 2023.

    Attributes:
        flops: floating-point operations a second, of multiply-adds.
        cache_bandwidth: bytes a second to and from tensors that the caches hold.
        memory_bandwidth: bytes a second to and from larger ones.
        cache_bytes: size of a tensor that the caches hold.
        call: seconds that a call of a kernel takes; `view`: those of a reshape, which is no kernel.
    """

    flops: float = 1e11
    cache_bandwidth: float = 4e10
    memory_bandwidth: float = 1.2e10
    cache_bytes: int = 4 << 20
    call: float = 1e-6
    view: float = 3e-7

    def transfer(self, count: float, size: float) -> float:
        """Return the seconds for some bytes of a tensor of a size."""
        return count / (self.cache_bandwidth if size <= self.cache_bytes else self.memory_bandwidth)


class _TensorFunction:
    """What is known of a tensor function: the operations of a run, and the elements that it reads of each argument."""

    def __init__(self, function: Any) -> None:
        attrs, mod = function.attrs or {}, IRModule({"main": function})
        blocks = [block for block in blocks_in(function) if block.iter_vars]
        is_schedulable = isinstance(function.body, SBlockRealize) and len(blocks) > 0
        self.pattern = int(attrs.get("op_pattern", OPAQUE)) if is_schedulable else OPAQUE
        self.is_view = has_reshape_pattern(function)
        # As a padding does: MetaSchedule does not inline it into a product, and what is not there is not read.
        self.is_conditional = "if_then_else" in function.script()
        self.products = product_flops(mod) / 2 if self.pattern == TAKES_ELEMENTWISE else 0.0
        self.flops = 0.0 if self.is_view else flops_of(mod)
        self.reads = [sum(_reads(block, parameter) for block in blocks) for parameter in function.params]


def _reads(block: Any, parameter: Any) -> float:
    """Return the elements of a parameter that a block reads in all of its iterations."""
    times = prod(int(getattr(axis.dom.extent, "value", 1)) for axis in block.iter_vars)
    parts = [region.region for region in block.reads if region.source.same_as(parameter)]
    return float(sum(times * prod(int(getattr(one.extent, "value", 1)) for one in part) for part in parts))


@dataclass(frozen=True)
class GraphOperator:
    """One binding of a dataflow block.

    Attributes:
        function: that it calls; None for what is no call of a tensor function, and is left as it is.
        sources: positions of the bindings that it reads, one an argument, -1 for what is none of the block.
        elements: of the result; size: its bytes.
    """

    binding: Any
    function: _TensorFunction | None
    arguments: tuple[Any, ...]
    sources: tuple[int, ...]
    elements: int
    size: int

    @property
    def pattern(self) -> int:
        return OPAQUE if self.function is None else self.function.pattern


class OperatorGraph:
    """The operators of a dataflow block, and the kernels that may be made of them: sets of positions, as bits.

    Attributes:
        is_static: all shapes are known, and each function has one result.
        needed: operators whose result is read by what is no tensor function, or after the block.
    """

    def __init__(self, mod: IRModule, block: Any) -> None:
        self.block, self.is_static, self.needed = block, True, 0
        self.operators: list[GraphOperator] = []
        functions: dict[Any, _TensorFunction] = {}
        positions = {binding.var: at for at, binding in enumerate(block.bindings)}
        for at, binding in enumerate(block.bindings):
            value, function = binding.value, None
            arguments = tuple(relax.analysis.free_vars(value))
            if isinstance(value, relax.Call) and value.op == Op.get("relax.call_tir"):
                callee: Any = value.args[0]
                operands: Any = value.args[1]
                if len(value.args) > 2 or not all(map(_is_known, (binding.var, *operands))):
                    self.is_static = False
                else:
                    if callee not in functions:
                        functions[callee] = _TensorFunction(mod[callee])
                    function, arguments = functions[callee], tuple(operands)
            if function is None or not isinstance(binding.var, relax.DataflowVar):
                self.needed |= 1 << at
            sources = tuple(positions.get(one, -1) if isinstance(one, relax.Var) else -1 for one in arguments)
            count, size = _extent(binding.var) if function else (0, 0)
            self.operators.append(GraphOperator(binding, function, arguments, sources, count, size))
        self._ahead = [sum({1 << source for source in one.sources if source >= 0}) for one in self.operators]
        self._users = [0] * len(self.operators)
        self._complex, self._behind_complex, self._moving = 0, 0, 0
        for at, one in enumerate(self.operators):
            for source in positions_of(self._ahead[at]):
                self._users[source] |= 1 << at
            self._complex |= (one.pattern >= REDUCTION) << at
            self._moving |= (one.pattern == INJECTIVE) << at
            behind = one.pattern == ELEMENTWISE and self._ahead[at] & (self._complex | self._behind_complex) != 0
            self._behind_complex |= behind << at
        self._units = self._joined()

    def inputs(self, stage: int) -> int:
        """Return the results that a kernel reads."""
        read = 0
        for at in positions_of(stage):
            read |= self._ahead[at]
        return read & ~stage

    def stages(self, last: int) -> tuple[list[int], bool]:
        """Return the kernels that end in an operator, and whether these are all."""
        first = self._closed(self._units[last])
        known, queue = {first}, [first]
        for stage in queue:
            for source in positions_of(self.inputs(stage)):
                more = stage | self._units[source]
                if self._is_kernel(more) and (more := self._closed(more)) not in known:
                    if len(known) == MOST_STAGES:
                        return queue, False
                    known.add(more)
                    queue.append(more)
        return queue, True

    def _joined(self) -> list[int]:
        """Return the operators that are computed with each one: a product and what is elementwise behind it.

        To store a product never pays where nothing else reads it, and where no other product may take the same.
        """
        units = [1 << at for at in range(len(self.operators))]
        for at, one in enumerate(self.operators):
            takers = positions_of(self._ahead[at] & (self._complex | self._behind_complex))
            alone = [source for source in takers if self._is_alone(source, 1 << at)]
            if one.pattern == ELEMENTWISE and len(alone) == 1 and self._is_kernel(units[alone[0]] | 1 << at):
                units[at] |= units[alone[0]]
        return units

    def _closed(self, stage: int) -> int:
        """Return a kernel with the operators before it whose results nothing else reads, where storing them never pays.

        They are elementwise or move elements, and are about as many as the kernel's results.
        """
        while (
            source := next(filter(lambda one: self._never_stored(stage, one), positions_of(self.inputs(stage))), -1)
        ) >= 0:
            stage |= self._units[source]
        return stage

    def _never_stored(self, stage: int, source: int) -> bool:
        one, more = self.operators[source], stage | self._units[source]
        # Where elements move, no product can come before what would follow it.
        apart = 1 << source & self._behind_complex and more & self._moving
        apart = apart or (1 << source & self._moving and stage & self._behind_complex)
        before = self._users[source] & self._complex & stage or self._units[source] & self._complex
        enough = 2 * one.elements >= self.operators[stage.bit_length() - 1].elements
        return enough and not apart and not before and self._is_alone(source, more) and self._is_kernel(more)

    def _is_alone(self, source: int, stage: int) -> bool:
        """Return whether nothing beside a kernel reads an operator's result."""
        return not self._users[source] & ~stage and not self.needed >> source & 1

    def _is_kernel(self, stage: int) -> bool:
        """Return whether `FuseTIR` can make a function of some operators that MetaSchedule schedules well."""
        inside, heavy = list(positions_of(stage)), stage & self._complex
        if heavy & (heavy - 1) or any(self.operators[at].pattern > TAKES_ELEMENTWISE for at in inside):
            return False
        behind = heavy
        for at in inside if heavy else ():
            one = self.operators[at]
            if read := self._ahead[at] & behind:
                grows = one.elements > max(self.operators[source].elements for source in positions_of(read))
                if one.pattern != ELEMENTWISE or (grows and self._is_product(heavy)):
                    return False
                behind |= 1 << at
            elif not heavy >> at & 1 and (one.pattern > BROADCAST or (one.function and one.function.is_conditional)):
                return False
        # What costs much is computed once.
        return all(self._is_alone(at, stage) for at in positions_of(behind) if at != inside[-1])

    def _is_product(self, heavy: int) -> bool:
        function = self.operators[heavy.bit_length() - 1].function
        return function is not None and function.products > 0

    def preference(self, stage: int) -> int:
        """Return what is less for the better of two ways that take the same time: what may follow a product does."""
        return 1 if stage & self._complex else 1 + stage.bit_count()

    def seconds(self, stage: int, rates: MachineRates) -> float:
        """Return the predicted time of a kernel: its call, what it reads and writes, and what it computes.

        What stands before a product is computed again for each tile that reads it, element by element.
        """
        order = list(positions_of(stage))[::-1]
        last = self.operators[order[0]]
        if last.function is None:
            return 0.0
        if len(order) == 1 and last.function.is_view:
            return rates.view
        seconds, repeats = rates.call + rates.transfer(last.size, last.size), defaultdict[int, float](float)
        repeats[order[0]] = 1.0
        read: dict[Any, float] = {}
        for at in order:
            one, function = self.operators[at], self.operators[at].function
            assert function is not None
            heavy = self._complex >> at & 1
            times = 1.0 if heavy else repeats[at]
            again = times > 1 and self._users[at] & self._complex & stage
            share = 1.0 if function.products else _SCALAR_SHARE if again else _VECTOR_SHARE
            moved = _INDEX_FLOPS * (one.pattern == INJECTIVE)
            flops = 0.0 if function.is_view else max(function.flops, one.elements) + moved * one.elements
            seconds += times * flops / (rates.flops * share)
            for number, (argument, source) in enumerate(zip(one.arguments, one.sources, strict=True)):
                count = max(1, _extent(argument)[0])
                share = min(1.0, function.reads[number] / count)
                if source < 0 or not stage >> source & 1:
                    read[argument] = min(1.0, read.get(argument, 0.0) + share)
                elif function.products:
                    repeats[source] += 1.0 if function.is_conditional else max(1.0, function.products / count / _TILE)
                else:
                    repeats[source] += times * (share if function.is_conditional else function.reads[number] / count)
        sizes = [(_extent(argument)[1], share) for argument, share in read.items()]
        return seconds + sum(rates.transfer(share * size, size) for size, share in sizes)


def positions_of(mask: int) -> Iterator[int]:
    """Return the positions of the ones of a number, the lowest first."""
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1


def _is_known(value: Any) -> bool:
    """Return whether a value is a tensor of a known shape."""
    shape = value.ty.shape if isinstance(value.ty, relax.TensorType) else None
    return shape is not None and all(isinstance(extent, IntImm) for extent in shape)


def _extent(value: Any) -> tuple[int, int]:
    """Return the elements of a tensor, and its bytes."""
    count = prod(static_shape(value))
    return count, count * max(1, int(DataType(str(value.ty.dtype)).bits) // 8)

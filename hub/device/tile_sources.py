"""Tiles read from where the data lie, instead of from a copy in which a tile's rows follow each other.

A product copies its data as a rule, for they may have to be rounded or padded, or be an image. Where they are rows of
its factors' type already, a register can read 16 of them as they are.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import DataType, tirx
from tvm.ir import Call, Range, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import LT, AllocBuffer, BufferLoad, BufferStore, Evaluate, For, IfThenElse, IntImm, Select, SeqStmt, Var
from tvm_ffi import structural_map

from ...zoo.tile_instructions import BFLOAT16, INT8, UINT8
from .statements import call_name, flat_index, nodes_in, substituted, with_parts

# Rows of a register, and bytes of each.
_ROWS, _BYTES = 16, 64
# Types of data of which a copy in a type has the bits.
_TYPES = {(BFLOAT16.weights, BFLOAT16.data), *((one, one) for one in (UINT8.data, INT8.data))}
_INTRINSIC, _CONDITIONAL = "tirx.call_llvm_intrin", "prim.if_then_else"


def read_directly(stmt: Any, loops: tuple[Any, ...] = ()) -> Any:
    """Return lowered statements, with plain pointers, that read tiles from the data where these are rows.

    Rows that a copy fills with zeros, at its end, must be no results: other numbers take their place.
    """
    if not isinstance(stmt, SeqStmt):
        around = (*loops, stmt) if isinstance(stmt, For) else loops
        return with_parts(stmt, partial(read_directly, loops=around))
    parts: list[Any] = list(stmt.seq)
    for allocation in [one for one in parts if isinstance(one, AllocBuffer)]:
        for copying in [one for one in parts if isinstance(one, For)]:
            copy = _copy(copying, allocation.buffer)
            others = [one for one in parts if not one.same_as(copying) and not one.same_as(allocation)]
            if direct := copy and copy.avoided(allocation, others, loops):
                parts = direct
                break
    return tirx.stmt_seq(*(read_directly(one, loops) for one in parts))


@dataclass(frozen=True)
class _Copy:
    """Loops that copy rows of data to a buffer, in parts of a register's terms.

    Attributes:
        loops: over the parts, rows and terms, in some order.
        part, row, term: their variables.
        load: of the element of the data.
        condition: `x < rows`, where the last row of tiles goes beyond the data; else None.
    """

    buffer: Any
    loops: list[Any]
    part: Any
    row: Any
    term: Any
    load: Any
    condition: Any

    def avoided(self, allocation: Any, others: list[Any], around: tuple[Any, ...]) -> list[Any] | None:
        """Return the statements beside this one with tiles from the data; None where some tile cannot be.

        Rows at the end of the data that fill no register are copied all the same: a register would read beyond them.
        """
        analyzer, pointers = Analyzer(), [call for one in others for call in nodes_in(one, Call)]
        for loop in (*around, *(loop for one in others for loop in nodes_in(one, For))):
            analyzer.bind(loop.loop_var, Range.from_min_extent(loop.min, loop.extent))
        stride: Any = self._stride(analyzer)
        begin: Any = self._position(_number(0))
        next_one = self._position(self.row + 1) - self._position(self.row)
        in_a_row = self.condition is None or analyzer.can_prove(next_one == 1)
        if stride is None or not in_a_row or not analyzer.can_prove(begin % _ROWS == 0):
            return None
        direct_ones = list[Any]()

        def direct(stmt: Any) -> Any:
            """Return the read of a register, from the data where it was from the copy."""
            call = stmt.value
            offset = self._offset(call.args[2]) if call_name(call) == _INTRINSIC and len(call.args) == 4 else None
            if offset is None:
                return stmt
            terms = _BYTES // self._size
            size = int(self.buffer.shape[2]) * terms
            part: Any = analyzer.simplify(offset // size)
            row: Any = analyzer.simplify(offset % size // terms)
            if not analyzer.can_prove(row % _ROWS == 0):
                return stmt
            direct_ones.append(call)
            return self._read(stmt, part, row, stride)

        changed = [structural_map(one, (Evaluate, direct)) for one in others]
        if sum(map(self._is_pointer, pointers)) != len(direct_ones) or any(map(self._is_accessed, others)):
            return None
        return [allocation, self._last_rows(begin), *changed] if self._rest else changed

    @property
    def _size(self) -> int:
        """Return the bytes of a number."""
        return int(DataType(str(self.buffer.dtype)).itemsize)

    @property
    def _rest(self) -> int:
        """Rows at the end of the data that fill no register."""
        return int(self.condition.b) % _ROWS if self.condition is not None else 0

    def _position(self, row: Any) -> Any:
        """Return a row's number among the data's rows; 0 where no row is beyond them."""
        return _number(0) if self.condition is None else substituted(self.condition.a, [(self.row, row)])

    def _last_rows(self, begin: Any) -> Any:
        """Return the copy of the rows that fill no register, where they are among these rows."""
        first = int(self.condition.b) - self._rest - begin
        count, body = Var("row", self.row.ty), self.loops[-1].body
        store = BufferStore(body.buffer, self._bits(body.value), body.indices)
        nest = substituted(store, [(self.row, first + count)])
        for loop in reversed(self.loops):
            of_rows = loop.loop_var.same_as(self.row)
            var, extent = (count, _number(self._rest)) if of_rows else (loop.loop_var, loop.extent)
            nest = For(var, _number(0), extent, loop.kind, nest)
        among = tirx.all(first >= 0, first < int(self.buffer.shape[2]))
        return IfThenElse(among, nest, None)

    def _bits(self, value: Any) -> Any:
        return value.args[1] if call_name(value) == _CONDITIONAL else value

    def _is_pointer(self, call: Any) -> bool:
        return call_name(call) == "tirx.buffer_data" and call.args[0].same_as(self.buffer)

    def _is_accessed(self, stmt: Any) -> bool:
        """Return whether a statement reads or writes an element of the copy."""
        read = [load.source for load in nodes_in(stmt, TensorLoad)]
        written = [store.buffer for store in nodes_in(stmt, BufferStore)]
        return any(buffer.same_as(self.buffer) for buffer in (*read, *written))

    def _offset(self, pointer: Any) -> Any:
        """Return how far into the buffer a pointer is, in elements; None for one to something else."""
        is_sum = call_name(pointer) == "tirx.handle_add_byte_offset"
        return pointer.args[1] // self._size if is_sum and self._is_pointer(pointer.args[0]) else None

    def _element(self, part: Any, row: Any, term: Any) -> Any:
        """Return the load of an element of the data."""
        values = [(self.part, part), (self.row, row), (self.term, term)]
        return BufferLoad(self.load.source, [substituted(index, values) for index in self.load.indices])

    def _stride(self, analyzer: Any) -> int | None:
        """Return how far the rows are apart, in elements; None where the terms of one do not follow each other."""

        def flat(row: Any, term: Any) -> Any:
            return flat_index(self._element(self.part, row, term).indices, list(map(int, self.load.source.shape)))

        first = flat(self.row, _number(0))
        apart = analyzer.simplify(flat(self.row + 1, _number(0)) - first)
        along = analyzer.simplify(flat(self.row, self.term) - first - self.term)
        plain = isinstance(apart, IntImm) and isinstance(along, IntImm) and int(along) == 0
        return int(apart) if plain else None

    def _read(self, stmt: Any, part: Any, row: Any, stride: int) -> Any:
        """Return the read of a register from the rows that begin with one."""
        number, tile, *_ = stmt.value.args
        inside: Any = None
        if self.condition is not None:
            inside = self._position(row) + _ROWS <= self.condition.b
            row = row if self._rest else Select(inside, row, _number(0))  # nobody reads what comes of the others
        address = tirx.address_of(self._element(part, row, _number(0)))
        read = Evaluate(tirx.call_intrin("void", _INTRINSIC, number, tile, address, _number(self._size * stride)))
        return IfThenElse(inside, read, stmt) if self._rest else read


def _copy(loop: Any, buffer: Any) -> _Copy | None:
    """Return what loops copy to a buffer; None where they do something else."""
    loops = [loop]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    store, variables = loops[-1].body, [one.loop_var for one in loops]
    if not isinstance(store, BufferStore) or not store.buffer.same_as(buffer) or len(store.indices) != 4:
        return None
    _, part, row, term = store.indices
    indices = part, row, term
    known = all(any(index.same_as(var) for var in variables) for index in indices)
    value: Any = store.value
    condition: Any = None
    if call_name(value) == _CONDITIONAL:
        condition, value, other = value.args
        known = known and isinstance(other, IntImm) and int(other) == 0
    load: Any = value.args[0] if call_name(value) == "tirx.reinterpret" else value
    source: Any = load.source if isinstance(load, TensorLoad) else None
    as_read = source is not None and (str(source.dtype), str(buffer.dtype)) in _TYPES
    if not known or len(loops) != 3 or not as_read:
        return None
    extents = [next(one.extent for one in loops if one.loop_var.same_as(index)) for index in indices]
    if [*map(int, extents)] != [*map(int, buffer.shape[1:])]:
        return None
    if condition is not None and not (isinstance(condition, LT) and isinstance(condition.b, IntImm)):
        return None
    return _Copy(buffer, loops, part, row, term, load, condition)


def _number(value: int) -> Any:
    return IntImm("int64", value)

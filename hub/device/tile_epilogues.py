"""What follows a product on tile registers, computed while the next tile's products are added up.

The vector units have nothing to do while tiles are multiplied, and wait for the sums afterwards. So the first steps of
a long sum also bring the rows of the tile before to their end: bias, activation, rounding and what else follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import AllocBuffer, BufferLoad, For, ForKind, IfThenElse, IntImm, SeqStmt, Var
from tvm_ffi import structural_map

from .statements import call_name, nodes_in, substituted, with_body, with_parts

# Rows and columns of a tile's sums, and their bytes.
_TILE, _BYTES = 32, 4 * 32 * 32
# Steps from which it pays, measured: with fewer, the core itself looks that far ahead.
_MIN_STEPS = 16


def overlap_epilogues(stmt: Any) -> Any:
    """Return lowered statements whose tiles are brought to their end during the sums of the next ones."""
    nest = _nest(stmt) if isinstance(stmt, For) else None
    return with_parts(stmt, overlap_epilogues) if nest is None else nest.overlapped()


@dataclass(frozen=True)
class _TileNest:
    """Loops over tiles, in each of which sums are added up in steps, stored and brought to their end.

    Attributes:
        loops: over the tiles, outermost first.
        before, after: statements around the steps, for each tile.
        steps: the loop whose iterations add to the sums.
        epilogue: the loop over the rows of the sums.
        sums: the buffer that they are stored in.
    """

    loops: Sequence[Any]
    before: Sequence[Any]
    steps: Any
    after: Sequence[Any]
    epilogue: Any
    sums: Any

    def overlapped(self) -> Any:
        """Return one loop over the tiles, and the end of the last."""
        kind = self.loops[0].loop_var.ty
        variables: Any = [Var(name, kind) for name in ("tile", "row", "row")]
        tile, row, last = variables
        count, steps = prod(int(loop.extent) for loop in self.loops), int(self.steps.extent)
        rows = -(-_TILE // steps)
        sums = tirx.decl_buffer([2 * _TILE, _TILE], str(self.sums.dtype), "sums")  # of this tile and of the one before

        def serial(var: Any, extent: int, body: Any) -> Any:
            zero, end = (IntImm(str(kind.dtype), n) for n in (0, extent))
            return For(var, zero, end, ForKind.SERIAL, body)

        def summed(stmt: Any) -> Any:
            """Return a statement of the present tile."""

            def moved(call: Any) -> Any:
                if call_name(call) != "tirx.buffer_data" or not call.args[0].same_as(self.sums):
                    return call
                return tirx.handle_add_byte_offset(sums.data, tile % 2 * _BYTES)

            return structural_map(substituted(stmt, self._of_tile(tile)), (Call, moved))

        def ended(number: Any, row: Any) -> Any:
            """Return the end of a row of a tile."""

            def moved(load: Any) -> Any:
                if not load.source.same_as(self.sums):
                    return load
                first, *rest = load.indices
                return BufferLoad(sums, [number % 2 * _TILE + first, *rest])

            end = substituted(self.epilogue.body, [*self._of_tile(number), (self.epilogue.loop_var, row)])
            return structural_map(end, (TensorLoad, moved))

        step = self.steps.loop_var
        due = tirx.all(tile > 0, step < _TILE // rows)
        some = IfThenElse(due, serial(row, rows, ended(tile - 1, step * rows + row)), None)
        steps_of_both = with_body(self.steps, SeqStmt([summed(self.steps.body), some]))
        body = SeqStmt([*map(summed, self.before), steps_of_both, *map(summed, self.after)])
        rest = serial(last, _TILE, ended(IntImm(str(kind.dtype), count - 1), last))
        return SeqStmt([AllocBuffer(sums), serial(tile, count, body), rest])

    def _of_tile(self, number: Any) -> list[tuple[Any, Any]]:
        """Return the values of the loops' variables for a tile."""
        values: list[tuple[Any, Any]] = []
        for loop in reversed(self.loops):
            extent = int(loop.extent)
            values.append((loop.loop_var, number % extent if len(values) < len(self.loops) - 1 else number))
            number = number // extent
        return values


def _nest(stmt: Any) -> _TileNest | None:
    """Return loops over tiles; None for other ones, and where there is nothing to overlap."""
    loops = [stmt]
    while isinstance(loops[-1].body, For):
        loops.append(loops[-1].body)
    if not all(map(_is_serial, loops)) or not isinstance(loops[-1].body, SeqStmt):
        return None
    parts = _flat(loops[-1].body)
    allocations = [one for one in parts if isinstance(one, AllocBuffer)]
    *parts, epilogue = [one for one in parts if not isinstance(one, AllocBuffer)]
    inner = [number for number, one in enumerate(parts) if isinstance(one, For)]
    plain = all(isinstance(one, For | tirx.Evaluate) for one in parts)
    if len(inner) != 1 or not plain or not _is_serial(epilogue) or int(epilogue.extent) != _TILE:
        return None
    steps = parts[inner[0]]
    if not _is_serial(steps) or len({str(loop.loop_var.ty.dtype) for loop in (*loops, steps, epilogue)}) > 1:
        return None
    loads, buffers = nodes_in(epilogue, TensorLoad), [one.buffer for one in allocations]
    sums: list[Any] = [one for one in buffers if any(load.source.same_as(one) for load in loads)]
    if nodes_in(epilogue, AllocBuffer) or len(sums) != 1 or [*map(int, sums[0].shape)] != [_TILE, _TILE]:
        return None
    if prod(int(loop.extent) for loop in loops) < 2 or int(steps.extent) < _MIN_STEPS:
        return None
    others = [one for one in allocations if not one.buffer.same_as(sums[0])]
    return _TileNest(loops, [*others, *parts[: inner[0]]], steps, parts[inner[0] + 1 :], epilogue, sums[0])


def _is_serial(loop: Any) -> bool:
    return isinstance(loop, For) and loop.kind == ForKind.SERIAL and isinstance(loop.extent, IntImm)


def _flat(stmt: Any) -> list[Any]:
    return [one for part in stmt.seq for one in (_flat(part) if isinstance(part, SeqStmt) else [part])]

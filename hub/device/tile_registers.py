"""Scheduled programs on a CPU's tile registers (AMX), as they are compiled.

They need the system's permission, and the form of the tiles; and other passes over the lowered loops make them faster.

Linux keeps a process from tile registers until it asks for them, once; a compiled network asks by itself, so that it
runs wherever it is loaded. A thread then states how many rows and bytes each register holds, and lets them go at the
end, after which the system has less to save.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from tvm import DataType, tirx
from tvm.ir import Call
from tvm.s_tir.stmt import SBlock
from tvm.target import codegen
from tvm.tirx import AllocBuffer, For, ForKind
from tvm_ffi import structural_map

from ...zoo.tile_instructions import FACTORS, TILES, VECTORS, Factors
from .code_lookups import EXTENSION as LOOK_UP
from .extensions import vector_lanes
from .host_facts import TILE_PERMISSION
from .statements import LOOPS, call_name, nodes_in, with_lowered, with_parts
from .tile_epilogues import overlap_epilogues
from .tile_kernels import prefetch_tiles, share_columns, with_rounding
from .tile_sources import read_directly

_INSTRUCTIONS = ("tilezero", "tileloadd64", "tdpbf16ps", "tdpbusd", "tdpbssd", "tilestored64")
EXTENSIONS = ("amx-tile", "amx-bf16", "amx-int8", "avx512bf16")
"""LLVM's names of what a CPU must have."""
_TILES, _ROWS, _BYTES = 8, 16, 64
_FACTORS = frozenset(one.data for one in FACTORS)
_OF_PAIRS = {16: "avx512bw", 8: "avx2"}  # what multiplies numbers of 16 bits, by the floats of a register
_SUMS = 4  # of these, in which a product adds up


def has_tiles(target: Any) -> bool:
    """Return whether programs for a `tvm.target.Target` may use tile registers, of bfloat16 and of whole numbers."""
    return set(EXTENSIONS) <= _features(target)


def _features(target: Any) -> set[str]:
    """Return LLVM's names of what a target's CPU has; none of a card."""
    return set(map(str, codegen.llvm_get_cpu_features(target))) if target.kind.name == "llvm" else set()


def byte_factors(target: Any) -> tuple[Factors, ...]:
    """Return the factors by which a target's CPU multiplies numbers of 8 bits; none where it has no instruction."""
    if has_tiles(target):
        return TILES
    features = _features(target)
    known = {"avx512vnni": 16, "avxvnni": 8, "dotprod": 4}
    return next((VECTORS[lanes] for name, lanes in known.items() if name in features), ())


def instructions_of(target: Any) -> dict[str, Any]:
    """Return what `prepare.for_inference` should know of a target's CPU: its `lanes`, `of_bytes`, `pairs`, `tables`."""
    lanes, features = vector_lanes(target), _features(target)
    pairs, tables = _OF_PAIRS.get(lanes) in features, LOOK_UP in features
    return {"lanes": lanes, "of_bytes": byte_factors(target), "pairs": pairs, "tables": tables}


def with_tile_registers(mod: Any, threads: int = 1) -> Any:
    """Return a scheduled `IRModule` whose functions ask for tile registers and set them up, where they need them.

    Args:
        threads: that run a function.
    """

    def uses_tiles(func: Any) -> bool:
        return _has_factors(func) and _uses_tiles(func.body)

    def prepared(func: Any) -> Any:
        return func.with_body(tirx.stmt_seq(_permission(), _set_up(_faster(func.body, threads))))

    return with_lowered(mod, uses_tiles, prepared, lambda functions: with_rounding(LOOPS(functions)))


def _faster(body: Any, threads: int) -> Any:
    """Return lowered statements, with plain pointers, that prefetch weights, copy less, and overlap their epilogues."""
    direct = read_directly(structural_map(prefetch_tiles(body), (Call, _addressed)))
    if threads > 1 and len(_calls(direct, "tilezero")) == _SUMS:  # attention has two products
        direct = share_columns(direct, lambda stmt: bool(_calls(stmt, "tilezero")), threads)
    return overlap_epilogues(direct)


def _addressed(call: Any) -> Any:
    """Return a plain pointer in the place of TVM's pointer to a region.

    The region is what TVM leaves room for. Once it has, it may let tensors of several types share their memory, and
    then refuses pointers of either type.
    """
    if call_name(call) != "tirx.tvm_access_ptr":
        return call
    kind, data, offset, *_ = call.args
    size = tirx.const(DataType(str(kind.ty)).itemsize, str(offset.ty))
    return tirx.handle_add_byte_offset(data, offset * size)


def _set_up(stmt: Any) -> Any:
    """Return statements whose threads set up the registers before they multiply."""
    if not _uses_tiles(stmt):
        return stmt
    if isinstance(stmt, tirx.SeqStmt):
        every = list(stmt.seq)
        using = [n for n, one in enumerate(every) if _uses_tiles(one)]
        first, end = using[0], using[-1] + 1
        middle = _set_up(every[first]) if len(using) == 1 else _within(tirx.stmt_seq(*every[first:end]))
        return tirx.stmt_seq(*every[:first], middle, *every[end:])
    if isinstance(stmt, For) and all(loop.kind != ForKind.PARALLEL for loop in nodes_in(stmt, For)):
        return _within(stmt)
    if isinstance(stmt, For | tirx.AttrStmt):
        is_parallel = isinstance(stmt, For) and stmt.kind == ForKind.PARALLEL
        return with_parts(stmt, _within if is_parallel else _set_up)
    return _within(stmt)


def _within(stmt: Any) -> Any:
    """Return statements between the set-up of all registers, alike, and their release."""
    form = tirx.decl_buffer([_BYTES], "uint8", "tile_form")
    values = {0: 1} | {16 + 2 * tile: _BYTES for tile in range(_TILES)} | {48 + tile: _ROWS for tile in range(_TILES)}
    stores = [
        tirx.BufferStore(form, tirx.const(values.get(n, 0), "uint8"), [tirx.const(n, "int32")]) for n in range(_BYTES)
    ]
    address = tirx.address_of(tirx.BufferLoad(form, [tirx.const(0, "int32")]))
    return tirx.stmt_seq(
        tirx.AllocBuffer(form), *stores, _instruction("ldtilecfg", [address]), stmt, _instruction("tilerelease")
    )


def _permission() -> Any:
    """Return a call of the system; where the process has the permission it costs less than a tenth of a microsecond."""
    numbers = (tirx.const(n, "int64") for n in TILE_PERMISSION)
    return tirx.Evaluate(tirx.call_extern("int64", "syscall", *numbers))


def _instruction(name: str, args: Sequence[Any] = ()) -> Any:
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *args))


@cache
def _number(name: str) -> int:
    return int(codegen.llvm_lookup_intrinsic_id(f"llvm.x86.{name}"))


def _has_factors(func: Any) -> bool:
    """Return whether a function computes numbers of 8 or 16 bits, as factors are: to look at each call is slow."""
    of_blocks = [buffer for block in nodes_in(func.body, SBlock) for buffer in block.alloc_buffers]
    buffers = [*of_blocks, *(one.buffer for one in nodes_in(func.body, AllocBuffer))]
    return any(str(buffer.dtype) in _FACTORS for buffer in buffers)


def _uses_tiles(stmt: Any) -> bool:
    """Return whether statements have instructions on tile registers."""
    return bool(_calls(stmt, *_INSTRUCTIONS))


def _calls(stmt: Any, *names: str) -> list[Any]:
    """Return the calls of some instructions in statements."""
    numbers = set(map(_number, names))
    llvm = [call for call in nodes_in(stmt, Call) if call_name(call) == "tirx.call_llvm_intrin"]
    return [call for call in llvm if int(getattr(call.args[0], "value", -1)) in numbers]

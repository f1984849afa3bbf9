"""What a program on a CPU's tile registers (AMX) needs around it: the system's permission, and the form of the tiles.

And what makes it faster where its loops are known: it rounds to bfloat16 by an instruction, and reads weights ahead.

Linux keeps a process from tile registers until it asks for them, once; a compiled network asks by itself, so that it
runs wherever it is loaded. A thread then states how many rows and bytes each register holds, and lets them go at the
end, after which the system has less to save.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tvm import DataType, IRModule, tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir.stmt import SBlock
from tvm.target import codegen
from tvm.tirx import BufferStore, Cast, For, ForKind, IntImm, PrimFunc, Var
from tvm_ffi import structural_map, structural_walk

from .host_facts import TILE_PERMISSION
from .weight_prefetch import LOOPS, prefetch_tiles

_INSTRUCTIONS = ("tilezero", "tileloadd64", "tdpbf16ps", "tilestored64")
EXTENSIONS = ("amx-tile", "amx-bf16", "avx512bf16")
"""LLVM's names of what a CPU must have."""
_TILES, _ROWS, _BYTES = 8, 16, 64
_ROUND, _LANES = "llvm.x86.avx512bf16.cvtneps2bf16.512", 16
_PUT_OFF = "tchub.vectorised"


def has_tiles(target: Any) -> bool:
    """Return whether programs for a `tvm.target.Target` may use tile registers of bfloat16."""
    return target.kind.name == "llvm" and set(EXTENSIONS) <= set(map(str, codegen.llvm_get_cpu_features(target)))


def with_tile_registers(mod: Any) -> Any:
    """Return a scheduled `IRModule` whose functions ask for tile registers and set them up, where they need them."""
    functions: Any = mod.functions_items()
    kernels: dict[Any, Any] = {var: func for var, func in functions if isinstance(func, PrimFunc)}
    using = {var: func for var, func in kernels.items() if _has_factors(func) and _uses_tiles(func.body)}
    if not using:
        return mod
    lowered = _with_rounding(LOOPS(IRModule(using)))
    own = {
        var.name_hint: func.with_body(tirx.stmt_seq(_permission(), _set_up(_read_ahead(func.body))))
        for var, func in lowered.functions_items()
    }
    return IRModule({v: own.get(v.name_hint) or func for v, func in functions}, mod.attrs, mod.global_infos)


def _with_rounding(mod: Any) -> Any:
    """Return lowered functions that round results to bfloat16 by the CPU's instruction for it, 16 numbers at a time.

    Where loops are still loops, TVM rounds by six operations on integers, which take longer than all else that follows
    a product.
    """

    def prepared(loop: Any) -> Any:
        """Return a loop of vectors of 16 where numbers are rounded; other vectorised loops are put off."""
        if loop.kind != ForKind.VECTORIZED:
            return loop
        extent = int(loop.extent) if isinstance(loop.extent, IntImm) else 0
        if extent % _LANES or not _has(loop.body, Cast, _rounds) or not _is_last(loop):
            marked: Any = {**loop.annotations, _PUT_OFF: 1}
            return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body, None, marked)
        ty = loop.loop_var.ty
        number, lane = Var("vector", ty), Var("lane", ty)
        value = {loop.loop_var: number * _LANES + lane}
        body = structural_map(loop.body, (Var, lambda var: value.get(var, var)))
        zero, lanes, vectors = (tirx.const(n, str(ty.dtype)) for n in (0, _LANES, extent // _LANES))
        return For(number, zero, vectors, ForKind.UNROLLED, For(lane, zero, lanes, ForKind.VECTORIZED, body))

    def instruction(cast: Any) -> Any:
        if not _rounds(cast) or str(cast.ty.dtype) != f"bfloat16x{_LANES}":
            return cast
        bits = tirx.call_llvm_pure_intrin(f"uint16x{_LANES}", _ROUND, cast.value)
        return tirx.reinterpret(str(cast.ty.dtype), bits)

    def restored(loop: Any) -> Any:
        if _PUT_OFF not in loop.annotations:
            return loop
        others = {key: value for key, value in loop.annotations.items() if key != _PUT_OFF}
        return For(loop.loop_var, loop.min, loop.extent, ForKind.VECTORIZED, loop.body, None, others)

    def mapped(mod: Any, *change: Any) -> Any:
        functions = {var: func.with_body(structural_map(func.body, change)) for var, func in mod.functions_items()}
        return IRModule(functions, mod.attrs, mod.global_infos)

    vectors = tirx.transform.VectorizeLoop()(mapped(mod, For, prepared))
    return mapped(mapped(vectors, Cast, instruction), For, restored)


def _is_last(loop: Any) -> bool:
    """Return whether the variable of a loop is in the last index alone of what is read and written, as vectors need."""
    accesses: list[Any] = []
    structural_walk(loop.body, [(TensorLoad, accesses.append), (BufferStore, accesses.append)])
    used: list[Any] = []
    for one in accesses:
        for index in one.indices[:-1]:
            structural_walk(index, (Var, used.append))
    return not any(var.same_as(loop.loop_var) for var in used)


def _rounds(cast: Any) -> bool:
    return str(cast.ty.dtype).startswith("bfloat16") and str(cast.value.ty.dtype).startswith("float32")


def _read_ahead(body: Any) -> Any:
    """Return lowered statements that prefetch weights, with plain pointers."""
    return structural_map(prefetch_tiles(body), (Call, _addressed))


def _addressed(call: Any) -> Any:
    """Return a plain pointer in the place of TVM's pointer to a region.

    The region is what TVM leaves room for. Once it has, it may let tensors of several types share their memory, and
    then refuses pointers of either type.
    """
    if str(getattr(call.op, "name", "")) != "tirx.tvm_access_ptr":
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
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _set_up(stmt.body))
    if isinstance(stmt, For) and _has(stmt, For, lambda loop: loop.kind == ForKind.PARALLEL):
        body = _within(stmt.body) if stmt.kind == ForKind.PARALLEL else _set_up(stmt.body)
        return For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, stmt.annotations)
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
def _numbers() -> set[int]:
    return {int(codegen.llvm_lookup_intrinsic_id(f"llvm.x86.{name}")) for name in _INSTRUCTIONS}


def _has_factors(func: Any) -> bool:
    """Return whether a function computes numbers of 16 bits, as factors of tiles are: to look at each call is slow."""
    blocks: list[Any] = []
    structural_walk(func.body, (SBlock, blocks.append))
    return not blocks or any(str(buffer.dtype) == "uint16" for block in blocks for buffer in block.alloc_buffers)


def _uses_tiles(stmt: Any) -> bool:
    """Return whether statements have instructions on tile registers."""

    def is_instruction(call: Any) -> bool:
        llvm = str(getattr(call.op, "name", "")) == "tirx.call_llvm_intrin"
        return llvm and int(getattr(call.args[0], "value", -1)) in _numbers()

    return _has(stmt, Call, is_instruction)


def _has(stmt: Any, kind: type, matches: Callable[[Any], bool]) -> bool:
    matching: list[Any] = []
    structural_walk(stmt, (kind, lambda node: matching.append(node) if matches(node) else None))
    return bool(matching)

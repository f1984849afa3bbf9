"""Instructions on tile registers (AMX) as tensor intrinsics of TVM, which schedules name.

They are known to a process once `register_instructions` has been called there; a trace with their names cannot be
replayed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

CLEAR, ADD, ADD_COMPUTED, STORE = NAMES = tuple(
    f"tchub.tiles.{name}" for name in ("clear", "add", "add_computed", "store")
)
_NAMED = "Tensorize"
_registering, _registered = Lock(), list[bool]()
_BUFFERS = {
    "A": '[32, 32], "uint16"',
    "B": '[16, 32, 2], "bfloat16"',
    "P": '[16, 32], "uint32"',
    "C": '[32, 32], "float32"',
    "D": '[32, 32], "float32"',
}
_REGIONS = {
    "A": "A[0:32, 0:32]",
    "B": "B[0:16, 0:32, 0:2]",
    "P": "P[0:16, 0:32]",
    "C": "C[0:32, 0:32]",
    "D": "D[0:32, 0:32]",
}


def register_instructions() -> None:
    """Make the instructions known to TVM's schedules: to clear 32 x 32 sums, add products to them, and store them.

    The sums are in the registers 0 to 3, a quarter of 16 x 16 each, whatever buffer a schedule has for them. A factor
    is bits of bfloat16, 32 rows of 32 terms; the other one weights as `tile_products.packed` in the hub lays them out,
    or, of ADD_COMPUTED, pairs of their terms as numbers of 32 bits.
    """
    with _registering:
        if not _registered:
            _register()
            _registered.append(True)


def _register() -> None:
    from tvm.s_tir import TensorIntrin

    wide = 'T.reinterpret("float32", T.shift_left(T.cast(A[x, z], "uint32"), T.uint32(16)))'
    product = f'C[x, y] + {wide} * T.cast(B[z // 2, y, z % 2], "float32")'
    shifted = 'T.shift_left(T.shift_right(P[z // 2, y], T.cast(z % 2 * 16, "uint32")), T.uint32(16))'
    of_pairs = f'C[x, y] + {wide} * T.reinterpret("float32", {shifted})'
    # Two pages of weights ahead: the core's own prefetching ends with each page.
    ahead = [f'T.call_intrin("void", "tirx.prefetch", T.address_of(B[{row}, 0, 0]), 0, 2, 1)' for row in (64, 72)]
    left = [_moves("tileloadd64", 4 + n, f'A.access_ptr("r", offset={16 * n} * s_A)', "2 * s_A") for n in range(2)]
    right = [_moves("tileloadd64", 6 + n, f"T.address_of(B[0, {16 * n}, 0])", "2 * s_B") for n in range(2)]
    pairs = [_moves("tileloadd64", 6 + n, f'P.access_ptr("r", offset={16 * n})', "4 * s_P") for n in range(2)]
    sums = [_tile("tdpbf16ps", 2 * i + j, 4 + i, 6 + j) for i in range(2) for j in range(2)]
    stores = [
        _moves("tilestored64", 2 * i + j, f'D.access_ptr("w", offset={16 * i} * s_D + {16 * j})', "4 * s_D")
        for i in range(2)
        for j in range(2)
    ]
    for name, reads, writes, kinds, value, instructions in (
        (CLEAR, "", "C", "SS", "T.float32(0)", [_tile("tilezero", n) for n in range(4)]),
        (ADD, "CAB", "C", "SSR", product, [*ahead, left[0], *right, *sums[:2], left[1], *sums[2:]]),
        (ADD_COMPUTED, "CAP", "C", "SSR", of_pairs, [left[0], *pairs, *sums[:2], left[1], *sums[2:]]),
        (STORE, "C", "D", "SS", "C[x, y]", stores),
    ):
        axes = "xyz"[: len(kinds)]
        loops = [
            f"for {', '.join(f'i_{x}' for x in axes)} in T.grid({', '.join(['32'] * len(axes))}):",
            "    with T.sblock('update'):",
            f"        {', '.join(axes)} = T.axis.remap('{kinds}', [{', '.join(f'i_{x}' for x in axes)}])",
            f"        {writes}[x, y] = {value}",
        ]
        buffers = sorted({*reads, writes})
        described = _function(buffers, reads, writes, loops)
        computed = _function(buffers, reads, writes, [f"T.evaluate({i})" for i in instructions])
        TensorIntrin.register(name, described, computed)


def register_named(trace: Sequence[Any]) -> None:
    """Make the instructions known that a trace, `[instructions, decisions]`, names."""
    if any(inst[0] == _NAMED and set(NAMES) & set(map(str, inst[2])) for inst in trace[0]):
        register_instructions()


def _tile(name: str, *tiles: int) -> str:
    return f'T.call_llvm_intrin("void", "llvm.x86.{name}", {", ".join(f"T.int8({tile})" for tile in tiles)})'


def _moves(name: str, tile: int, address: str, stride: str) -> str:
    """Return the move of a register from or to memory, its rows so many bytes apart."""
    return f'T.call_llvm_intrin("void", "llvm.x86.{name}", T.int8({tile}), {address}, T.cast({stride}, "int64"))'


def _function(buffers: Sequence[str], reads: str, writes: str, body: Sequence[str]) -> Any:
    """Return a function of buffers whose rows may be apart from each other."""
    from tvm.script import from_source

    lines = ["@T.prim_func(s_tir=True)", f"def function({', '.join(f'{x.lower()}: T.handle' for x in buffers)}):"]
    for x in buffers:
        inner = ", 2, 1" if x == "B" else ", 1"
        lines.append(f"    s_{x} = T.int32()")
        lines.append(f"    {x} = T.match_buffer({x.lower()}, {_BUFFERS[x]}, offset_factor=1, strides=[s_{x}{inner}])")
    lines.append("    with T.sblock('root'):")
    lines.append(f"        T.reads({', '.join(_REGIONS[x] for x in reads)})")
    lines.append(f"        T.writes({_REGIONS[writes]})")
    return from_source("\n".join([*lines, *(f"        {line}" for line in body)]))

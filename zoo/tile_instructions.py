"""Instructions on tile registers (AMX) as tensor intrinsics of TVM, which schedules name.

They are known to a process once `register_instructions` has been called there; a trace with their names cannot be
replayed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any


@dataclass(frozen=True)
class Factors:
    """Types of the factors of a product, and of its sums.

    Attributes:
        data: type in which the first factor is stored; of bfloat16 its bits.
        weights: type of the second one.
        group: terms of it that follow each other, in 32 bits.
        sums: type of the sums.
        instruction: that multiplies and adds.
    """

    data: str
    weights: str
    group: int
    sums: str
    instruction: str

    @property
    def terms(self) -> int:
        """Return the terms of a sum that one instruction adds."""
        return 16 * self.group

    @property
    def clear(self) -> str:
        """Return the name of the instruction that clears the sums."""
        return f"tchub.tiles.clear{_SUFFIXES[self.sums]}"

    @property
    def add(self) -> str:
        """Return the name of the instruction that adds products to the sums."""
        return f"tchub.tiles.add{_SUFFIXES[self.data]}"

    @property
    def store(self) -> str:
        """Return the name of the instruction that stores the sums."""
        return f"tchub.tiles.store{_SUFFIXES[self.sums]}"


_SUFFIXES = {"float32": "", "uint16": "", "int32": "_int32", "uint8": "_uint8", "int8": "_int8"}
BFLOAT16 = Factors("uint16", "bfloat16", 2, "float32", "tdpbf16ps")
UINT8 = Factors("uint8", "int8", 4, "int32", "tdpbusd")
INT8 = Factors("int8", "int8", 4, "int32", "tdpbssd")
FACTORS = BFLOAT16, UINT8, INT8
ADD_COMPUTED = "tchub.tiles.add_computed"
NAMES = frozenset((ADD_COMPUTED, *(name for one in FACTORS for name in (one.clear, one.add, one.store))))
_NAMED = "Tensorize"
_registering, _registered = Lock(), list[bool]()


def register_instructions() -> None:
    """Make the instructions known to TVM's schedules: to clear 32 x 32 sums, add products to them, and store them.

    The sums are in the registers 0 to 3, a quarter of 16 x 16 each, whatever buffer a schedule has for them. A factor
    is 32 rows of 64 bytes, bits of bfloat16 or whole numbers; the other one weights as `tile_products.packed` in the
    hub lays them out, or, of ADD_COMPUTED, pairs of terms of bfloat16 as numbers of 32 bits.
    """
    with _registering:
        if not _registered:
            _register()
            _registered.append(True)


def _register() -> None:
    for one in FACTORS:
        _register_product(one)
    for one in (BFLOAT16, UINT8):  # whole numbers of either sign have the same sums
        zero = f"T.{one.sums}(0)"
        cleared = [_tile("tilezero", n) for n in range(4)]
        _add_intrinsic(one.clear, one, "", "C", "SS", zero, cleared)
        moves = [
            _moves("tilestored64", 2 * i + j, f'D.access_ptr("w", offset={16 * i} * s_D + {16 * j})', "4 * s_D")
            for i in range(2)
            for j in range(2)
        ]
        _add_intrinsic(one.store, one, "C", "D", "SS", "C[x, y]", moves)


def _register_product(factors: Factors) -> None:
    """Register the instruction that adds products, and of bfloat16 the one for pairs of terms."""
    size, of_half = 4 // factors.group, factors is BFLOAT16
    wide = 'T.reinterpret("float32", T.shift_left(T.cast(A[x, z], "uint32"), T.uint32(16)))'
    one = wide if of_half else 'T.cast(A[x, z], "int32")'
    value = f'C[x, y] + {one} * T.cast(B[z // {factors.group}, y, z % {factors.group}], "{factors.sums}")'
    # Two pages of weights ahead: the core's own prefetching ends with each page.
    ahead = [f'T.call_intrin("void", "tirx.prefetch", T.address_of(B[{row}, 0, 0]), 0, 2, 1)' for row in (64, 72)]
    left = [
        _moves("tileloadd64", 4 + n, f'A.access_ptr("r", offset={16 * n} * s_A)', f"{size} * s_A") for n in range(2)
    ]
    right = [_moves("tileloadd64", 6 + n, f"T.address_of(B[0, {16 * n}, 0])", f"{size} * s_B") for n in range(2)]
    sums = [_tile(factors.instruction, 2 * i + j, 4 + i, 6 + j) for i in range(2) for j in range(2)]
    steps = [*ahead, left[0], *right, *sums[:2], left[1], *sums[2:]]
    _add_intrinsic(factors.add, factors, "CAB", "C", "SSR", value, steps)
    if of_half:
        shifted = 'T.shift_left(T.shift_right(P[z // 2, y], T.cast(z % 2 * 16, "uint32")), T.uint32(16))'
        pairs = [_moves("tileloadd64", 6 + n, f'P.access_ptr("r", offset={16 * n})', "4 * s_P") for n in range(2)]
        steps = [left[0], *pairs, *sums[:2], left[1], *sums[2:]]
        value = f'C[x, y] + {wide} * T.reinterpret("float32", {shifted})'
        _add_intrinsic(ADD_COMPUTED, factors, "CAP", "C", "SSR", value, steps)


def _add_intrinsic(
    name: str, factors: Factors, reads: str, writes: str, kinds: str, value: str, instructions: Sequence[str]
) -> None:
    """Register an instruction under a name, as what computes `value` for each element of a tile."""
    from tvm.s_tir import TensorIntrin

    axes = "xyz"[: len(kinds)]
    extents = ", ".join(["32", "32", str(factors.terms)][: len(axes)])
    loops = [
        f"for {', '.join(f'i_{x}' for x in axes)} in T.grid({extents}):",
        "    with T.sblock('update'):",
        f"        {', '.join(axes)} = T.axis.remap('{kinds}', [{', '.join(f'i_{x}' for x in axes)}])",
        f"        {writes}[x, y] = {value}",
    ]
    buffers = sorted({*reads, writes})
    described = _function(factors, buffers, reads, writes, loops)
    computed = _function(factors, buffers, reads, writes, [f"T.evaluate({i})" for i in instructions])
    TensorIntrin.register(name, described, computed)


def register_named(trace: Sequence[Any]) -> None:
    """Make the instructions known that a trace, `[instructions, decisions]`, names."""
    if any(inst[0] == _NAMED and not NAMES.isdisjoint(map(str, inst[2])) for inst in trace[0]):
        register_instructions()


def _tile(name: str, *tiles: int) -> str:
    return f'T.call_llvm_intrin("void", "llvm.x86.{name}", {", ".join(f"T.int8({tile})" for tile in tiles)})'


def _moves(name: str, tile: int, address: str, stride: str) -> str:
    """Return the move of a register from or to memory, its rows so many bytes apart."""
    return f'T.call_llvm_intrin("void", "llvm.x86.{name}", T.int8({tile}), {address}, T.cast({stride}, "int64"))'


def _function(factors: Factors, buffers: Sequence[str], reads: str, writes: str, body: Sequence[str]) -> Any:
    """Return a function of buffers whose rows may be apart from each other."""
    from tvm.script import from_source

    forms = {
        "A": ([32, factors.terms], factors.data),
        "B": ([16, 32, factors.group], factors.weights),
        "P": ([16, 32], "uint32"),
        **dict.fromkeys("CD", ([32, 32], factors.sums)),
    }

    def region(x: str) -> str:
        return f"{x}[{', '.join(f'0:{extent}' for extent in forms[x][0])}]"

    lines = ["@T.prim_func(s_tir=True)", f"def function({', '.join(f'{x.lower()}: T.handle' for x in buffers)}):"]
    for x in buffers:
        inner = f", {factors.group}, 1" if x == "B" else ", 1"
        extents, dtype = forms[x]
        lines.append(f"    s_{x} = T.int32()")
        lines.append(
            f'    {x} = T.match_buffer({x.lower()}, {extents}, "{dtype}", offset_factor=1, strides=[s_{x}{inner}])'
        )
    lines.append("    with T.sblock('root'):")
    lines.append(f"        T.reads({', '.join(map(region, reads))})")
    lines.append(f"        T.writes({region(writes)})")
    return from_source("\n".join([*lines, *(f"        {line}" for line in body)]))

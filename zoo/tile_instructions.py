"""Instructions that multiply tiles as tensor intrinsics of TVM, which schedules name: of tile registers (AMX), and of
vector registers for whole numbers of 8 bits (VNNI of x86, SDOT of Arm).

They are known to a process once `register_instructions` has been called there; a trace with their names cannot be
replayed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        instruction: that multiplies and adds, by LLVM's name without `llvm.`.
        lanes: sums of a vector register; 0 for those of tile registers.
        offset: is added to each number of the first factor, which is of the other type of 8 bits otherwise.
        rows: that are computed together, with 32 columns.
        groups: that one instruction adds to each sum.
    """

    data: str
    weights: str
    group: int
    sums: str
    instruction: str
    lanes: int = 0
    offset: int = 0
    rows: int = 32
    groups: int = 16

    @property
    def size(self) -> str:
        """Return the rows and the lanes, and groups of which there are not 16, as names have them."""
        return f"{self.rows}x{self.lanes}" + (f"x{self.groups}" if self.groups < 16 else "")

    @property
    def scope(self) -> str:
        """Return where a schedule has the sums of a tile; tile registers have them whatever it says."""
        return "local" if self.lanes else "global"

    @property
    def terms(self) -> int:
        """Return the terms of a sum that one instruction adds."""
        return self.groups * self.group

    @property
    def clear(self) -> str:
        """Return the name of the instruction that clears the sums."""
        return f"tchub.tiles.clear{_SUFFIXES[self.sums]}"

    @property
    def add(self) -> str:
        """Return the name of the instruction that adds products to the sums."""
        return f"tchub.vectors.add_{self.size}" if self.lanes else f"tchub.tiles.add{_SUFFIXES[self.data]}"

    @property
    def add_computed(self) -> str:
        """Return the name of the one that does so where the weights are computed, as words of a group."""
        return self.add if self.lanes else f"tchub.tiles.add_computed{_SUFFIXES[self.data]}"

    @property
    def store(self) -> str:
        """Return the name of the instruction that stores the sums."""
        return f"tchub.tiles.store{_SUFFIXES[self.sums]}"


_SUFFIXES = {"float32": "", "uint16": "", "int32": "_int32", "uint8": "_uint8", "int8": "_int8"}
BFLOAT16 = Factors("uint16", "bfloat16", 2, "float32", "x86.tdpbf16ps")
UINT8 = Factors("uint8", "int8", 4, "int32", "x86.tdpbusd")
INT8 = Factors("int8", "int8", 4, "int32", "x86.tdpbssd")
FACTORS = BFLOAT16, UINT8, INT8
TILES = UINT8, INT8
"""Factors of a product by tile registers whose data are uint8, and those whose data are int8."""


def _of_vectors(
    data: str, instruction: str, lanes: int, rows: int, offsets: tuple[int, int]
) -> tuple[Factors, Factors]:
    """Return the factors of uint8 and of int8 for vector registers, whose weights are words of four."""
    unsigned, signed = (Factors(data, "uint32", 4, "int32", instruction, lanes, offset, rows) for offset in offsets)
    return unsigned, signed


# Weights have a sign; data have none on x86, and one on Arm.
VECTORS = {
    16: _of_vectors("uint8", "x86.avx512.vpdpbusd.512", 16, 8, (0, 128)),
    8: _of_vectors("uint8", "x86.avx512.vpdpbusd.256", 8, 2, (0, 128)),
    4: _of_vectors("int8", "aarch64.neon.sdot.v4i32.v16i8", 4, 2, (-128, 0)),
}
"""The same by vector registers of so many sums."""
ROWS = {16: (8, 7), 8: (2,), 4: (2,)}
"""Rows that may be computed together, by lanes: images of 7, 14 and 28 columns have whole ones of seven."""
GROUPS = {16: (16, 4, 1), 8: (16, 4, 1), 4: (16, 4)}
"""Groups that may be read together, by lanes: what a product has more of is filled up. Arm's instruction reads four."""
SIZES = {
    (one := tuple(replace(each, rows=rows, groups=groups) for each in pair))[0].size: one
    for lanes, pair in VECTORS.items()
    for rows in ROWS[lanes]
    for groups in GROUPS[lanes]
}
"""All factors for vector registers, by their rows, lanes and groups."""
NAMES = frozenset((
    *(name for one in FACTORS for name in (one.clear, one.add, one.add_computed, one.store)),
    *(one.add for pair in SIZES.values() for one in pair),
))  # fmt: skip
OF_TILE = "tchub.of_tile"
"""The annotation of the loops over the groups of terms that an instruction by vector registers reads."""
_NAMED = "Tensorize"
# A sum, and a product of 8 bits that is added to it, whose second factor is one of the four in a word.
_WORD = 'T.cast(T.cast(T.shift_right(P[z // 4, y], T.cast(z % 4 * 8, "uint32")), "int8"), "int32")'
_WORD_PRODUCT = f'C[x, y] + T.cast(A[x, z], "int32") * {_WORD}'
_registering, _registered = Lock(), list[bool]()


def register_instructions() -> None:
    """Make the instructions known to TVM's schedules: to clear 32 x 32 sums, add products to them, and store them.

    The sums are in the registers 0 to 3, a quarter of 16 x 16 each, whatever buffer a schedule has for them. A factor
    is 32 rows of 64 bytes, bits of bfloat16 or whole numbers; the other one weights as `tile_products.packed` in the
    hub lays them out, or, of `add_computed`, terms of a column as numbers of 32 bits. Vectors add to the sums of
    fewer rows in a local buffer, which LLVM keeps in registers.
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
        cleared = [_tile("x86.tilezero", n) for n in range(4)]
        _add_intrinsic(one.clear, one, "", "C", "SS", zero, cleared)
        moves = [
            _moves("x86.tilestored64", 2 * i + j, f'D.access_ptr("w", offset={16 * i} * s_D + {16 * j})', "4 * s_D")
            for i in range(2)
            for j in range(2)
        ]
        _add_intrinsic(one.store, one, "C", "D", "SS", "C[x, y]", moves)
    for unsigned, *_ in SIZES.values():
        _register_vectors(unsigned)


def _register_product(factors: Factors) -> None:
    """Register the instructions that add products, of weights and of words that are computed."""
    size, of_half = 4 // factors.group, factors is BFLOAT16
    wide = 'T.reinterpret("float32", T.shift_left(T.cast(A[x, z], "uint32"), T.uint32(16)))'
    one = wide if of_half else 'T.cast(A[x, z], "int32")'
    value = f'C[x, y] + {one} * T.cast(B[z // {factors.group}, y, z % {factors.group}], "{factors.sums}")'
    # Two pages of weights ahead: the core's own prefetching ends with each page.
    prefetch = 'T.evaluate(T.call_intrin("void", "tirx.prefetch", T.address_of(B[{}, 0, 0]), 0, 2, 1))'
    ahead = [prefetch.format(row) for row in (64, 72)]
    left = [
        _moves("x86.tileloadd64", 4 + n, f'A.access_ptr("r", offset={16 * n} * s_A)', f"{size} * s_A") for n in range(2)
    ]
    right = [_moves("x86.tileloadd64", 6 + n, f"T.address_of(B[0, {16 * n}, 0])", f"{size} * s_B") for n in range(2)]
    sums = [_tile(factors.instruction, 2 * i + j, 4 + i, 6 + j) for i in range(2) for j in range(2)]
    steps = [*ahead, left[0], *right, *sums[:2], left[1], *sums[2:]]
    _add_intrinsic(factors.add, factors, "CAB", "C", "SSR", value, steps)
    shifted = 'T.shift_left(T.shift_right(P[z // 2, y], T.cast(z % 2 * 16, "uint32")), T.uint32(16))'
    computed = [_moves("x86.tileloadd64", 6 + n, f'P.access_ptr("r", offset={16 * n})', "4 * s_P") for n in range(2)]
    steps = [left[0], *computed, *sums[:2], left[1], *sums[2:]]
    value = f'C[x, y] + {wide} * T.reinterpret("float32", {shifted})' if of_half else _WORD_PRODUCT
    _add_intrinsic(factors.add_computed, factors, "CAP", "C", "SSR", value, steps)


def _register_vectors(factors: Factors) -> None:
    """Register what adds products by vector registers: of as many rows as the registers hold the sums of."""
    lanes = factors.lanes
    own = f"C[i, T.ramp(j * {lanes}, 1, {lanes})]"
    group = "g * 4 + h" if factors.groups > 1 else "0"  # LLVM does not unroll so much by itself
    four = f'T.reinterpret("int32", A[i, T.ramp(({group}) * 4, 1, 4)])'
    if lanes == 4:  # Arm's instruction takes one of the four words of its last register
        four = 'T.Shuffle([T.reinterpret("int32x4", A[i, T.ramp(g * 16, 1, 16)])], [h])'
    bytes_of = f'T.reinterpret("{{}}x{4 * lanes}", {{}})'.format
    data = bytes_of(factors.data, f"T.broadcast({four}, {lanes})")
    weights = bytes_of("int8", f"P[{group}, T.ramp(j * {lanes}, 1, {lanes})]")
    factors_of = f"{weights}, {data}" if lanes == 4 else f"{data}, {weights}"
    product = f'T.call_llvm_pure_intrin("int32x{lanes}", "llvm.{factors.instruction}", {own}, {factors_of})'
    kept = f', annotations={{"{OF_TILE}": 1}}'  # TVM drops other loops of one step
    steps = [
        f"for g in T.serial({-(-factors.groups // 4)}{kept}):",
        f"    for h in T.unroll({min(factors.groups, 4)}{kept}):",
        f"        for i in T.unroll({factors.rows}):",
        f"            for j in T.unroll({32 // lanes}):",
        f"                {own} = {product}",
    ]
    _add_intrinsic(factors.add, factors, "CAP", "C", "SSR", _WORD_PRODUCT, steps)


def _add_intrinsic(
    name: str, factors: Factors, reads: str, writes: str, kinds: str, value: str, body: Sequence[str]
) -> None:
    """Register an instruction under a name, as what computes `value` for each element of a tile.

    Args:
        body: lines of what computes the tile.
    """
    from tvm.s_tir import TensorIntrin

    axes = "xyz"[: len(kinds)]
    extents = ", ".join(map(str, (factors.rows, 32, factors.terms)[: len(axes)]))
    loops = [
        f"for {', '.join(f'i_{x}' for x in axes)} in T.grid({extents}):",
        "    with T.sblock('update'):",
        f"        {', '.join(axes)} = T.axis.remap('{kinds}', [{', '.join(f'i_{x}' for x in axes)}])",
        f"        {writes}[x, y] = {value}",
    ]
    buffers = sorted({*reads, writes})
    described = _function(factors, buffers, reads, writes, loops)
    computed = _function(factors, buffers, reads, writes, body)
    TensorIntrin.register(name, described, computed)


def register_named(trace: Sequence[Any]) -> None:
    """Make the instructions known that a trace, `[instructions, decisions]`, names."""
    if any(inst[0] == _NAMED and not NAMES.isdisjoint(map(str, inst[2])) for inst in trace[0]):
        register_instructions()


def _tile(name: str, *tiles: int) -> str:
    arguments = ", ".join(f"T.int8({tile})" for tile in tiles)
    return f'T.evaluate(T.call_llvm_intrin("void", "llvm.{name}", {arguments}))'


def _moves(name: str, tile: int, address: str, stride: str) -> str:
    """Return the move of a register from or to memory, its rows so many bytes apart."""
    arguments = f'T.int8({tile}), {address}, T.cast({stride}, "int64")'
    return f'T.evaluate(T.call_llvm_intrin("void", "llvm.{name}", {arguments}))'


def _function(factors: Factors, buffers: Sequence[str], reads: str, writes: str, body: Sequence[str]) -> Any:
    """Return a function of buffers whose rows may be apart from each other."""
    from tvm.script import from_source

    forms = {
        "A": ([factors.rows, factors.terms], factors.data),
        "B": ([16, 32, factors.group], factors.weights),
        "P": ([factors.groups, 32], "uint32"),
        **dict.fromkeys("CD", ([factors.rows, 32], factors.sums)),
    }

    def region(x: str) -> str:
        return f"{x}[{', '.join(f'0:{extent}' for extent in forms[x][0])}]"

    lines = ["@T.prim_func(s_tir=True)", f"def function({', '.join(f'{x.lower()}: T.handle' for x in buffers)}):"]
    for x in buffers:
        inner = f", {factors.group}, 1" if x == "B" else ", 1"
        scope = factors.scope if x == "C" else "global"
        extents, dtype = forms[x]
        lines.append(f"    s_{x} = T.int32()")
        lines.append(
            f'    {x} = T.match_buffer({x.lower()}, {extents}, "{dtype}", offset_factor=1, strides=[s_{x}{inner}], '
            f'scope="{scope}")'
        )
    lines.append("    with T.sblock('root'):")
    lines.append(f"        T.reads({', '.join(map(region, reads))})")
    lines.append(f"        T.writes({region(writes)})")
    return from_source("\n".join([*lines, *(f"        {line}" for line in body)]))

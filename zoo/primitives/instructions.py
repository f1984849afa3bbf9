"""MetaSchedule instructions as primitives (or none).

An instruction is (inputs, attributes, outputs) by name, as in a trace's JSON. Names that TVM changed over
time are read under both.
"""

from collections.abc import Callable
from json import dumps
from typing import Any

from .language import KINDS, NONE, REST
from .scope import Atom, Nest, Number, Scope, is_none, lift, product, variable_kind

Operands = list[Any]
Handler = Callable[[Scope, Operands, Operands, list[str]], None]

RENAMED = {"GetBlock": "GetSBlock", "BlockizeBlocks": "Blockize"}
"""Names of older TVM releases -> today's."""

_BLOCK_ANNOTATIONS = {
    "meta_schedule.parallel": ("Parallel", ()),
    "meta_schedule.vectorize": ("Vectorize", ()),
    "meta_schedule.unroll_explicit": ("Unroll", ("explicit",)),
    "meta_schedule.unroll_implicit": ("Unroll", ("implicit",)),
    "pragma_auto_unroll_max_step": ("Unroll", ("pragma",)),
}


# Getters: what the variables stand for


def get_block(scope: Scope, _: Operands, attrs: Operands, outputs: list[str]) -> None:
    name, function = (*map(str, attrs), "main")[:2]
    scope.original(outputs[0], name if function == "main" else f"{function}.{name}")


def get_loops(scope: Scope, inputs: Operands, _: Operands, outputs: list[str]) -> None:
    scope.insert(Nest(scope.block(inputs[0])), 0, outputs)


def relatives(relation: str) -> Handler:
    """Blocks found through another block are named by the way to them."""

    def get(scope: Scope, inputs: Operands, _: Operands, outputs: list[str]) -> None:
        block = scope.block(inputs[0])
        start = block.origin or f"#{block.ordinal}"
        for i, output in enumerate(outputs):
            scope.original(output, f"{relation}{i}({start})")

    return get


# Samplers: `slot` is the position among the trace's sampling instructions


def sample_tile(scope: Scope, slot: int, _: Operands, outputs: list[str]) -> None:
    for item, output in enumerate(outputs):
        scope.values[output] = Atom(slot, item, len(outputs)).late()


def sample_categorical(scope: Scope, slot: int, attrs: Operands, outputs: list[str]) -> None:
    scope.values[outputs[0]] = Atom(slot, choices=tuple(map(int, attrs[0]))).late()


def sample_location(scope: Scope, slot: int, _: Operands, outputs: list[str]) -> None:
    scope.locations[outputs[0]] = Atom(slot).late()


# Loops


def split(kind: str) -> Handler:
    def apply(scope: Scope, inputs: Operands, attrs: Operands, outputs: list[str]) -> None:
        loop, *operands = inputs
        nest, at = scope.nest(loop), scope.position(loop)
        extent, factors = _factors(scope, scope.extents[loop], operands)
        block = scope.target(loop)[0]
        flags = _flags(attrs, ("no-unit-iters", True), ("unpredicated", False))
        scope.add(kind, block, at, extent, *factors, names=flags)
        nest.loops.remove(loop)
        scope.insert(nest, at, outputs)
        for output, factor in zip(outputs, factors, strict=False):
            scope.extents[output] = 0 if isinstance(factor, int) and factor == REST else factor

    return apply


def _factors(scope: Scope, extent: Number, operands: Operands) -> tuple[Number, list[Number]]:
    """A split's extent and factors; the factor left open is worked out where the extent is known."""
    given = [scope.value(o) for o in operands if not is_none(o)]
    known = lift(product, *given)
    if len(given) == len(operands):
        return (known if _unknown(extent) else extent), given
    rest = REST if _unknown(extent) else lift(lambda e, k: -(-e // k) if e and k > 0 else REST, extent, known)
    return extent, [rest if is_none(o) else scope.value(o) for o in operands]


def _unknown(extent: Number) -> bool:
    return isinstance(extent, int) and extent == 0


def fuse(kind: str) -> Handler:
    def apply(scope: Scope, inputs: Operands, attrs: Operands, outputs: list[str]) -> None:
        nest = scope.nest(inputs[0])
        positions = [scope.position(loop) for loop in inputs]
        block, at = scope.target(inputs[0])
        scope.add(kind, block, *positions, names=_flags(attrs, ("no-unit-iters", True)))
        extents = [scope.extents[loop] for loop in inputs]
        for loop in inputs:
            scope.nest(loop).loops.remove(loop)
        scope.insert(nest, min(at, len(nest.loops)), outputs)
        for output in outputs:
            scope.extents[output] = 0 if any(map(_unknown, extents)) else lift(product, *extents)

    return apply


def reorder(scope: Scope, inputs: Operands, _: Operands, __: list[str]) -> None:
    positions = [scope.position(loop) for loop in inputs]
    block = scope.target(inputs[0])[0]
    scope.add("Reorder", block, *positions)
    nest = scope.nest(inputs[0])
    moved = [loop for loop in inputs if scope.nest(loop) is nest]
    for at, loop in zip(sorted(map(nest.loops.index, moved)), moved, strict=True):
        nest.loops[at] = loop


def bind(scope: Scope, inputs: Operands, attrs: Operands, _: list[str]) -> None:
    scope.add("Bind", *scope.target(inputs[0]), scope.extents[inputs[0]], names=(str(attrs[0]),))


def mark(kind: str) -> Handler:
    def apply(scope: Scope, inputs: Operands, _: Operands, __: list[str]) -> None:
        scope.add(kind, *scope.target(inputs[0]), NONE)

    return apply


def annotate(scope: Scope, inputs: Operands, attrs: Operands, _: list[str]) -> None:
    target, value = inputs
    key = str(attrs[0])
    where = scope.target(target)
    if (key in _BLOCK_ANNOTATIONS and not isinstance(value, str | list)) or variable_kind(value) == "v":
        kind, names = _BLOCK_ANNOTATIONS.get(key, ("Annotate", (key,)))
        scope.add(kind, *where, scope.value(value), names=names)
        return
    numbers, texts = scope.flatten(value)
    scope.add("Annotate", *where, *numbers, names=(key, *texts))


def unannotate(scope: Scope, inputs: Operands, attrs: Operands, _: list[str]) -> None:
    scope.add("Unannotate", *scope.target(inputs[0]), names=(str(attrs[0]),))


# Blocks


def compute_at(kind: str) -> Handler:
    def apply(scope: Scope, inputs: Operands, attrs: Operands, _: list[str]) -> None:
        block, loop = scope.number(scope.block(inputs[0])), inputs[1]
        flags = _flags(attrs, ("no-unit-loops", True), ("index", -1))
        if loop in scope.locations:
            scope.add(kind, block, scope.locations[loop], NONE, names=flags)
        else:
            target, position = scope.target(loop)
            scope.add(kind, block, position, target, names=flags)

    return apply


def cache(kind: str) -> Handler:
    def apply(scope: Scope, inputs: Operands, attrs: Operands, outputs: list[str]) -> None:
        block = scope.number(scope.block(inputs[0]))
        consumers = [c for i in inputs[1:] for c in (i if isinstance(i, list) else [i])]
        ordinals = [scope.number(scope.block(c)) for c in consumers]
        scope.add(kind, block, int(attrs[0]), *ordinals, names=(str(attrs[1]),))
        scope.add_blocks(outputs)

    return apply


def plain(kind: str) -> Handler:
    """Operands, then attributes, in order; blocks that come out are new ones."""

    def apply(scope: Scope, inputs: Operands, attrs: Operands, outputs: list[str]) -> None:
        numbers: list[Number] = []
        names: list[str] = []
        if inputs and variable_kind(inputs[0]) in ("b", "l"):
            numbers += scope.target(inputs[0])[: 1 if variable_kind(inputs[0]) == "b" else 2]
            inputs = inputs[1:]
        # Texts of inputs are quoted: a bare `b1` would be a variable.
        for operand in [*inputs, *(dumps(one) if isinstance(one, str) else one for one in attrs)]:
            more, texts = scope.flatten(operand)
            numbers += more
            names += texts
        scope.add(kind, *numbers, names=tuple(names))
        scope.add_blocks(outputs)

    return apply


def add_unit_loop(scope: Scope, inputs: Operands, _: Operands, outputs: list[str]) -> None:
    block, at = scope.target(inputs[0])
    scope.add("AddUnitLoop", block, at)
    nest = Nest(scope.block(inputs[0])) if at == NONE else scope.nest(inputs[0])
    scope.insert(nest, max(at, 0), outputs)
    scope.extents[outputs[0]] = 1


def _flags(attrs: Operands, *usual: tuple[str, int]) -> tuple[str, ...]:
    """Names for the attributes that depart from TVM's usual ones; older TVM wrote fewer attributes."""
    return tuple(
        flag if isinstance(normal, bool) else f"{flag}={attr}"
        for attr, (flag, normal) in zip(attrs, usual, strict=False)
        if int(attr) != int(normal)
    )


GETTERS: dict[str, Handler] = {
    "GetSBlock": get_block,
    "GetLoops": get_loops,
    **{f"Get{name}s": relatives(name.lower()) for name in ("Producer", "Consumer", "OutputBlock")},
    "GetChildBlocks": relatives("child"),
}
SAMPLERS: dict[str, Callable[[Scope, int, Operands, list[str]], None]] = {
    "SamplePerfectTile": sample_tile,
    "SamplePartitionedTile": sample_tile,
    "SampleCategorical": sample_categorical,
    "SampleComputeLocation": sample_location,
}
HANDLERS: dict[str, Handler] = {kind: plain(kind) for kind in KINDS} | {
    **{kind: split(kind) for kind in ("Split", "LoopPartition")},
    **{kind: fuse(kind) for kind in ("Fuse", "Merge")},
    **{kind: mark(kind) for kind in ("Parallel", "Vectorize", "Unroll")},
    **{kind: compute_at(kind) for kind in ("ComputeAt", "ReverseComputeAt")},
    **{kind: cache(kind) for kind in ("CacheRead", "CacheWrite")},
    "Reorder": reorder,
    "AddUnitLoop": add_unit_loop,
    "Bind": bind,
    "Annotate": annotate,
    "Unannotate": unannotate,
}
"""Instruction name -> its handler; an instruction without a handler of its own lists its operands in order."""

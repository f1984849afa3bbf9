"""The blocks, loops and values that a trace's random variables stand for while it is read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from .errors import TraceFormatError
from .language import NONE
from .late import Number

_VARIABLE = re.compile(r"[blv]\d+\Z")


@dataclass(slots=True)
class Block:
    """A block: the workload's own (with an origin name) or one that an instruction made."""

    origin: str | None = None
    ordinal: int | None = None

    @property
    def label(self) -> str:
        return self.origin or f"#{self.ordinal}"


@dataclass(slots=True)
class Nest:
    """The loops of a block as one getter saw them, kept up to date through splits, fusions, reorderings."""

    block: Block
    loops: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Draft:
    """A primitive whose numbers may still wait for decisions."""

    kind: str
    numbers: tuple[Number, ...]
    names: tuple[str, ...]


def variable_kind(operand: Any) -> str | None:
    """`b`, `l` or `v` for the name of a random variable, None for a constant."""
    return operand[0] if isinstance(operand, str) and _VARIABLE.match(operand) else None


def is_none(operand: Any) -> bool:
    """Whether an operand is TVM's None, which traces spell as a bare word."""
    return operand is None or (isinstance(operand, str) and operand == "None")


def text(operand: str) -> str:
    """A string constant without the quotes that inputs (not attributes) are written with."""
    if len(operand) > 1 and operand[0] == operand[-1] == '"':
        return json.loads(operand)
    return operand


class Scope:
    """Names of random variables -> what they stand for, and the primitives told so far."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.values: dict[str, Number] = {}
        self.locations: dict[str, Number] = {}
        self._blocks: dict[str, Block] = {}
        self._originals: dict[str, Block] = {}
        self._nests: dict[str, Nest] = {}
        self._extents: dict[str, Number] = {}
        self._blocks_seen = 0
        self._introduced: list[str] = []

    # Blocks

    def original(self, variable: str, origin: str) -> None:
        """The variable stands for the workload's block of that name; twice the same name, one block."""
        ordinal = NONE if origin == "root" else None
        self._blocks[variable] = self._originals.setdefault(origin, Block(origin, ordinal))

    def made(self, variable: str) -> None:
        """The variable stands for a block that the present instruction makes."""
        self._blocks[variable] = Block(ordinal=self._next_ordinal())

    def block(self, variable: Any) -> Block:
        """The block a variable stands for."""
        try:
            return self._blocks[variable]
        except (KeyError, TypeError):
            raise TraceFormatError(f"{variable!r} is no block of this trace") from None

    def number(self, block: Block) -> int:
        """The block's ordinal; a first mention numbers it and lets the primitive carry its name."""
        if block.ordinal is None:
            block.ordinal = self._next_ordinal()
            self._introduced.append(f"@{block.origin}")
        return block.ordinal

    def _next_ordinal(self) -> int:
        self._blocks_seen += 1
        return self._blocks_seen - 1

    # Loops

    def nest(self, variable: Any) -> Nest:
        """The nest a loop variable belongs to."""
        try:
            return self._nests[variable]
        except (KeyError, TypeError):
            raise TraceFormatError(f"{variable!r} is no loop of this trace") from None

    def position(self, variable: Any) -> int:
        """The loop's present position in its nest."""
        loops = self.nest(variable).loops
        if variable not in loops:
            raise TraceFormatError(f"loop {variable!r} is used after it was split or fused")
        return loops.index(variable)

    def place(self, nest: Nest, at: int, loops: list[str]) -> None:
        """Inserts new loops into a nest."""
        nest.loops[at:at] = loops
        self._nests.update(dict.fromkeys(loops, nest))

    def extent(self, variable: str) -> Number:
        """The loop's extent, 0 when the trace does not tell."""
        return self._extents.get(variable, 0)

    def set_extent(self, variable: str, extent: Number) -> None:
        self._extents[variable] = extent

    def target(self, variable: Any) -> tuple[int, int]:
        """(block ordinal, loop position) of a loop variable; (ordinal, NONE) of a block variable."""
        if variable_kind(variable) == "l":
            position = self.position(variable)
            return self.number(self.nest(variable).block), position
        return self.number(self.block(variable)), NONE

    # Constants and everything else

    def value(self, operand: Any) -> Number:
        """An integer operand: a constant or a sampled value."""
        if variable_kind(operand) == "v":
            if operand not in self.values:
                raise TraceFormatError(f"{operand!r} is no sampled value of this trace")
            return self.values[operand]
        if isinstance(operand, int):
            return int(operand)
        raise TraceFormatError(f"an integer or a sampled value was expected, not {operand!r}")

    def flatten(self, operand: Any) -> tuple[list[Number], list[str]]:
        """Any operand as numbers and names; a list is led by its length."""
        if is_none(operand):
            return [NONE], []
        kind = variable_kind(operand)
        if kind in {"b", "l"}:
            return list(self.target(operand)[: 1 if kind == "b" else 2]), []
        if kind == "v" or isinstance(operand, int):
            return [self.value(operand)], []
        if isinstance(operand, list):
            parts = [self.flatten(item) for item in operand]
            return [len(parts), *[n for ns, _ in parts for n in ns]], [n for _, ns in parts for n in ns]
        if isinstance(operand, dict):
            return [], [json.dumps(operand, sort_keys=True)]
        return [], [text(operand) if isinstance(operand, str) else repr(operand)]

    # Primitives

    def tell(self, kind: str, *numbers: Number, names: tuple[str, ...] = ()) -> None:
        """Adds a primitive; the blocks it was the first to mention give it their names."""
        self.drafts.append(Draft(kind, numbers, names + tuple(self._introduced)))
        self._introduced.clear()

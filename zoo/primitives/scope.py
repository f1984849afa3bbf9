"""The blocks, loops and values that a trace's random variables stand for while it is read."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

from .language import NONE, TraceFormatError

Decision = int | tuple[int, ...]
"""What a sampling instruction answered: tile sizes, a choice's index, or a compute location."""


@dataclass(frozen=True, slots=True)
class Atom:
    """One sampled number: factor `item` of a tile of `size` factors, or a choice or location (`size` 0) in a slot.

    `choices` are what an index stands for; None for a location, which stands for itself.
    """

    slot: int
    item: int = 0
    size: int = 0
    choices: tuple[int, ...] | None = None

    def value(self, decisions: Sequence[Decision]) -> int:
        """Return the number; raise TraceFormatError for a decision that its sampling instruction does not give."""
        match decisions[self.slot], self.choices:
            case tuple() as sizes, None if 0 < self.size == len(sizes) and min(sizes) > 0:
                return sizes[self.item]
            case int() as index, None if not self.size and index >= -2:
                return index
            case int() as index, tuple() as choices if 0 <= index < len(choices):
                return choices[index]
        what = "a compute location" if self.choices is None else f"a choice of {len(self.choices)}"
        what = f"a tile of {self.size} positive factors" if self.size else what
        raise TraceFormatError(f"{what} has the decision {decisions[self.slot]!r}")

    def late(self) -> Late:
        """Return the number as one that waits for its decision."""
        return Late(frozenset((self.slot,)), self.value, (self,))


@dataclass(frozen=True, slots=True)
class Late:
    """A number that `value` computes from the decisions in `slots` of one candidate.

    `atoms` are what it is the product of, times `scale`; none when it is no such product. A batch of candidates
    computes all its products in one go.
    """

    slots: frozenset[int]
    value: Callable[[Sequence[Decision]], int]
    atoms: tuple[Atom, ...] = ()
    scale: int = 1


Number = int | Late


def settle(number: Number, decisions: Sequence[Decision]) -> int:
    """Return the number, once the decisions are known."""
    return number.value(decisions) if isinstance(number, Late) else number


def slots_of(numbers: Sequence[Number]) -> tuple[int, ...]:
    """Return the decisions that any of the numbers needs, in order."""
    return tuple(sorted(frozenset().union(*(n.slots for n in numbers if isinstance(n, Late)))))


def lift(function: Callable[..., int], *numbers: Number) -> Number:
    """Return the function of the numbers: at once when all are known, late otherwise."""
    if not any(isinstance(n, Late) for n in numbers):
        return function(*numbers)
    slots = frozenset(slots_of(numbers))

    def value(decisions: Sequence[Decision]) -> int:
        return function(*[settle(n, decisions) for n in numbers])

    late = [n for n in numbers if isinstance(n, Late)]
    if function is not product or not all(n.atoms for n in late):
        return Late(slots, value)
    scale = product(*[n.scale if isinstance(n, Late) else n for n in numbers])
    return Late(slots, value, tuple(atom for n in late for atom in n.atoms), scale)


def product(*numbers: int) -> int:
    """Return the product of integers, 1 for none."""
    return prod(numbers)


_VARIABLE = re.compile(r"[blv]\d+\Z")
_LONGEST_MAP = 1000  # a foreign file may name one part of a map again and again
_SYMBOLS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"}


@dataclass(slots=True)
class Block:
    """A block: the workload's own (with an origin name) or one that an instruction made."""

    origin: str | None = None
    ordinal: int | None = None


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
    """Return `b`, `l` or `v` for the name of a random variable, None for a constant."""
    return operand[0] if isinstance(operand, str) and _VARIABLE.match(operand) else None


def is_none(operand: Any) -> bool:
    """Return whether an operand is TVM's None, which traces spell as a bare word."""
    return operand is None or (isinstance(operand, str) and operand == "None")


class Scope:
    """Names of random variables -> what they stand for, and the primitives so far."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.values: dict[str, Number] = {}
        self.locations: dict[str, Number] = {}
        self._blocks: dict[str, Block] = {}
        self._originals: dict[str, Block] = {}
        self._nests: dict[str, Nest] = {}
        self.extents = defaultdict[str, Number](int)  # of loops, 0 where the trace does not have it
        self._ordinals = count()
        self._introduced: list[str] = []

    # Blocks

    def original(self, variable: str, origin: str) -> None:
        """Let the variable stand for the workload's block of that name; the same name is the same block."""
        ordinal = NONE if origin == "root" else None
        self._blocks[variable] = self._originals.setdefault(origin, Block(origin, ordinal))

    def add_blocks(self, variables: Sequence[str]) -> None:
        """Let each variable stand for a block that the present instruction makes."""
        for variable in variables:
            self._blocks[variable] = Block(ordinal=next(self._ordinals))

    def block(self, variable: Any) -> Block:
        """Return the block that a variable stands for."""
        try:
            return self._blocks[variable]
        except (KeyError, TypeError):
            raise TraceFormatError(f"{variable!r} is no block of this trace") from None

    def number(self, block: Block) -> int:
        """Return the block's ordinal; a first mention numbers it and lets the primitive carry its name."""
        if block.ordinal is None:
            block.ordinal = next(self._ordinals)
            self._introduced.append(f"@{block.origin}")
        return block.ordinal

    # Loops

    def nest(self, variable: Any) -> Nest:
        """Return the nest that a loop variable belongs to."""
        try:
            return self._nests[variable]
        except (KeyError, TypeError):
            raise TraceFormatError(f"{variable!r} is no loop of this trace") from None

    def position(self, variable: Any) -> int:
        """Return the loop's present position in its nest."""
        loops = self.nest(variable).loops
        if variable not in loops:
            raise TraceFormatError(f"loop {variable!r} is used after it was split or fused")
        return loops.index(variable)

    def insert(self, nest: Nest, at: int, loops: list[str]) -> None:
        """Insert new loops into a nest."""
        nest.loops[at:at] = loops
        self._nests.update(dict.fromkeys(loops, nest))

    def target(self, variable: Any) -> tuple[int, int]:
        """Return (block ordinal, loop position) of a loop variable; (ordinal, NONE) of a block variable."""
        if variable_kind(variable) == "l":
            position = self.position(variable)
            return self.number(self.nest(variable).block), position
        return self.number(self.block(variable)), NONE

    # Constants and everything else

    def value(self, operand: Any) -> Number:
        """Return an integer operand: a constant or a sampled value."""
        if variable_kind(operand) == "v":
            if operand not in self.values:
                raise TraceFormatError(f"{operand!r} is no sampled value of this trace")
            return self.values[operand]
        if isinstance(operand, int):
            return int(operand)
        raise TraceFormatError(f"an integer or a sampled value was expected, not {operand!r}")

    def flatten(self, operand: Any) -> tuple[list[Number], list[str]]:
        """Return any operand as numbers and names; a list is led by its length."""
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
        constant = operand if isinstance(operand, str) else repr(operand)
        if isinstance(operand, str) and len(operand) > 1 and operand[0] == operand[-1] == '"':
            constant = json.loads(operand)  # inputs, unlike attributes, are written with quotes
        return self.index_map(constant) if constant.startswith("{") else ([], [constant])

    def index_map(self, graph: str) -> tuple[list[Number], list[str]]:
        """Return an index map of TVM's JSON as the sampled values in it and e.g. `i0,i1->i0//16//(s0*s1),i1%16`.

        Neither depends on names of variables or on TVM's release. Maps in another form stay as they are.
        """
        try:
            stored = json.loads(graph)
            nodes = stored["nodes"]
            root = nodes[stored["root_index"]]["data"]
            indices = [nodes[at]["data"]["name"] for at in nodes[root["initial_indices"]]["data"]]
            names = {nodes[name]["data"]: f"i{i}" for i, name in enumerate(indices)}
            sampled: dict[str, Number] = {}
            steps = count()

            def show(at: int) -> str:
                if next(steps) > _LONGEST_MAP:
                    raise ValueError("no map of a schedule is as long as this")
                kind, data = nodes[at]["type"], nodes[at]["data"]
                if kind == "ir.IntImm":
                    return str(nodes[data["value"]]["data"])
                if kind == "ir.Var":
                    name = nodes[data["name"]]["data"]
                    if name in names:
                        return names[name]
                    sampled.setdefault(name, self.value(name))
                    return f"s{list(sampled).index(name)}"
                return f"({show(data['a'])}{_SYMBOLS[kind.partition('.')[2]]}{show(data['b'])})"

            final = ",".join(map(show, nodes[root["final_indices"]]["data"]))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return [], [graph]
        return list(sampled.values()), [f"{','.join(names.values())}->{final}"]

    # Primitives

    def add(self, kind: str, *numbers: Number, names: tuple[str, ...] = ()) -> None:
        """Add a primitive; the blocks it was the first to mention give it their names."""
        self.drafts.append(Draft(kind, numbers, names + tuple(self._introduced)))
        self._introduced.clear()

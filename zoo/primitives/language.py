"""The schedule-primitive language: every tuning framework's programs in the same terms.

A program is a *sequence* of primitives; a primitive is a kind, some integers and some names
(papers: TLP section 4.1, figure 4). Blocks and loops are small ordinals: a block (a stage, for Ansor) is
numbered when a primitive first mentions or creates it, a loop by its position in the block's loop list at
that moment, as Ansor numbers iterators. A primitive that is the first to mention a block of the original
workload carries the block's name as `@name`; no other primitive repeats it. The root block, which is the
program as a whole, is block `NONE`.

Numbers always start `(block, loop, value, ...)` where a kind has such things; `docs/language.md` has the table of
kinds, what their numbers and names are, and how Ansor's steps and AutoTVM's knobs map to them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

import msgspec

from ..errors import TchubError


class TraceFormatError(TchubError):
    """A schedule that cannot be read as a primitive sequence.

    Fields: `index`, the position of the offending instruction (None when the schedule as a whole is malformed),
    `instruction`, its JSON form cut to 200 characters, and `unknown`: the vocabulary lacks the instruction's name.
    """

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        index: int | None = None,
        instruction: object = None,
        remedy: str | None = None,
        unknown: bool = False,
    ) -> None:
        super().__init__(
            message if index is None else f"{message} (instruction {index})",
            remedy=remedy
            or "Pass a trace of the form [instructions, decisions] as TVM 0.16 or later writes it in a "
            "MetaSchedule database or Trace.as_json().",
            index=index,
            instruction=None if instruction is None else str(instruction)[:200],
            unknown=unknown,
        )
        self.unknown = unknown


NONE = -1
"""An absent loop or value; as a block, the root."""
REST = -1
"""A factor that takes what the other factors leave."""
INLINE = -1
"""A compute location: inlined into the consumers."""
ROOT = -2
"""A compute location: at the root."""

_LARGEST = 1 << 62  # features have 64 bits, one of them for the sign and one for sums

KINDS: tuple[str, ...] = (
    # Loops
    *("Split", "LoopPartition", "Fuse", "Merge", "Reorder", "ReorderBlockIterVar", "AddUnitLoop"),
    # What a loop becomes
    *("Bind", "Parallel", "Vectorize", "Unroll"),
    # Where a block is computed
    *("ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline"),
    # Copies of buffers
    *("CacheRead", "CacheWrite", "ReindexCacheRead", "ReindexCacheWrite", "CacheInplace", "CacheIndex"),
    *("ReIndex", "ReadAt", "WriteAt", "RollingBuffer"),
    # Reductions
    *("RFactor", "DecomposeReduction", "FuseReductionEpilogue"),
    # Storage and layout
    *("StorageAlign", "SetScope", "UnsafeSetDType", "TransformLayout", "TransformBlockLayout"),
    *("DecomposePadding", "PadEinsum", "UnsafeHideBufferAccess", "AnnotateBufferAccess"),
    # Hardware instructions and everything else
    *("Blockize", "Tensorize", "Annotate", "Unannotate"),
)
"""The common vocabulary, in a fixed order. New kinds are appended, never inserted."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """One step of a schedule: a kind of `KINDS`, integers and names (see the table above)."""

    kind: str
    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join([*map(str, self.numbers), *self.names])})"


@lru_cache(1 << 16)
def primitive(kind: str, numbers: tuple[int, ...], names: tuple[str, ...] = ()) -> Primitive:
    """Return a primitive; equal ones are one object, for programs of one search share most of theirs.

    Raises:
        TraceFormatError: a number is too large for any program.
    """
    if numbers and not -_LARGEST < min(numbers) <= max(numbers) < _LARGEST:
        raise TraceFormatError("a number is too large for any program", remedy="Leave the program out: it is damaged.")
    return Primitive(kind, numbers, names)


@dataclass(frozen=True, slots=True)
class PrimitiveSequence:
    """A program as its schedule primitives in order."""

    primitives: tuple[Primitive, ...]
    framework: str = "metaschedule"

    def __len__(self) -> int:
        return len(self.primitives)

    def __iter__(self) -> Iterator[Primitive]:
        return iter(self.primitives)

    def __str__(self) -> str:
        return "\n".join(map(str, self.primitives))

    def to_json(self) -> str:
        """Return a compact JSON text that `from_json` reads back."""
        rows = [[p.kind, list(p.numbers), list(p.names)] for p in self.primitives]
        return json.dumps({"framework": self.framework, "primitives": rows}, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote.

        Raises:
            TraceFormatError: not JSON, not a sequence, a kind outside `KINDS`, or a number of no program.
        """
        try:
            stored = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:
            raise TraceFormatError(
                f"not a primitive sequence: {error!r}",
                remedy="Pass the text that PrimitiveSequence.to_json() wrote.",
            ) from error
        return cls(tuple([primitive(p.kind, p.numbers, p.names) for p in stored.primitives]), stored.framework)


class _StoredPrimitive(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    kind: Literal[KINDS]  # pyright: ignore[reportInvalidTypeForm]
    numbers: tuple[int, ...]
    names: tuple[str, ...]


class _StoredSequence(msgspec.Struct):
    framework: str
    primitives: list[_StoredPrimitive]


_DECODER = msgspec.json.Decoder(_StoredSequence)

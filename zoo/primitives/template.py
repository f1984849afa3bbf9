"""A design space's instruction list, read once; each candidate then only fills in its decisions.

All candidates of a design space share their instructions and differ in what the sampling instructions
answered, so the costly reading is done once for thousands of candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import TraceFormatError, UnknownInstructionError
from .instructions import GETTERS, RENAMED, SAMPLERS, TELLERS
from .language import Primitive, PrimitiveSequence, primitive
from .late import Decision, settle, slots_of
from .scope import Draft, Scope

_END = "EnterPostproc"
_MEMO_LIMIT = 1 << 16


class _Filler:
    """One primitive of a template; remembers what it became under decisions seen before."""

    __slots__ = ("_draft", "_memo", "_slots")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._slots = slots_of(draft.numbers)
        self._memo: dict[tuple[Decision, ...], Primitive] = {}

    @property
    def slots(self) -> tuple[int, ...]:
        return self._slots

    def fill(self, decisions: Sequence[Decision]) -> Primitive:
        key = tuple([decisions[slot] for slot in self._slots])
        found = self._memo.get(key)
        if found is None:
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            numbers = tuple(settle(n, decisions) for n in self._draft.numbers)
            found = self._memo[key] = primitive(self._draft.kind, numbers, self._draft.names)
        return found


class Template:
    """The primitives of a design space, open in its decisions.

    Args:
        instructions: `[name, inputs, attributes, outputs]` each, as in a trace's JSON; those from
            `EnterPostproc` on are ignored.

    Attributes:
        samplers: the positions of the sampling instructions: slot i of a candidate's decisions is the
            answer of instruction `samplers[i]`.
        drafts: the primitives, with numbers that wait for decisions.
        needed: the slots that some primitive uses.

    Raises:
        TraceFormatError: an instruction is malformed or unknown.
    """

    def __init__(self, instructions: Sequence[Any]) -> None:
        scope = Scope()
        samplers: list[int] = []
        for index, instruction in enumerate(instructions):
            name, inputs, attrs, outputs = _parts(index, instruction)
            if name == _END:
                break
            try:
                _read(scope, samplers, index, (name, inputs, attrs, outputs))
            except UnknownInstructionError:
                raise
            except TraceFormatError as error:
                raise TraceFormatError(error.message, index=index, instruction=instruction) from error
            except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
                message = f"{name} does not have the operands it should: {error}"
                raise TraceFormatError(message, index=index, instruction=instruction) from error
        self.samplers = tuple(samplers)
        self.drafts: tuple[Draft, ...] = tuple(scope.drafts)
        self._fillers = [_Filler(draft) for draft in self.drafts]
        self.needed = frozenset(slot for filler in self._fillers for slot in filler.slots)
        self._fixed = [None if f.slots else f.fill(()) for f in self._fillers]

    def fill(self, decisions: Sequence[Decision]) -> PrimitiveSequence:
        """The sequence of the candidate whose i-th sampling instruction answered `decisions[i]`."""
        return PrimitiveSequence(
            tuple([fixed or filler.fill(decisions) for fixed, filler in zip(self._fixed, self._fillers, strict=True)])
        )


def _parts(index: int, instruction: Any) -> tuple[str, list[Any], list[Any], list[str]]:
    try:
        name, inputs, attrs, outputs = instruction
        return str(RENAMED.get(name, name)), list(inputs), list(attrs), list(outputs)
    except (TypeError, ValueError):
        raise TraceFormatError(
            "an instruction is [name, inputs, attributes, outputs]", index=index, instruction=instruction
        ) from None


def _read(scope: Scope, samplers: list[int], index: int, parts: tuple[str, list, list, list[str]]) -> None:
    name, inputs, attrs, outputs = parts
    if name in SAMPLERS:
        samplers.append(index)
        SAMPLERS[name](scope, len(samplers) - 1, attrs, outputs)
    elif name in GETTERS:
        GETTERS[name](scope, inputs, attrs, outputs)
    elif name in TELLERS:
        TELLERS[name](scope, inputs, attrs, outputs)
    else:
        raise UnknownInstructionError(
            f"the instruction {name!r} is not in the vocabulary",
            index=index,
            instruction=list(parts),
            remedy="Use a trace of TVM 0.16 to 0.27, or teach the instruction to tchub.zoo.primitives.",
        )

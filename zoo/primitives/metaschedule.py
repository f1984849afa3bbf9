"""MetaSchedule traces -> primitive sequences, from a live trace or from JSON.

Both readers cut the trace at `EnterPostproc`: what follows was derived from what precedes by the
postprocessors, and a candidate that a cost model is asked about may or may not have passed them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from .instructions import GETTERS, HANDLERS, RENAMED, SAMPLERS
from .language import Primitive, PrimitiveSequence, TraceFormatError, primitive
from .scope import Decision, Draft, Scope, settle, slots_of

if TYPE_CHECKING:
    from tvm.s_tir.schedule import Trace


_END = "EnterPostproc"
_MEMO_LIMIT = 1 << 16


class _Filler:
    """One primitive of a template; remembers what it became under decisions seen before."""

    __slots__ = ("_draft", "_memo", "slots")

    def __init__(self, draft: Draft) -> None:
        self._draft, self.slots = draft, slots_of(draft.numbers)
        self._memo: dict[tuple[Decision, ...], Primitive] = {}

    def fill(self, decisions: Sequence[Decision]) -> Primitive:
        key = tuple([decisions[slot] for slot in self.slots])
        known = self._memo.get(key)
        if known is None:
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            numbers = tuple(settle(n, decisions) for n in self._draft.numbers)
            known = self._memo[key] = primitive(self._draft.kind, numbers, self._draft.names)
        return known


class Template:
    """The primitives of a design space, open in its decisions; made of its instructions up to `EnterPostproc`.

    Attributes:
        samplers: the positions of the sampling instructions: slot i of a candidate's decisions is the
            answer of instruction `samplers[i]`.
        drafts: the primitives, with numbers that wait for decisions; needed: the slots that some of them use.

    Raises:
        TraceFormatError: an instruction is malformed or unknown.
    """

    def __init__(self, instructions: Sequence[Any]) -> None:
        scope = Scope()
        samplers: list[int] = []
        for index, instruction in enumerate(instructions):
            try:
                kind, *operands = instruction
                name, (inputs, attrs, outputs) = str(RENAMED.get(kind, kind)), map(list, operands)
            except (TypeError, ValueError):
                message = "an instruction is [name, inputs, attributes, outputs]"
                raise TraceFormatError(message, index=index, instruction=instruction) from None
            if name == _END:
                break
            try:
                _read(scope, samplers, index, (name, inputs, attrs, outputs))
            except TraceFormatError as error:
                raise TraceFormatError(
                    error.message, index=index, instruction=instruction, remedy=error.remedy, unknown=error.unknown
                ) from error
            except (IndexError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
                message = f"{name} does not have the operands it should: {error}"
                raise TraceFormatError(message, index=index, instruction=instruction) from error
        self.samplers = tuple(samplers)
        self.drafts: tuple[Draft, ...] = tuple(scope.drafts)
        self._fillers = [_Filler(draft) for draft in self.drafts]
        self.needed = frozenset(slot for filler in self._fillers for slot in filler.slots)
        self._fixed = [None if f.slots else f.fill(()) for f in self._fillers]

    def fill(self, decisions: Sequence[Decision]) -> PrimitiveSequence:
        """Return the sequence of the candidate whose i-th sampling instruction answered `decisions[i]`."""
        return PrimitiveSequence(
            tuple([fixed or filler.fill(decisions) for fixed, filler in zip(self._fixed, self._fillers, strict=True)])
        )


def _read(scope: Scope, samplers: list[int], index: int, parts: tuple[str, list, list, list[str]]) -> None:
    name, inputs, attrs, outputs = parts
    if name in SAMPLERS:
        samplers.append(index)
        SAMPLERS[name](scope, len(samplers) - 1, attrs, outputs)
    elif name in GETTERS:
        GETTERS[name](scope, inputs, attrs, outputs)
    elif name in HANDLERS:
        HANDLERS[name](scope, inputs, attrs, outputs)
    else:
        raise TraceFormatError(
            f"the instruction {name!r} is not in the vocabulary",
            remedy="Use a trace of TVM 0.16 to 0.27, or teach the instruction to tchub.zoo.primitives.",
            unknown=True,
        )


TVM_RELEASES = ">=0.27,<0.28"
"""The releases whose live traces are read here, and whose candidates every feature schema is therefore made of."""

_TEMPLATE_LIMIT = 4096
_of_text: dict[str, Template] = {}
_of_hash: dict[int, Template] = {}


def read_trace(trace: Trace) -> tuple[Template, list[Decision]]:
    """Return a live trace's design space, translated once, and what the candidate decided: 20 to 60 microseconds.

    The design space is recognised by TVM's 64 bit structural hash of the instructions. Nothing cheaper tells: each
    replay makes new instruction objects, spaces of a task may differ only in which loop is split for a partial
    reduction, and TVM's mutators change constants (the limit of parallel loops), not only decisions.

    Raises:
        TraceFormatError: an instruction or a decision is malformed or unknown.
    """
    as_json, structural_hash, _, get, _ = _tvm()
    parts = as_json(trace, True)
    instructions = get(parts, 0)
    key = structural_hash(instructions, False, False)
    template = _of_hash.get(key) or _remember(_of_hash, key, Template(plain(instructions)))
    return template, _live_decisions(template, get(parts, 1))


def from_trace_json(obj: Sequence[Any] | str | bytes) -> PrimitiveSequence:
    """Read `[instructions, decisions]`, as a MetaSchedule database or `Trace.as_json()` has it.

    Takes the names of TVM 0.16 as well as today's, and needs no TVM.

    Raises:
        TraceFormatError: not JSON, not of that form, or an instruction or a decision is malformed.
    """
    try:
        trace = msgspec.convert(json.loads(obj) if isinstance(obj, str | bytes) else obj, _StoredTrace)
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(f"not a trace of the form [instructions, decisions]: {error}") from error
    try:
        key = str(trace.instructions)
        template = _of_text.get(key) or _remember(_of_text, key, Template(plain(trace.instructions)))
        return template.fill(_decisions(template, trace.decisions))
    except RecursionError:
        raise TraceFormatError("a trace is not nested as deep as this") from None


@cache
def _tvm() -> tuple[Any, ...]:
    """TVM's C++ trace writer, structural hash, array access; Python's wrappers cost up to ten times more."""
    import tvm.s_tir.schedule  # noqa: F401  # registers what is looked up below
    from tvm_ffi import Array, get_global_func

    arrays = Array, get_global_func("ffi.ArrayGetItem"), get_global_func("ffi.ArraySize")
    return get_global_func("s_tir.schedule.TraceAsJSON"), get_global_func("ffi.StructuralHash"), *arrays


def _remember(store: dict[Any, Template], key: Any, template: Template) -> Template:
    if len(store) >= _TEMPLATE_LIMIT:
        store.clear()
    store[key] = template
    return template


class _StoredTrace(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    instructions: list[Any]
    decisions: list[Any]


def _live_decisions(template: Template, pairs: Any) -> list[Decision]:
    """The decisions in slot order; a live trace that decided everything lists them in that very order."""
    _, _, array, get, size = _tvm()
    if size(pairs) != len(template.samplers):
        return _decisions(template, plain(pairs))
    answers = [get(get(pairs, i), 1) for i in range(len(template.samplers))]
    return [tuple([int(get(a, j)) for j in range(size(a))]) if isinstance(a, array) else int(a) for a in answers]


def _decisions(template: Template, pairs: list[Any]) -> list[Decision]:
    try:
        answers: dict[int, Decision] = {}
        for index, answer in ((int(plain(index)), plain(answer)) for index, answer in pairs):
            answers[index] = tuple(map(int, answer)) if isinstance(answer, list) else int(answer)
    except (TypeError, ValueError, OverflowError):
        raise TraceFormatError(f"a decision is [instruction index, answer]: {pairs!r:.200}") from None
    for slot, index in enumerate(template.samplers):
        if index not in answers and slot in template.needed:
            raise TraceFormatError("a sampling instruction has no decision", index=index)
    return [answers.get(index, 0) for index in template.samplers]


def plain(obj: Any) -> Any:
    """Return JSON values, and TVM's containers and constants, as Python's own."""
    if isinstance(obj, str):
        return str(obj)  # of a tvm_ffi.String too
    if obj is None or isinstance(obj, int | float):
        return obj
    if isinstance(obj, list | tuple):
        return [plain(item) for item in obj]
    if hasattr(obj, "items"):  # or a tvm_ffi.Map
        return {str(k): plain(v) for k, v in obj.items()}
    if hasattr(obj, "value"):  # tirx.IntImm and FloatImm
        return obj.value
    if hasattr(obj, "__iter__"):  # tvm_ffi.Array
        return [plain(item) for item in obj]
    from tvm.ir import save_json  # an IndexMap, which Trace.as_json() writes so too

    return save_json(obj)

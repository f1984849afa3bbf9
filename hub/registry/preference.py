"""Which of the checkpoints that fit is taken, and why each other one is not.

The order: the rank of the device distance; then whether it was measured on this very device, on its family, or not
at all (and last what ranked no better than chance there); then top-1 and pairwise accuracy measured there; then the
distance of the spec sheets; then top-1 on its own held-out networks; then the name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from .entry import Entry
from .judge import Verdict

HERE, IN_FAMILY, NOT_MEASURED, BY_CHANCE = range(4)
_REJECTED = 99


class Key(NamedTuple):
    """What decides, the most telling first; the smallest is taken."""

    rank: int
    evidence: int
    top1: float
    pairwise: float
    gap: float
    own_top1: float
    id: str


def in_order(judged: Iterable[tuple[Verdict, Entry]]) -> list[tuple[Verdict, Entry]]:
    """The chosen one first, every other one with the reason why it was passed over; rejected ones last."""
    keyed = sorted(((_key(*pair), *pair) for pair in judged), key=lambda item: item[0])
    if not keyed:
        return []
    best, chosen, _ = keyed[0]
    return [
        (verdict if verdict is chosen or not verdict.accepted else _passed_over(key, verdict, best, chosen), entry)
        for key, verdict, entry in keyed
    ]


def _key(verdict: Verdict, entry: Entry) -> Key:
    found = verdict.measured
    return Key(
        _REJECTED if verdict.rank is None else verdict.rank,
        _evidence(verdict),
        -((found and found.top1) or 0.0),
        -((found and found.pairwise) or 0.0),
        verdict.gap or 0.0,
        -(entry.metrics.get("top1") or 0.0),
        verdict.id,
    )


def _evidence(verdict: Verdict) -> int:
    found = verdict.measured
    if found is None:
        return NOT_MEASURED
    if found.by_chance:
        return BY_CHANCE
    return HERE if found.here else IN_FAMILY


def _passed_over(key: Key, verdict: Verdict, best: Key, chosen: Verdict) -> Verdict:
    """The verdict with the first thing that decided against it."""
    decided = next(name for name in Key._fields if getattr(key, name) != getattr(best, name))
    return replace(verdict, passed_over=_in_words(decided, key, verdict, best, chosen))


def _in_words(decided: str, key: Key, verdict: Verdict, best: Key, chosen: Verdict) -> str:
    match decided:
        case "rank":
            steps = key.rank - best.rank
            return f"{steps} rank{'s' if steps > 1 else ''} farther: {verdict.reason}"
        case "evidence" if key.evidence == BY_CHANCE:
            return f"no better than chance: {verdict.measured}"
        case "evidence":
            own = verdict.measured or "not measured on this device or its family"
            return f"{own}; {chosen.id} was {chosen.measured}"
        case "top1" | "pairwise":
            return f"{verdict.measured}; {chosen.id} has top-1 {-best.top1:.2f}, pairwise {-best.pairwise:.2f}"
        case "gap":
            return f"spec sheets {2**key.gap:.2g}x apart, those of {chosen.id} {2**best.gap:.2g}x"
        case "own_top1":
            return f"top-1 {-key.own_top1:.2f} on its held-out networks, {chosen.id} has {-best.own_top1:.2f}"
        case _:
            return f"fits as well as {chosen.id}, which is the first by name"

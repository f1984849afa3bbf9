"""What the transfer benchmark has kept: every answer on disk, and what is missing of what was wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.wording import listed

if TYPE_CHECKING:
    from scripts.benchmarks.transfer.runs import Question, Runs

# Of everything that depends on what was drawn.
WANTED_SEEDS = 5


@dataclass
class Kept:
    """The answers to some questions.

    Attributes:
        answers: that are there.
        missing: questions that have none yet; one that has no meaning for its target is neither.
    """

    answers: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Question] = field(default_factory=list)


def collect(runs: Runs, asked: Iterable[Question]) -> Kept:
    """Answer the questions, or find those that time does not allow."""
    found = Kept()
    for question in asked:
        left = runs.left
        answer = runs.answer(question)
        if answer is not None:
            found.answers.append(answer)
        elif runs.left > left:
            found.missing.append(question)
    return found


def used_seeds(*parts: Iterable[Mapping[str, Any]]) -> list[int]:
    """The seeds that answers have."""
    return sorted({answer["seed"] for part in parts for answer in part})


def shortfalls(
    kept: Kept, wanted: int = WANTED_SEEDS, fixed: Iterable[str] = (), targets: Sequence[str] = ()
) -> list[str]:
    """Where there are fewer seeds than wanted, in few words: methods, protocols and targets that lack as many.

    Of several numbers of labels the one that lacks most counts.

    Args:
        wanted: seeds of everything, whatever is planned.
        fixed: methods that draw nothing, of which one seed is all.
        targets: all that there are.
    """
    cells: dict[tuple[Any, ...], set[int]] = {}
    for answer in kept.answers:
        cells.setdefault(_cell(answer), set()).add(answer["seed"])
    for question in kept.missing:
        cells.setdefault(_cell(vars(question)), set())
    lacking: dict[tuple[str, str, str], int] = {}
    single = set(fixed)
    for (method, target, seen, protocol, *_), seeds in cells.items():
        place = method, f"{protocol}, seen" if seen else protocol, target
        lack = 0 if seeds and method in single else wanted - len(seeds)
        if lack > 0:
            lacking[place] = max(lack, lacking.get(place, 0))
    return _told(lacking, wanted, targets)


def _cell(asked: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("method", "target", "seen", "protocol", "labels")
    return (*(asked[name] for name in names), tuple(asked["sources"]), tuple(asked["taught"]))


def _told(lacking: Mapping[tuple[str, str, str], int], wanted: int, every: Sequence[str]) -> list[str]:
    """First the targets that lack alike are gathered, then the protocols, then the methods."""
    targets: dict[tuple[str, str, int], list[str]] = {}
    for (method, protocol, target), lack in lacking.items():
        targets.setdefault((method, protocol, lack), []).append(target)
    protocols: dict[tuple[str, int, tuple[str, ...]], list[str]] = {}
    for (method, protocol, lack), where in targets.items():
        protocols.setdefault((method, lack, tuple(where)), []).append(protocol)
    methods: dict[tuple[int, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (method, lack, where), how in protocols.items():
        methods.setdefault((lack, tuple(how), where), []).append(method)
    return [
        f"{lack} of {wanted} seeds of {listed(who)} ({listed(how)}; {listed(where, every, 'target')})"
        for (lack, how, where), who in methods.items()
    ]

"""Which tasks are learnt from and which judge, when programs of one device help on another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class Tasks:
    """The split of one corpus.

    Attributes:
        name: of the corpus.
        parts: "train", "val" and "test", each from task id to what the task computes.
    """

    name: str
    parts: Mapping[str, Mapping[str, str]]

    def computed(self, part: str) -> set[str]:
        """What the tasks of a part compute."""
        return set(self.parts[part].values())

    def without(self, hidden: set[str], parts: Sequence[str] = PARTS) -> dict[str, str]:
        """The tasks of some parts that compute nothing hidden."""
        return {task: what for part in parts for task, what in sorted(self.parts[part].items()) if what not in hidden}


@dataclass(frozen=True)
class Division:
    """Task ids by their role.

    Attributes:
        own: training tasks of the target.
        given: for each source, in order, the tasks that it teaches.
        judged: tasks of the target that judge.
    """

    own: tuple[str, ...]
    given: tuple[tuple[str, ...], ...]
    judged: tuple[str, ...]


def divide(target: Tasks, sources: Sequence[Tasks], split: str, seen: bool) -> Division:
    """The roles of all tasks.

    Test tasks of any corpus are hidden from all of them, by what they compute. *Unseen*: so are the judging tasks.
    *Seen*: the sources keep their programs of the judging tasks, and only tasks that a source has are judged;
    the target itself never learns from them across tasks.

    Args:
        target: whose tasks judge; sources: the other devices, in the order in which they teach.
        split: "val" for choices, "test" for figures.
        seen: whether sources know the judging tasks.
    """
    tests = set().union(*(corpus.computed("test") for corpus in (target, *sources)))
    judging = {t: c for t, c in target.parts[split].items() if split == "test" or c not in tests}
    judged = set(judging.values())
    own = target.without(tests | judged, ("train", "val"))
    taught = [source.without(tests - judged if seen else tests | judged) for source in sources]
    if seen:
        known = set().union(*(tasks.values() for tasks in taught))
        judging = {t: c for t, c in judging.items() if c in known}
    return Division(tuple(own), tuple(tuple(tasks) for tasks in taught), tuple(sorted(judging)))

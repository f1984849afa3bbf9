"""What a session decided or measured, kept in its folder: no second run of the same would repeat it by itself.

Decisions weigh seconds, a time ends a batch where the clock says, and a larger budget goes on from a smaller one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ...zoo.adapt.kept_models import mark_of
from ...zoo.adapt.sampling import Reason
from ...zoo.adapt.stopping import StopDecision
from ...zoo.files import append, drop_torn_line
from ..registry.store import store_error
from .pool import PLACE

if TYPE_CHECKING:
    from ...zoo.adapt.budget import Budget

T = TypeVar("T")


class Kept(Generic[T]):
    """A file of answers, a line each; of the same question the last one counts.

    Args:
        path: of the file; made with the first answer.
        name: of an answer in its line.
        read: makes an answer of its JSON form; KeyError, TypeError or ValueError: it is none.
    """

    def __init__(self, path: Path, name: str, read: Callable[[Any], T]) -> None:
        self._path, self._name, self._read_one = path, name, read

    def get(self, words: Iterable[str]) -> T | None:
        """The answer that was kept, if there is one.

        Args:
            words: that tell the question from any other.
        """
        return self._read().get(mark_of(words))

    def put(self, words: Iterable[str], answer: Any) -> None:
        """Keep an answer by its JSON form, on disk when this returns.

        Raises:
            StoreError, StorageError: it cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            drop_torn_line(self._path)  # of a killed run: what is appended to it would be torn too
        except OSError as error:
            raise store_error(error, self._path, PLACE) from error
        append(self._path, json.dumps({"mark": mark_of(words), self._name: answer}) + "\n")

    def _read(self) -> dict[str, T]:
        """All of them; a line that is torn or of another form is an answer that is given again."""
        found: dict[str, T] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return found
        for line in lines:
            try:
                row = json.loads(line)
                found[row["mark"]] = self._read_one(row[self._name])
            except (ValueError, KeyError, TypeError):
                continue
        return found


def kept_decisions(folder: Path) -> Kept[StopDecision]:
    """Decisions of a budget that stops itself."""
    return Kept(folder / "decisions.jsonl", "decision", lambda row: StopDecision(**row))


@dataclass(frozen=True)
class SessionPicks:
    """What a session measured.

    Attributes:
        picks: to learn from, in the order of picking; hold_out: places of the pool that judge.
    """

    picks: tuple[Reason, ...] = ()
    hold_out: tuple[int, ...] = ()

    @property
    def places(self) -> list[int]:
        """All places of the pool."""
        return [*(pick.index for pick in self.picks), *self.hold_out]

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"picks": [pick.as_dict() for pick in self.picks], "hold_out": list(self.hold_out)}

    @classmethod
    def of(cls, row: Any) -> SessionPicks:
        """Of the JSON form."""
        return cls(tuple(map(Reason.of, row["picks"])), tuple(int(place) for place in row["hold_out"]))


class SessionMemory:
    """Of the sessions in one folder, those of the same but the budget.

    Args:
        folder: of the files.
        words: that tell pool, sampler, seed and the like from any other.
        budget: of this session.
    """

    def __init__(self, folder: Path, words: Iterable[str], budget: Budget) -> None:
        self._sessions = Kept(
            folder / "sessions.jsonl", "measured", lambda rows: [SessionPicks.of(row) for row in rows]
        )
        self._batches = Kept(folder / "batches.jsonl", "places", lambda places: [int(place) for place in places])
        self._every = tuple(words)
        self._own = (*self._every, repr(budget))

    def before(self, fits: Callable[[SessionPicks], bool]) -> SessionPicks:
        """What this session goes on from: the largest one that ended and fits; the same when it is run again."""
        begun = self._sessions.get(("began", *self._own))
        if begun is None:
            ended = self._sessions.get(("ended", *self._every)) or []
            begun = [max((one for one in ended if fits(one)), key=lambda one: len(one.places), default=SessionPicks())]
            self._sessions.put(("began", *self._own), [one.as_dict() for one in begun])
        return begun[0]

    def ended(self, measured: SessionPicks) -> None:
        """This session has measured all that it may."""
        others = self._sessions.get(("ended", *self._every)) or []
        if measured not in others:
            self._sessions.put(("ended", *self._every), [one.as_dict() for one in (*others, measured)])

    def batch(self, title: str, picks: Sequence[int]) -> list[int] | None:
        """The places of a batch that its time allowed to measure; None: it was not measured to its end."""
        return self._batches.get(self._batch_words(title, picks))

    def keep_batch(self, title: str, picks: Sequence[int], places: Sequence[int]) -> None:
        """A batch was measured to its end, or to that of its time."""
        self._batches.put(self._batch_words(title, picks), list(places))

    def _batch_words(self, title: str, picks: Sequence[int]) -> tuple[str, ...]:
        return (*self._own, title, repr(list(picks)))

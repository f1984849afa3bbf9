"""Decisions of a budget that stops itself, kept: they weigh seconds, which no second run of the same would repeat."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ...zoo.adapt.kept_models import mark_of
from ...zoo.adapt.stopping import StopDecision
from ..registry.store import store_error
from .durable import append


class KeptDecisions:
    """A file of decisions, a line each; a run that goes on stops where the killed one would have.

    Args:
        path: of the file; made with the first decision.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, words: Iterable[str]) -> StopDecision | None:
        """The decision that was made of the same, if there is one.

        Args:
            words: that tell what was decided on from anything else.
        """
        return self._read().get(mark_of(words))

    def put(self, words: Iterable[str], decision: StopDecision) -> None:
        """Keep a decision, on disk when this returns.

        Raises:
            StoreError, StorageError: it cannot be written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise store_error(error, self._path, "TCHUB_HOME") from error
        append(self._path, json.dumps({"mark": mark_of(words), "decision": decision.as_dict()}) + "\n")

    def _read(self) -> dict[str, StopDecision]:
        """All of them; a line that is torn or of another form is a decision that is made again."""
        found: dict[str, StopDecision] = {}
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return found
        for line in lines:
            try:
                row = json.loads(line)
                found[row["mark"]] = StopDecision(**row["decision"])
            except (ValueError, KeyError, TypeError):
                continue
        return found

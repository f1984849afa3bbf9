"""What metrics.json says of other corpora than the one that the checkpoint's scores are of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .fields import read_object, read_objects, read_text, read_truth, read_whole, wrong
from .scores import BASELINES, Scores


@dataclass(frozen=True)
class Transfer:
    """Scores on a corpus other than the one that the checkpoint is for, without learning anything more for it.

    Attributes:
        split: the part of the corpus; `all` where it keeps no tasks for testing.
        device: that it was measured on; device_learnt: whether programs of that device are in the training.
        tasks, programs: that were ranked; programs_per_task: where no more of each task were looked at.
        tasks_known: of these tasks those that were learnt, on other devices.
        tasks_left_out: tasks of the part that are not counted, for they compute the same as a training task.
    """

    corpus: str
    split: str | None
    scores: Scores
    random: Scores | None
    device: str | None = None
    device_learnt: bool | None = None
    tasks: int | None = None
    programs: int | None = None
    programs_per_task: int | None = None
    tasks_known: int | None = None
    tasks_left_out: int | None = None

    @property
    def lost(self) -> bool:
        """Whether choosing at random is ahead."""
        return self.random is not None and bool(self.random.ahead_of(self.scores))


def read_transfer(metrics: Mapping[str, Any]) -> tuple[Transfer, ...]:
    """The list `transfer`, () without one; raises CardError for fields of a wrong type."""
    return tuple(_transfer(row) for row in read_objects(metrics, "transfer"))


def _transfer(row: Mapping[str, Any]) -> Transfer:
    random = read_object(row, "random")
    corpus = read_text(row, "corpus")
    if corpus is None:
        raise wrong("transfer", "a list of rows that each name a corpus")
    return Transfer(
        corpus,
        read_text(row, "split"),
        Scores.read("model", corpus, read_object(row, "metrics")),
        Scores.read("random", BASELINES["random"], random) if random else None,
        read_text(row, "device"),
        read_truth(row, "device_learnt"),
        **{
            key: read_whole(row, key)
            for key in ("tasks", "programs", "programs_per_task", "tasks_known", "tasks_left_out")
        },
    )

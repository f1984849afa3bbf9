"""Tasks dealt to the machines of a cluster: the same hand for the same shard, whoever deals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...zoo.errors import TchubError

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask


class ShardError(TchubError):
    """Text that names no shard, or a shard of no task."""


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of a list of tasks.

    Attributes:
        number: from 1.
        count: how many there are.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read `I/N`, e.g. `3/8`.

        Raises:
            ShardError: not of this form, or I is not from 1 to N.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise ShardError(f"{text!r} names no shard", remedy="say I/N with I from 1 to N, e.g. 3/8")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def folder(self, whole: Path | str) -> Path:
        """Where this shard keeps its corpus and its journal: SQLite on a shared disk bears one writer only."""
        return Path(whole) / f"shard-{self.number}-of-{self.count}"

    def of(self, tasks: Sequence[TuningTask]) -> list[TuningTask]:
        """This shard's tasks, in the order given.

        Ids are hashes, so dealing them out in their order spreads operators and networks; the hands differ by one
        task at most, and every machine that extracted the same tasks deals alike.

        Raises:
            ShardError: more shards than tasks.
        """
        if self.count > len(tasks):
            raise ShardError(
                f"{self.count} shards of {len(tasks)} tasks would leave some empty",
                remedy=f"cut into {len(tasks)} shards at most",
                tasks=len(tasks),
                shards=self.count,
            )
        mine = set(sorted(task.task_id for task in tasks)[self.number - 1 :: self.count])
        return [task for task in tasks if task.task_id in mine]

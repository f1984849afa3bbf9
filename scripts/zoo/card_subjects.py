"""What the cards are measured on: published checkpoints, and the programs of the zoo's corpora as matrices."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tchub.zoo.training.evaluation import unseen_tasks

from scripts.zoo.plan import open_corpus, read_plan, statement_store

if TYPE_CHECKING:
    from tchub.zoo.corpus import Corpus
    from tchub.zoo.features import FeatureSchema
    from tchub.zoo.training import RankingDataset


@dataclass
class Reader:
    """Programs as the matrices of one feature schema; each corpus's tasks that judge are read once."""

    schema: FeatureSchema
    kept: dict[tuple[str, int], RankingDataset | None] = field(default_factory=dict)

    def read(self, name: str, per_task: int = 0) -> RankingDataset | None:
        """All valid programs of the tasks that judge, or `per_task` of each at random."""
        from tchub.zoo.training.programs import Share, read_programs

        if (name, per_task) not in self.kept:
            corpus, share = open_once(name), Share(per_task=per_task)
            tasks = unseen_tasks(corpus, ()).tasks
            self.kept[name, per_task] = read_programs(corpus, tasks, self.schema, statement_store(), share)[0]
        return self.kept[name, per_task]

    def read_only(self, name: str, tasks: Collection[str], per_task: int) -> RankingDataset | None:
        """Those of some of the tasks; None without any."""
        data = self.read(name, per_task)
        if data is None:
            return None
        wanted = np.array([task in tasks for task in data.task_ids])
        rows = np.flatnonzero(wanted[data.group])
        return data.take(rows) if len(rows) else None


@dataclass(frozen=True)
class Published:
    """A checkpoint as it is in the wheel."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.parent.name

    @property
    def metrics(self) -> dict[str, Any]:
        return json.loads((self.folder / "metrics.json").read_text())

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())

    @property
    def learnt(self) -> list[str]:
        """The corpora of the training, the target first."""
        training = self.config["training"]
        return [corpus["name"] for corpus in (training["corpus"], *training.get("sources", ()))]

    @property
    def judged_on(self) -> list[str]:
        """Corpora of the family's own device that nothing was learnt from, where another device stood in for it."""
        config = self.config
        place = read_plan()["families"].get(config["name"].removeprefix(f"{config['arch']}-"), {})
        return place.get("judged_on", [])

    @property
    def judged_by(self) -> list[str]:
        """The corpora whose test split the published scores are of."""
        return [row["corpus"] for row in self.metrics.get("devices", ())] or [self.metrics["corpus"]]

    @property
    def stored(self) -> dict[str, dict[str, float]]:
        """The published scores, by corpus."""
        devices = {row["corpus"]: row["now"] for row in self.metrics.get("devices", ())}
        return devices or {self.metrics["corpus"]: self.metrics["results"]["model"]}


@cache
def open_once(name: str) -> Corpus:
    """A corpus of the zoo."""
    return open_corpus(name)


@lru_cache(maxsize=1)
def reader(schema: str) -> Reader:
    """The reader of a schema; one at a time fits the memory."""
    from tchub.zoo.features import get_schema

    return Reader(get_schema(schema))

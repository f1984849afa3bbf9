"""One pass over a corpus, a task at a time: what its statistics and its checks count."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pyarrow as pa

from .corpus import Corpus

_COUNTED = ("error", "strategy", "framework", "licence", "source", "device", "target", "cpu_model")
_COLUMNS = [*_COUNTED, "key", "latencies", "cost_seconds"]


@dataclass
class Tally:
    """What was counted; memory grows with the tasks, and by 8 bytes a program that was timed repeatedly.

    Attributes:
        programs: programs by task id.
        valid: valid programs by task id.
        counts: column -> value -> how many programs say so; None is counted too.
        duplicates: programs that are in their task twice.
        noise: spread of the repeats of a program, (largest - smallest) / median.
        seconds: spent on measuring.
    """

    programs: dict[str, int] = field(default_factory=dict)
    valid: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Counter[str | None]] = field(default_factory=lambda: {name: Counter() for name in _COUNTED})
    duplicates: int = 0
    noise: array[float] = field(default_factory=lambda: array("d"))
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """All programs."""
        return sum(self.programs.values())

    @property
    def failed(self) -> Counter[str]:
        """Failed programs by kind of error."""
        return Counter({error: count for error, count in self.counts["error"].items() if error})


def tally(corpus: Corpus) -> Tally:
    """Count a corpus."""
    found = Tally()
    for task_id in corpus.tasks:
        _add(found, task_id, corpus.table(task_id, _COLUMNS))
    return found


def _add(found: Tally, task_id: str, table: pa.Table) -> None:
    found.programs[task_id] = len(table)
    found.valid[task_id] = table["error"].null_count
    found.duplicates += len(table) - len(table["key"].unique())
    for name, counter in found.counts.items():
        for pair in table[name].value_counts().to_pylist():
            counter[pair["values"]] += pair["counts"]
    found.noise.extend(_spread(repeats) for repeats in table["latencies"].to_pylist() if repeats and len(repeats) > 1)
    found.seconds += float(np.nansum(table["cost_seconds"].to_numpy().astype(float)))


def _spread(repeats: list[float]) -> float:
    return (max(repeats) - min(repeats)) / median(repeats)

"""The single results of the benchmark of samplers: what is asked, the journal of what there is, what is missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import listed
from scripts.benchmarks.sampling.figures import ALL

# Each corpus, and the device of which the second block's weights are.
SOURCES = {
    "k80": "v100",
    "epyc-turin": "ryzen-3700x-autotvm",
    "mi50": "v100",
    "cortex-a72-autotvm": "ryzen-3700x-autotvm",
    "rtx2080ti": "v100",
}
SAMPLERS = ("random", "stratified", "alt", "balto", "fasor", "rdu", "rdu+", "strata")
SHARES = (0.1, 0.05, 0.2, 0.02)
PER_TASK = 120
WANTED_SEEDS = 5


@dataclass(frozen=True)
class Key:
    """One result; a line that does not tell `per_task` has the default one."""

    corpus: str
    block: str
    sampler: str
    share: float
    seed: int
    per_task: int = PER_TASK

    @property
    def group(self) -> tuple[Any, ...]:
        """Results of one group share the models of their random starts."""
        return self.corpus, self.block, self.seed, self.share


def key_of(row: dict[str, Any], kind: type[Any] = Key) -> Any:
    """The key of a line."""
    return kind(**{name: row[name] for name in kind.__annotations__ if name in row})


def keys(
    corpora: tuple[str, ...], seeds: tuple[int, ...], shares: tuple[float, ...], per_task: int = PER_TASK
) -> Iterator[Key]:
    """Everything to be run: a tenth of every corpus first, then the other shares, seed by seed."""
    for share in (*shares, 1.0):
        for seed in seeds:
            for corpus in corpora:
                for block in ("scratch", "pretrained"):
                    for sampler in SAMPLERS if share < 1 else (ALL,):
                        yield Key(corpus, block, sampler, share, seed, per_task)


class Journal:
    """One line a result."""

    def __init__(self, folder: Path, name: str = "results.jsonl") -> None:
        self.file = folder / name
        folder.mkdir(parents=True, exist_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        """All results, a last line that was cut short left out."""
        rows = []
        for line in self.file.read_text().splitlines() if self.file.is_file() else ():
            try:
                rows.append(json.loads(line))
            except ValueError:
                click.echo(f"{self.file}: a broken line is left out", err=True)
        return rows

    def add(self, row: dict[str, Any]) -> None:
        # A line that was cut short must not spoil this one.
        broken = self.file.is_file() and not self.file.read_bytes().endswith(b"\n")
        with self.file.open("a") as stream:
            stream.write("\n" * broken + json.dumps(row) + "\n")


def kept_rows(journal: Journal, per_task: int, kind: type[Any] = Key) -> list[dict[str, Any]]:
    """Everything that is kept with so many programs of a task; of a result that was made twice the last line."""
    return list({key: row for row in journal.rows() if (key := key_of(row, kind)).per_task == per_task}.values())


def not_done(missing: list[Key]) -> list[str]:
    """What is missing, in few words: results of each share, and the corpora and seeds that they are of."""
    told = []
    for share in sorted({key.share for key in missing}):
        own = [key for key in missing if key.share == share]
        corpora = listed(sorted({key.corpus for key in own}), list(SOURCES), "corpus")
        seeds = listed(sorted({key.seed for key in own}))
        told.append(f"{len(own)} results with {share:.0%} of the programs (seeds {seeds}; {corpora})")
    return told

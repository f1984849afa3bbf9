"""What a run of the local benchmark is: a network, a target of this machine, where its model starts; and its files.

A run lives in `WORK/NETWORK/TARGET-SOURCE-SEED-LABELS-TRIALS-POOL-SAMPLER-METHOD/`:

    row.json      written last and atomically: a run without it was cut short, and goes on with the step that it was in
    adapted.json  what adapting came to
    adapt/        the journal and the corpus; `pool` is that of all sources of the network and target
    tune/         the output of `hub.tune`
    further-N.json  its scores on further programs, N a task
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import read_json


@dataclass(frozen=True)
class LocalTarget:
    """A target of this machine.

    Attributes:
        text: for a reader.
        level: LLVM's name of a CPU or level; None for all that the CPU has.
        threads: of a program.
        other: the target whose measurements the source `other` has.
    """

    text: str
    level: str | None
    threads: int
    other: str


TARGETS = {
    "full-1": LocalTarget("all instructions, 1 thread", None, 1, "v2-1"),
    "v2-1": LocalTarget("x86-64-v2 (128-bit vectors), 1 thread", "x86-64-v2", 1, "full-1"),
    "full-2": LocalTarget("all instructions, 2 threads", None, 2, "full-1"),
}
# In the order of running: `other` learns what `epyc` measured for another target.
OWN, SCRATCH, OTHER = "epyc", "none", "other"
SOURCES = {
    OWN: "tilenet-epyc, learnt from programs of an EPYC Turin with all its instructions",
    SCRATCH: "no pretraining: a random TileNet",
    "xeon": "tilenet-xeon, learnt from AutoTVM's programs of another x86 CPU",
    OTHER: "tilenet-epyc, which learns besides what was measured for another of these targets (with all methods)",
}
CHECKPOINTS = {OWN: "tilenet-epyc", "xeon": "tilenet-xeon", OTHER: "tilenet-epyc"}
ARCHITECTURE = "tilenet"


@dataclass(frozen=True)
class LocalRun:
    """One network, target, source and seed.

    Attributes:
        labels: programs a task to learn from, on the average; a quarter of them more are held out.
        trials: programs that tuning measures.
        pool: candidates of a task.
        sampler: picks the programs; method: learns from them.
        judging: further programs a task that judge start and result; no setting of the run itself.
        work: folder of all runs.
    """

    network: str
    target: str
    source: str
    seed: int
    labels: int
    trials: int
    pool: int
    sampler: str
    method: str
    judging: int
    work: Path

    @property
    def at(self) -> LocalTarget:
        """What it runs for."""
        return TARGETS[self.target]

    @property
    def folder(self) -> Path:
        """Where its files are."""
        settings = (self.labels, self.trials, self.pool, self.sampler, self.method)
        return self.work / self.network / "-".join(map(str, (self.target, self.source, self.seed, *settings)))

    @property
    def pool_folder(self) -> Path:
        """The candidates of its network and target, whatever the source."""
        return self.work / self.network / f"pool-{self.target}-{self.seed}-{self.pool}"

    @property
    def label(self) -> str:
        """For progress lines."""
        return f"{self.network}, {self.target}, from {self.source}, seed {self.seed}"

    def row(self) -> dict[str, Any] | None:
        """What it came to; None while it is not done."""
        path = self.folder / "row.json"
        return read_json(path) if path.is_file() else None

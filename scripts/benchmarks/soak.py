"""A tuning run of ten thousand trials whose memory is watched: it must stay flat.

    python -m scripts.benchmarks soak --json

Two runs, both of the real session with its search, cost model, database, log and history, each in its own process:

    workers     real builds and runs by tchub's workers, a few hundred: at some 0.2 s a program ten thousand would take
                the better part of an hour
    pretended   ten thousand, with a machine that measures nothing: a latency that follows from the program

Resident memory of the tuner, and of zygote and workers together, is written to `--work` as it is read; a run that ended
is not repeated. The slope is fitted by least squares to what comes after the warm-up, in KiB per 1,000 trials. The
warm-up is the first fifth: until then the model's context of each task (512 programs) fills up, and workers load what
they need.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from scripts.benchmarks.common import Document, Journal, benchmark, in_process, kept, note, read_json, work_option
from scripts.kills.session import TARGET, Pretended, workers

BATCH = 16
CHECKPOINT, ENGINE = "tilenet-epyc", "decisions"
# Spaces of well over ten thousand programs together, that compile and run in no time.
SHAPES = (("dense", {"m": 64, "n": 48, "k": 32}), ("dense", {"m": 96, "n": 128, "k": 64}),
          ("batch_matmul", {"batch": 2, "m": 64, "n": 64, "k": 32}),
          ("conv2d", {"channels": 16, "filters": 32, "size": 14, "kernel": 3, "stride": 1}))  # fmt: skip
WARM_UP = 0.2
MACHINES = {"workers": "real builds and runs", "pretended": "no builds: a latency that follows from the program"}


@dataclass(frozen=True)
class Job:
    """One run; its memory is read every so many trials."""

    machine: str
    trials: int
    every: int

    def file(self, work: Path, suffix: str) -> Path:
        """A file of the run."""
        return work / f"{self.machine}-{self.trials}-{CHECKPOINT}-{ENGINE}{suffix}"


# By the process whose memory the summary shows of it.
JOBS = {"tuner": Job("pretended", 10_000, 100), "workers": Job("workers", 300, 20)}


class Watch:
    """Passes a measure function on, and reads the memory every so many programs."""

    def __init__(self, inner: Any, job: Job, journal: Path) -> None:
        self.inner, self.job, self.journal = inner, job, Journal(journal)
        self.room = getattr(inner, "room", BATCH)
        self.count = 0
        self._process, self._started = psutil.Process(), time.monotonic()

    def __call__(self, jobs: Sequence[Any]) -> Iterator[Any]:
        for result in self.inner(jobs):
            self.count += 1
            if self.count % self.job.every == 0:
                note(f"{self.job.machine}: {self.journal.get(self._sample, trials=self.count)}")
            yield result

    def _sample(self) -> dict[str, float]:
        children = self._process.children(recursive=True)
        return {
            "seconds": round(time.monotonic() - self._started, 1),
            "tuner_mib": round(self._process.memory_info().rss / 2**20, 2),
            "workers_mib": round(sum(map(_resident, children)) / 2**20, 2),
        }


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # workers come and go
        return 0


def soak(job: Job, work: Path) -> None:
    """One watched run; its samples go into its journal, and facts into its answer."""
    import tvm
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.networks.workloads import operator_module
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import FILE, RunStore
    from tchub.hub.search.engines import SearchSettings
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.measuring import WorkerMeasure
    from tchub.hub.search.models import choose_model
    from tchub.hub.tuning.config import TuneConfig
    from tchub.hub.tuning.session import TuningSession
    from tchub.zoo.corpus.workloads import OperatorSpec

    specs = [OperatorSpec(f"{op}-{number}", op, shape) for number, (op, shape) in enumerate(SHAPES)]
    tasks = [make_task(operator_module(spec), spec.name) for spec in specs]
    search = SearchSettings(engine=ENGINE)
    config = TuneConfig(trials=job.trials, trials_per_iter=BATCH, search=search, untuned=False)
    model, target = choose_model(CHECKPOINT).make(), tvm.target.Target(TARGET)
    job.file(work, ".jsonl").unlink(missing_ok=True)
    scope, start = MeasurementScope.of("soak", "any", target, 1), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tchub-soak-") as name:
        folder = Path(name)
        with (
            workers() if job.machine == "workers" else nullcontext() as measurer,
            RunStore(folder / FILE, scope, RunStore(folder / "home" / FILE, scope)) as store,
        ):
            measure = WorkerMeasure(measurer) if measurer else Pretended()
            watch = Watch(measure, job, job.file(work, ".jsonl"))
            view = TuningSession(tasks, target, model, watch, store, config, StopFlag()).run()
        size = (folder / FILE).stat().st_size
    facts = {"trials": view.done, "seconds": round(time.monotonic() - start, 1), "phases": dict(view.phases)}
    kept(job.file(work, ".json"), lambda: facts | {"database_mib": round(size / 2**20, 1)})


def slopes(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """KiB per 1,000 trials of tuner and workers after the warm-up; None with fewer than three samples."""
    late = [s for s in samples if s["trials"] >= WARM_UP * samples[-1]["trials"]]
    row: dict[str, Any] = {}
    for who in ("tuner", "workers"):
        points = [s["trials"] for s in late], [s[f"{who}_mib"] for s in late]
        row[f"{who}_kib_per_1000"] = float(np.polyfit(*points, 1)[0] * 1024 * 1000) if len(late) > 2 else None
        row[f"{who}_mib_largest"] = max(s[f"{who}_mib"] for s in samples)
    return row


def answer(job: Job, work: Path) -> dict[str, Any]:
    """The result of a run, done in a process of its own unless it is there."""
    path = job.file(work, ".json")
    if not path.is_file():
        in_process(soak, job, work)
    samples = Journal(job.file(work, ".jsonl")).rows()
    return read_json(path) | {"samples": samples} | slopes(samples)


@benchmark("soak", work_option("soak"))
def main(work: Path) -> Document:
    """Soak, and write docs/benchmarks/soak.json."""
    work.mkdir(parents=True, exist_ok=True)
    runs, summary = {}, {}
    for who, job in JOBS.items():
        run = runs[job.machine] = answer(job, work)
        summary |= {
            f"{who}_trials": run["trials"],
            f"{who}_slope_kib_per_1000_trials": run[f"{who}_kib_per_1000"],
            f"{who}_largest_mib": run[f"{who}_mib_largest"],
            f"{who}_seconds": run["seconds"],
        }
    return summary, {"machines": MACHINES, "model": CHECKPOINT, "engine": ENGINE, "runs": runs}, [0]

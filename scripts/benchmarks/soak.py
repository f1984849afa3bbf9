"""A tuning run of ten thousand trials whose memory is watched: it must stay flat.

    python -m scripts.benchmarks soak --json

Two runs, both of the real session with its search, cost model, database, log and history, each in its own process:

    workers     real builds and runs by tchub's workers, for as many trials as `--real` says: at some 0.2 s a program
                ten thousand would take the better part of an hour
    pretended   all `--trials`, with a machine that measures nothing: a latency that follows from the program

Resident memory of the tuner, and of zygote and workers together, is read every `--every` trials and written to
`--work` as it is read; a run that ended is not repeated. The slope is fitted by least squares to what comes after the
warm-up, and said in KiB per 1,000 trials. The warm-up is the first fifth: until then the model's context of each task
(512 programs) fills up, and workers load what they need.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from scripts.benchmarks.common import ROOT, finish
from scripts.kills.session import TARGET, Pretended, workers

BATCH = 16
# Spaces of well over ten thousand programs together, that compile and run in no time.
SHAPES = (("dense", {"m": 64, "n": 48, "k": 32}), ("dense", {"m": 96, "n": 128, "k": 64}),
          ("batch_matmul", {"batch": 2, "m": 64, "n": 64, "k": 32}),
          ("conv2d", {"channels": 16, "filters": 32, "size": 14, "kernel": 3, "stride": 1}))  # fmt: skip
WARM_UP = 0.2
MACHINES = {"workers": "real builds and runs", "pretended": "no builds: a latency that follows from the program"}


@dataclass(frozen=True)
class Job:
    """One run."""

    machine: str
    trials: int
    every: int
    checkpoint: str
    engine: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.machine}-{self.trials}-{self.checkpoint}-{self.engine}"


def tasks() -> list[Any]:
    """The cheap tasks."""
    from tchub.hub.networks.operators import operator_module
    from tchub.hub.networks.tasks import make_task
    from tchub.zoo.corpus.workloads import OperatorSpec

    specs = [OperatorSpec(f"{op}-{number}", op, shape) for number, (op, shape) in enumerate(SHAPES)]
    return [make_task(operator_module(spec), spec.name) for spec in specs]


class Watch:
    """Passes a measure function on, and reads the memory every so many programs."""

    def __init__(self, inner: Any, every: int, label: str, journal: Path) -> None:
        self.inner, self.every, self.label, self.journal = inner, every, label, journal
        self.room = getattr(inner, "room", BATCH)
        self.count = 0
        self.samples: list[dict[str, float]] = []
        self._process, self._started = psutil.Process(), time.monotonic()

    def __call__(self, jobs: Sequence[Any]) -> Iterator[Any]:
        for found in self.inner(jobs):
            self.count += 1
            if self.count % self.every == 0:
                self._sample()
            yield found

    def _sample(self) -> None:
        children = self._process.children(recursive=True)
        sample = {
            "trials": self.count,
            "seconds": round(time.monotonic() - self._started, 1),
            "tuner_mib": round(self._process.memory_info().rss / 2**20, 2),
            "workers_mib": round(sum(map(_resident, children)) / 2**20, 2),
        }
        self.samples.append(sample)
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sample) + "\n")
        print(f"{self.label}: {sample}", file=sys.stderr, flush=True)


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # workers come and go
        return 0


def soak(job: Job, journal: Path, folder: Path) -> dict[str, Any]:
    """One watched run; returns its samples and slopes."""
    from tchub.hub.search.measuring import WorkerMeasure

    if job.machine == "workers":
        with workers() as measurer:
            return _soak(Watch(WorkerMeasure(measurer), job.every, job.machine, journal), job, folder)
    return _soak(Watch(Pretended(), job.every, job.machine, journal), job, folder)


def _soak(watch: Watch, job: Job, folder: Path) -> dict[str, Any]:
    import tvm
    from tchub.hub.records.scope import MeasurementScope
    from tchub.hub.records.store import FILE, RunStore
    from tchub.hub.search.engines import SearchSettings
    from tchub.hub.search.interrupt import StopFlag
    from tchub.hub.search.models import choose_model
    from tchub.hub.tuning.config import TuneConfig
    from tchub.hub.tuning.session import TuningSession

    search = SearchSettings(engine=job.engine)
    config = TuneConfig(trials=job.trials, trials_per_iter=BATCH, search=search, untuned=False)
    model, target = choose_model(job.checkpoint).make(), tvm.target.Target(TARGET)
    start = time.monotonic()
    scope = MeasurementScope.of("soak", "any", target, 1)
    with RunStore(folder / FILE, scope, RunStore(folder / "home" / FILE, scope)) as store:
        view = TuningSession(tasks(), target, model, watch, store, config, StopFlag()).run()
    facts = {"trials": view.done, "seconds": round(time.monotonic() - start, 1), "phases": dict(view.phases)}
    database = (folder / FILE).stat().st_size
    return facts | {"database_mib": round(database / 2**20, 1), "samples": watch.samples} | slopes(watch.samples)


def slopes(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """KiB per 1,000 trials of tuner and workers after the warm-up; None with fewer than three samples."""
    late = [s for s in samples if s["trials"] >= WARM_UP * samples[-1]["trials"]] if samples else []
    if len(late) < 3:
        return {"tuner_kib_per_1000": None, "workers_kib_per_1000": None}
    count = np.array([s["trials"] for s in late])
    return {
        f"{who}_kib_per_1000": float(np.polyfit(count, [s[f"{who}_mib"] for s in late], 1)[0] * 1024 * 1000)
        for who in ("tuner", "workers")
    } | {f"{who}_mib_largest": max(s[f"{who}_mib"] for s in samples) for who in ("tuner", "workers")}


def in_a_process(job: Job, work: Path, as_is: bool) -> dict[str, Any] | None:
    """`soak` in a fresh process, so that the first run's memory is not the second's; the answer of an ended run.

    Args:
        as_is: run nothing, and take what the journal of an unfinished run says; None where there is none.
    """
    answer = work / f"{job.name}.json"
    if as_is and not answer.is_file():
        return so_far(work / f"{job.name}.jsonl")
    if not answer.is_file():
        command = [sys.executable, "-m", "scripts.benchmarks", "soak"]
        command += ["--work", str(work.resolve()), "--one", json.dumps(asdict(job))]
        subprocess.run(command, cwd=ROOT, check=True)
    return json.loads(answer.read_text())


def so_far(journal: Path) -> dict[str, Any] | None:
    """What is known of a run that did not end."""
    if not journal.is_file():
        return None
    text = journal.read_text(encoding="utf-8")
    samples = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    last = samples[-1]
    return {"trials": last["trials"], "seconds": last["seconds"], "samples": samples} | slopes(samples)


def one(job: Job, work: Path) -> None:
    """The child's side of `in_a_process`."""
    journal = work / f"{job.name}.jsonl"
    journal.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tchub-soak-") as folder:
        result = soak(job, journal, Path(folder))
    partial = work / f"{job.name}.part"
    partial.write_text(json.dumps(result))
    partial.replace(work / f"{job.name}.json")


@click.command()
@click.option("--trials", default=10_000, show_default=True)
@click.option("--real", default=300, show_default=True, help="Trials of the run with real workers; 0: none.")
@click.option("--every", default=100, show_default=True, help="Trials between two looks; a fifth with real workers.")
@click.option("--checkpoint", default="tilenet-epyc", show_default=True, help="Or `none` for a random model.")
@click.option("--engine", default="decisions", show_default=True, help="Search engine.")
@click.option("--work", default=ROOT / "runs" / "soak", show_default=True, type=click.Path(path_type=Path))
@click.option("--as-is", is_flag=True, help="Run nothing: say what is known of these runs, however far they came.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--one", "text", hidden=True)
def main(
    trials: int,
    real: int,
    every: int,
    checkpoint: str,
    engine: str,
    work: Path,
    as_is: bool,
    as_json: bool,
    text: str | None,
) -> None:
    """Soak, and write docs/benchmarks/soak.json."""
    work.mkdir(parents=True, exist_ok=True)
    if text is not None:
        one(Job(**json.loads(text)), work)
        return
    started = time.time()
    jobs = [
        Job("pretended", trials, every, checkpoint, engine),
        Job("workers", real, max(1, every // 5), checkpoint, engine),
    ]
    ended = {job: in_a_process(job, work, as_is) for job in jobs if job.trials}
    runs = {job.machine: run for job, run in ended.items() if run is not None}
    left = [
        f"{job.machine}, {job.trials} trials" for job, run in ended.items() if not run or run["trials"] < job.trials
    ]
    details = {"machines": MACHINES, "model": checkpoint, "engine": engine, "runs": runs}
    details |= {"not_done": left} if left else {}
    finish("soak", summary(runs), details, [0], as_json, started)


def summary(runs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of the tuner after all trials, and of the workers after the real ones."""
    found: dict[str, Any] = {}
    for machine, who in (("pretended", "tuner"), ("workers", "workers")):
        if machine in runs:
            run = runs[machine]
            found |= {
                f"{who}_trials": run["trials"],
                f"{who}_slope_kib_per_1000_trials": run[f"{who}_kib_per_1000"],
                f"{who}_largest_mib": run[f"{who}_mib_largest"],
                f"{who}_seconds": run["seconds"],
            }
    return found


if __name__ == "__main__":
    main()

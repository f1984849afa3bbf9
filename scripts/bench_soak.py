"""A tuning run of ten thousand trials whose memory is watched: it must stay flat.

    python scripts/bench_soak.py --json

Two runs, both of the real session with its search, cost model, database and log, each in a process of its own:

    workers     real builds and runs by tchub's workers, for as many trials as `--real` says: at some 0.2 s a program
                ten thousand would take the better part of an hour
    pretended   all `--trials`, with a machine that measures nothing: a latency that follows from the program

Resident memory of the tuner, and of zygote and workers together, is read every `--every` trials. The slope is fitted
by least squares to what comes after the first fifth, and said in KiB per 1,000 trials.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
from benchmarking import ROOT, finish
from kill_session import TARGET, Pretended, workers

BATCH = 16
# Spaces of well over ten thousand programs together, that compile and run in no time.
SHAPES = (("dense", {"m": 64, "n": 48, "k": 32}), ("dense", {"m": 96, "n": 128, "k": 64}),
          ("batch_matmul", {"batch": 2, "m": 64, "n": 64, "k": 32}),
          ("conv2d", {"channels": 16, "filters": 32, "size": 14, "kernel": 3, "stride": 1}))  # fmt: skip
WARM_UP = 0.2


def tasks() -> list[Any]:
    """The cheap tasks."""
    from tchub.hub.tuning.operators import operator_module
    from tchub.hub.tuning.tasks import make_task
    from tchub.zoo.corpus.workloads import OperatorSpec

    specs = [OperatorSpec(f"{op}-{number}", op, shape) for number, (op, shape) in enumerate(SHAPES)]
    return [make_task(operator_module(spec), spec.name) for spec in specs]


class Watch:
    """Passes a measure function on, and reads the memory every so many programs."""

    def __init__(self, inner: Any, every: int, label: str) -> None:
        self.inner, self.every, self.label = inner, every, label
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
        print(f"{self.label}: {sample}", file=sys.stderr, flush=True)


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # workers come and go
        return 0


def soak(machine: str, trials: int, every: int, checkpoint: str, engine: str | None, folder: Path) -> dict[str, Any]:
    """One watched run; returns its samples and slopes."""
    from tchub.hub.tuning.measuring import MeasureHere

    if machine == "workers":
        with workers() as measurer:
            return _soak(Watch(MeasureHere(measurer), every, machine), trials, checkpoint, engine, folder)
    return _soak(Watch(Pretended(), every, machine), trials, checkpoint, engine, folder)


def _soak(watch: Watch, trials: int, checkpoint: str, engine: str | None, folder: Path) -> dict[str, Any]:
    import tvm
    from tchub.hub.tuning.interrupt import StopFlag
    from tchub.hub.tuning.models import choose_model
    from tchub.hub.tuning.search import SearchSettings
    from tchub.hub.tuning.session import SessionSettings, TuningSession

    search = SearchSettings(engine=engine) if engine else SearchSettings()
    settings = SessionSettings(trials=trials, batch=BATCH, search=search, untuned=False)
    model = choose_model(checkpoint).make()
    session = TuningSession(tasks(), tvm.target.Target(TARGET), model, watch, folder, settings, StopFlag())
    start = time.monotonic()
    view = session.run()
    facts = {"trials": view.done, "seconds": time.monotonic() - start, "phases": dict(view.phases)}
    database = sum(path.stat().st_size for path in (folder / "database").iterdir())
    return facts | {"database_mib": database / 2**20, "samples": watch.samples} | slopes(watch.samples)


def slopes(samples: Sequence[dict[str, float]]) -> dict[str, Any]:
    """KiB per 1,000 trials of tuner and workers after the warm-up; None with fewer than three samples."""
    late = [s for s in samples if s["trials"] >= WARM_UP * samples[-1]["trials"]] if samples else []
    if len(late) < 3:
        return {"tuner_kib_per_1000": None, "workers_kib_per_1000": None}
    count = np.array([s["trials"] for s in late])
    return {
        f"{who}_kib_per_1000": float(np.polyfit(count, [s[f"{who}_mib"] for s in late], 1)[0] * 1024 * 1000)
        for who in ("tuner", "workers")
    } | {"tuner_mib_at_warm_up": late[0]["tuner_mib"], "tuner_mib_at_end": late[-1]["tuner_mib"]}


def in_a_process(arguments: Sequence[Any]) -> dict[str, Any]:
    """`soak` in a fresh process, so that the first run's memory is not the second's; samples go to stderr."""
    with tempfile.TemporaryDirectory(prefix="tchub-soak-") as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, __file__, "--one", json.dumps([*arguments, str(answer)])]
        subprocess.run(command, check=True)
        return json.loads(answer.read_text())


def one(text: str) -> None:
    """The child's side of `in_a_process`."""
    machine, trials, every, checkpoint, engine, answer = json.loads(text)
    folder = Path(answer).parent / "run"
    result = soak(machine, trials, every, checkpoint, engine, folder)
    shutil.rmtree(folder)
    Path(answer).write_text(json.dumps(result))


@click.command()
@click.option("--trials", default=10_000, show_default=True)
@click.option("--real", default=1_000, show_default=True, help="Trials of the run with real workers; 0: none.")
@click.option("--every", default=100, show_default=True, help="Trials between two looks.")
@click.option("--checkpoint", default="tilenet-epyc", show_default=True, help="Or `none` for a random model.")
@click.option("--engine", help="Search engine, if not the session's own choice.")
@click.option("--work", default=ROOT / "runs" / "soak", show_default=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True)
@click.option("--one", "text", hidden=True)
def main(
    trials: int, real: int, every: int, checkpoint: str, engine: str | None, work: Path, as_json: bool, text: str | None
) -> None:
    """Soak, and write docs/benchmarks/soak.json."""
    if text is not None:
        one(text)
        return
    started, runs = time.time(), {}
    work.mkdir(parents=True, exist_ok=True)
    for machine, count in (("workers", real), ("pretended", trials)):
        place = work / f"{machine}-{count}-{checkpoint}-{engine}.json"
        if count and not place.is_file():
            place.write_text(json.dumps(in_a_process([machine, count, every, checkpoint, engine])))
        if count:
            runs[machine] = json.loads(place.read_text())
    summary = {
        f"{machine}_{name}": run[name]
        for machine, run in runs.items()
        for name in ("trials", "seconds", "tuner_kib_per_1000", "workers_kib_per_1000")
    }
    words = {"workers": "real builds and runs", "pretended": "no builds: a latency that follows from the program"}
    details = {"machines": words, "model": checkpoint, "runs": runs}
    finish("soak", summary, details, [0], as_json, started)


if __name__ == "__main__":
    main()

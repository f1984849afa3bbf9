"""A synthetic machine for adapting: a latency function stands for compiling and running programs."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tchub.hub.adaptation import adapt as adapt_module
from tchub.hub.adaptation import pool as pool_module
from tchub.hub.adaptation.adapt import adapt
from tchub.hub.adaptation.config import AdaptConfig, AdaptProgress
from tchub.hub.adaptation.pool import PoolEntry
from tchub.hub.adaptation.result import AdaptResult
from tchub.hub.api import CheckpointChoice
from tchub.hub.device.candidate import Candidate
from tchub.hub.device.detect import LocalDevice
from tchub.hub.device.device_choice import ChosenDevice
from tchub.hub.device.measure import Measurement
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.registry import Entry, describe
from tchub.hub.registry.files import FileRecord
from tchub.zoo.adapt.fine_tune import FineTuneConfig
from tchub.zoo.corpus import Program, Task, merge_corpus
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import Checkpoint, CheckpointConfig, create
from tvm import IRModule, te

EPYC = get_device("epyc")
SMALL = {"hidden": 16, "d_model": 16, "head": 8, "d_state": 4, "dt_rank": 2}
OPS = ("conv2d", "conv2d", "matmul", "matmul", "softmax", "conv2d")
# For what does not hang on the size: 40 of 144 candidates, 8 of them held out.
LITTLE = {"budget": 40, "per_task": 24}
QUICK = FineTuneConfig(epochs=3, patience=3, blind_epochs=5, learning_rate=4e-3, head_learning_rate=8e-3, refit=False)

# For what hangs on how well it learns: three times the passes, at half the rates.
LONGER = replace(QUICK, blind_epochs=15, learning_rate=2e-3, head_learning_rate=4e-3)


def make_trace(tile: tuple[int, ...], unroll: int) -> str:
    """A loop split in four, reordered, unrolled."""
    instructions = [
        ["GetSBlock", [], ["C", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2"]],
        ["SamplePerfectTile", ["l1"], [4, 64], ["v3", "v4", "v5", "v6"]],
        ["Split", ["l1", "v3", "v4", "v5", "v6"], [1, 1], ["l7", "l8", "l9", "l10"]],
        ["Reorder", ["l7", "l8", "l2", "l9", "l10"], [], []],
        ["SampleCategorical", [], [[0, 16, 64, 512], [0.25, 0.25, 0.25, 0.25]], ["v11"]],
        ["Annotate", ["b0", "v11"], ["meta_schedule.unroll_explicit"], []],
        ["EnterPostproc", [], [], []],
    ]
    return json.dumps([instructions, [[2, list(tile)], [5, unroll]]])


def tiles(extent: int, parts: int) -> list[tuple[int, ...]]:
    if parts == 1:
        return [(extent,)]
    return [(f, *rest) for f in range(1, extent + 1) if extent % f == 0 for rest in tiles(extent // f, parts - 1)]


def latency_of(candidate: Candidate) -> float:
    """Small inner tiles and much unrolling are slow; every task has a scale of its own."""
    (_, tile), (_, unroll) = json.loads(candidate.trace)[1]
    cost = 0.5 * np.log2(tile[0]) - np.log2(tile[3]) + 0.3 * unroll
    return float(1e-3 * (1 + int(candidate.task_id, 16)) * np.exp(cost / 3))


class Lab:
    """A machine that measures by `latency_of`, and counts what it was asked to measure."""

    def __init__(self, fails=lambda candidate: False, latency=latency_of, stop_after: int | None = None) -> None:
        self.fails, self.latency, self.stop_after = fails, latency, stop_after
        self.measured: list[tuple[str, str]] = []
        self.opened = 0

    @contextmanager
    def open(self):
        self.opened += 1
        yield self

    def know(self, task_id: str, latency: float) -> None:
        assert latency > 0

    def measure(self, candidates):
        for candidate in candidates:
            self.measured.append((candidate.task_id, candidate.key))
            if self.fails(candidate):
                yield candidate, Measurement((), "build", "no such loop", 0.5, 0.0, 1.7e9)
            else:
                seconds = self.latency(candidate)
                yield candidate, Measurement((seconds, seconds), None, None, 0.5, 0.5, 1.7e9)
            if len(self.measured) == self.stop_after:
                os.kill(os.getpid(), signal.SIGINT)


TARGET = {"kind": "llvm", "mcpu": "znver4", "num-cores": 1}


@dataclass(frozen=True)
class LabDevice(ChosenDevice):
    """An open device whose programs the lab measures, as a user of RPC servers has one."""

    facts: LocalDevice = field(
        default_factory=lambda: LocalDevice(replace(EPYC, target=TARGET), "Test CPU", True, (), ("avx2",))
    )
    lab: Lab = field(default_factory=Lab)

    def measurer(self, config: Any) -> Any:
        return self.lab.open()


@cache
def make_task(number: int) -> TuningTask:
    """A task whose module only tells it from the others: its programs are made of traces."""
    x = te.placeholder((number + 1,), name="x")
    mod = IRModule({"main": te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + 1.0, name="y")])})
    return TuningTask(f"{number:016x}", f"fused_{OPS[number]}_{number}", OPS[number], 1 + number, mod, 1e6, {"toy": 1})


def make_candidates(task: TuningTask, _target: Any, count: int, seed: int) -> list[Candidate]:
    rng = np.random.default_rng([seed, int(task.task_id, 16)])
    every = [(tile, unroll) for tile in tiles(64, 4) for unroll in range(4)]
    picks = [every[i] for i in rng.permutation(len(every))[:count]]
    return [Candidate(task.task_id, f"{t}-{u}", make_trace(t, u), "random", None) for t, u in picks]


def replay(task: TuningTask, entry: PoolEntry) -> Candidate:
    return Candidate(task.task_id, entry.key, entry.trace, entry.strategy, None)


@contextmanager
def toy_world(base: CheckpointChoice | None, tasks: int = len(OPS), **border: Any) -> Iterator[pytest.MonkeyPatch]:
    """Tasks, candidates and checkpoints of the tests in place of real ones.

    Args:
        base: what every name of a checkpoint stands for.
        border: other functions of `hub.adaptation.adapt` and `hub.adaptation.pool`, by name.
    """
    names = ("toy", *adapt_module.workload_names())
    functions = {
        "choose_checkpoint": lambda name: base,
        "workload_names": lambda: names,
        "extract_tasks": lambda workload, target, precision: [make_task(i) for i in range(tasks)],
        "random_candidates": make_candidates,
        "replay": replay,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaptConfig, "learning", property(lambda self: self.fine_tune or QUICK))
        for name, function in (functions | border).items():
            for module in (one for one in (adapt_module, pool_module) if hasattr(one, name)):
                patch.setattr(module, name, function)
        yield patch


def run(
    base: CheckpointChoice, lab: Lab, work: Path, border: dict[str, Any] | None = None, *,
    progress: AdaptProgress | None = None, workload: Any = "toy", **options: Any,
) -> AdaptResult:  # fmt: skip
    """Adapt in a toy world, which `border` changes."""
    settings = {"budget": "25%", "per_task": 60, "rounds": 1, "out": work} | options
    if not {"device", "target"} & settings.keys():
        settings["device"] = LabDevice(lab=lab)
    inputs = {"example_inputs": settings.pop("example_inputs")} if "example_inputs" in settings else {}
    with toy_world(base, **border or {}):
        return adapt("tcl-epyc", workload, config=AdaptConfig(**settings), progress=progress, **inputs)


def stored(folder: Path, name: str, model, schema: str = "tcl-cpu") -> CheckpointChoice:
    config = CheckpointConfig(name, "1.0.0", model.arch, model.config.as_dict(), schema, "epyc", tvm="0.27.0")
    Checkpoint(config, model, EPYC).save(folder)
    entry = describe(folder, name, "1.0.0", weights_licence="Apache-2.0", data_licence="CC0-1.0")
    return CheckpointChoice(Checkpoint.load(folder), entry)


def corpus_at(path: Path, device: str = "xeon", family: str = "xeon", tasks: int = 3, each: int = 10) -> Path:
    """Programs of the toy's design space, slow where their inner tile is small."""
    rng = np.random.default_rng(0)
    spaces = [tiles(64, 4)[i] for i in rng.permutation(len(tiles(64, 4)))[:each]]
    meta = {"device": device, "family": family, "cpu_model": "Test", "target": {"kind": "llvm"}}
    meta |= {"tvm_version": "0.27.0", "licence": "CC0-1.0", "command": "test", "notes": "made up"}
    names = [f"{number:016x}" for number in range(100, 100 + tasks)]
    programs = [
        Program(
            task_id=name, key=str(tile), trace=make_trace(tile, 1), strategy="random", latencies=(1.0 / tile[3],),
            latency=1.0 / tile[3], device=device, target="{}", cpu_model="Test", tvm_version="0.27.0",
        )
        for name in names for tile in spaces
    ]  # fmt: skip
    rows = [Task(name, name, "conv2d", 1e6, workload=f'"{name}"', computation=name) for name in names]
    return merge_corpus(path, meta, rows, programs).path


def other_base(arch: str, schema: str, **sizes: Any) -> CheckpointChoice:
    """An untrained model of another architecture, never saved."""
    torch.manual_seed(0)
    columns = get_schema(schema)
    model = create(arch, width=columns.width, hardware=columns.hardware, **sizes)
    name = f"{arch}-epyc"
    facts = {"arch": arch, "family": "epyc", "feature_schema": schema, "format": 1}
    licences = {"weights_licence": "Apache-2.0", "data_licence": "CC0-1.0"}
    files = dict.fromkeys(("config.json", "model.safetensors"), FileRecord(1, "0" * 64))
    entry = Entry(name=name, version="1.0.0", files=files, **facts, **licences)
    return CheckpointChoice(
        Checkpoint(CheckpointConfig(name, "1.0.0", arch, model.config.as_dict(), schema, "epyc"), model, EPYC), entry
    )


class Noting(AdaptProgress):
    """Keeps the lines that stand above the bars."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class KilledError(BaseException):
    """No handler of the product catches it, as none catches SIGKILL."""


class KillAt(AdaptProgress):
    """Ends the run when a phase begins, or after its first step."""

    def __init__(self, phase: str, step: int) -> None:
        self.phase, self.step = phase, step
        self.now, self.steps = "", 0

    def start(self, phase: str, total: int) -> None:
        self.now, self.steps = phase, 0
        self._maybe()

    def advance(self, failed: bool = False) -> None:
        self.steps += 1
        self._maybe()

    def _maybe(self) -> None:
        if (self.now, self.steps) == (self.phase, self.step):
            raise KilledError(self.phase)


class Epochs:
    """Sees each epoch of some trainings, and may end the run after so many of them."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.kill_after = kill_after
        self.seen: list[tuple[str, int]] = []

    def __call__(self, training: str, entry: dict[str, float]) -> None:
        self.seen.append((training, int(entry["epoch"])))
        if len(self.seen) == self.kill_after:
            raise KilledError(training)

"""Microseconds to score a candidate, features and forward pass apart, against stock MetaSchedule.

    python -m scripts.benchmarks predict --json

Six operators (convolution, depthwise, dense, batch matmul, softmax, pooling) on an LLVM and on a CUDA target, batches
of 64 and 512 distinct programs where the space holds as many. Stock is `XGBModel.predict` on PerStoreFeature with two
threads, past its random warm-up; TenSet-MLP reads PerStoreFeature too; TileNet and TCL read traces on one thread.
TileNet knows the latencies of as many programs as stock was trained on.

Programs and results are kept in the work folder: a run that was stopped goes on.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from statistics import geometric_mean, median
from typing import Any

import click

from scripts.benchmarks.common import Document, Journal, benchmark, note, work_option
from scripts.benchmarks.measure import TASKS

TARGETS = {"llvm": "epyc", "nvidia": "t4"}
SEED = 0
# Programs of a batch; those whose latencies are known; threads of stock's features and trees.
BATCHES, TRAIN, THREADS = (64, 512), 256, 2
# Repeats of what takes microseconds, at least.
_LEAST_REPEATS = 20


@dataclass(frozen=True)
class Programs:
    """Distinct programs of one task, live, and MetaSchedule's context of the task."""

    context: Any
    candidates: list[Any]

    def batch(self, size: int) -> list[Any]:
        """So many of them; of a smaller space each as often as it takes."""
        return [self.candidates[i % len(self.candidates)] for i in range(size)]


def programs(name: str, target: str) -> Programs:
    """Valid programs of an operator for a target, as many as any part asks for; fewer when its space is smaller."""
    from tchub.hub.device.candidate import replayed
    from tchub.hub.device.detect import detect_local
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.networks.workloads import operator_module
    from tchub.hub.search.candidates import random_candidates, tune_context
    from tchub.zoo.corpus.workloads import OPERATORS
    from tvm.s_tir import meta_schedule as ms
    from tvm.target import Target

    llvm = {"kind": "llvm", "mcpu": detect_local().mcpu, "num-cores": THREADS}
    tvm_target = Target("nvidia/nvidia-t4" if target == "nvidia" else llvm)
    task = make_task(operator_module(OPERATORS[name]), name)
    traces = [json.loads(one.trace) for one in random_candidates(task, tvm_target, max(*BATCHES, TRAIN), SEED)]
    live = [ms.MeasureCandidate(replayed(task.mod, trace), []) for trace in traces]
    note(f"{name} for {target}: {len(live)} programs")
    return Programs(tune_context(task, tvm_target, "replay-trace", SEED, THREADS), live)


def row_of(size: int, repeats: int, **parts: Callable[[], Any]) -> dict[str, Any]:
    """Medians of microseconds a candidate, of each part of the scoring of a batch."""
    row: dict[str, Any] = {"batch": size}
    for name, part in parts.items():
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            part()
            seconds.append(time.perf_counter() - started)
        row[name] = round(1e6 * median(seconds) / size, 2)
    return row


def stock(drawn: Programs, repeats: int) -> list[dict[str, Any]]:
    """`XGBModel` on PerStoreFeature, trained on programs of the task with random labels first."""
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    model: Any = XGBModel(num_tuning_cores=THREADS, verbose_eval=0)
    model.update(drawn.context, drawn.batch(TRAIN), _results())
    assert model.booster is not None
    rows = []
    for size in BATCHES:
        batch = drawn.batch(size)
        features = [x.numpy().astype("float32") for x in model.extractor.extract_from(drawn.context, batch)]
        rows.append(row_of(
            size, repeats, us=partial(model.predict, drawn.context, batch),
            features_us=partial(model.extractor.extract_from, drawn.context, batch),
            forward_us=partial(model._predict, xs=features),
        ))  # fmt: skip
    return rows


def pretrained(drawn: Programs, repeats: int, name: str, update: str) -> list[dict[str, Any]]:
    """A checkpoint as MetaSchedule calls it, which has the latencies of programs where `update` is `context`."""
    from tchub import hub
    from tchub.hub.search.candidate_features import candidate_features
    from tvm.s_tir.meta_schedule.utils import shash2hex

    checkpoint, task = hub.load(name), shash2hex(drawn.context.mod)
    rows = []
    for size in BATCHES:
        model: Any = hub.tvm_cost_model(checkpoint, update=update)
        if update == "context":
            model.update(drawn.context, drawn.batch(TRAIN), _results())
        batch = drawn.batch(size)
        model.predict(drawn.context, batch)  # the first batch of a task makes what its space needs
        features, usable = candidate_features(checkpoint, drawn.context, batch)
        rows.append(row_of(
            size, repeats, us=partial(model.predict, drawn.context, batch),
            features_us=partial(candidate_features, checkpoint, drawn.context, batch),
            forward_us=partial(model.scorer.predict, task, features, usable),
        ))  # fmt: skip
    return rows


def from_decisions(drawn: Programs, repeats: int, name: str) -> list[dict[str, Any]]:
    """Features of a checkpoint from decisions, as a search that draws them itself asks for them."""
    from tchub import hub
    from tchub.zoo.features import get_schema
    from tchub.zoo.features.skeleton import Skeleton
    from tchub.zoo.primitives.metaschedule import read_trace

    checkpoint = hub.load(name)
    schema = get_schema(checkpoint.config.feature_schema)
    read = [read_trace(candidate.sch.trace) for candidate in drawn.candidates]
    template = read[0][0]
    decided = [decisions for own, decisions in read if own is template]
    skeleton = Skeleton(template, schema, checkpoint.device if schema.hardware else None)
    batches = {size: [decided[i % len(decided)] for i in range(size)] for size in BATCHES}
    repeats = max(repeats, _LEAST_REPEATS)
    return [row_of(size, repeats, us=partial(skeleton.features, batch)) for size, batch in batches.items()]


def _results() -> list[Any]:
    """Latencies of no program in particular, in seconds."""
    from tvm.s_tir import meta_schedule as ms

    rng = Random(0)
    return [ms.runner.RunnerResult([rng.uniform(1e-4, 1e-3)], None) for _ in range(TRAIN)]


def measure_task(task: str, target: str, repeats: int, journal: Journal) -> dict[str, dict[str, Any]]:
    """Rows of every subject for one task on one target, by the size of the batch."""
    family, drawn = TARGETS[target], cache(lambda: programs(task, target))
    subjects: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "stock": lambda: stock(drawn(), repeats),
        "tilenet": lambda: pretrained(drawn(), repeats, f"tilenet-{family}", "context"),
        "tcl": lambda: pretrained(drawn(), repeats, f"tcl-{family}", "none"),
        "tenset-mlp": lambda: pretrained(drawn(), repeats, f"tenset-mlp-{family}", "none"),
        "tilenet-decisions": lambda: from_decisions(drawn(), repeats, f"tilenet-{family}"),
    }
    setting, results = f"{'-'.join(map(str, BATCHES))}/{TRAIN}/{repeats}/{THREADS}", {}
    for subject, make in subjects.items():
        kept = journal.get(lambda make=make: {"rows": make()}, key=f"{target}/{task}/{subject}/{setting}")
        results[subject] = {str(row["batch"]): row for row in kept["rows"]}
    return results


def summarise(details: dict[str, dict[str, dict[str, dict[str, Any]]]]) -> dict[str, Any]:
    """Geometric means over tasks and batches of stock's time over TileNet's, TCL's and TenSet-MLP's."""
    ratios = {}
    for target, tasks in details.items():
        for other, end in (("tilenet", ""), ("tcl", "_tcl"), ("tenset-mlp", "_tenset_mlp")):
            cells = [
                stock["us"] / own[other][size]["us"] for own in tasks.values() for size, stock in own["stock"].items()
            ]
            ratios[f"{target}_ratio{end}"] = round(geometric_mean(cells), 2)
    return ratios


@benchmark(
    "predict",
    click.option("--repeats", default=5, show_default=True, help="Timed predictions of each batch."),
    work_option("predict"),
)
def main(repeats: int, work: Path) -> Document:
    """Time the predictions of stock and the zoo's models, and write docs/benchmarks/predict.json."""
    os.environ["OMP_NUM_THREADS"] = str(THREADS)  # before TVM, XGBoost and PyTorch are imported
    from tchub.zoo.tvm_import import import_tensor_intrinsics

    import_tensor_intrinsics()
    journal = Journal(work / "journal.jsonl")
    details = {target: {task: measure_task(task, target, repeats, journal) for task in TASKS} for target in TARGETS}
    return summarise(details), {"tasks": details}, [SEED]

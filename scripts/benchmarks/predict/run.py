"""Microseconds to score a candidate, features and forward pass apart, against stock MetaSchedule.

    python -m scripts.benchmarks predict --json

Six operators (convolution, depthwise, dense, batch matmul, softmax, pooling) on an LLVM and on a CUDA target, batches
of 64 and 512 distinct programs where the space holds as many. Stock is `XGBModel.predict` on PerStoreFeature with two
threads, past its random warm-up; TenSet-MLP reads PerStoreFeature too; TileNet and TCL read traces on one thread.
TileNet knows the latencies of as many programs as stock was trained on.

Programs and results are kept in the work folder: a run that was stopped goes on.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import Document, Journal, benchmark, work_option

TARGETS = {"llvm": "epyc", "nvidia": "t4"}
SEED = 0
# Programs of a batch; those whose latencies are known; threads of stock's features and trees.
BATCHES, TRAIN, THREADS = (64, 512), 256, 2


def measure_task(task: str, target: str, repeats: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Rows of every subject for one task on one target."""
    from tvm.target import Target

    from scripts.benchmarks.predict.subjects import from_decisions, pretrained, programs, stock

    family = TARGETS[target]

    @cache
    def drawn() -> Any:
        tvm_target = Target("nvidia/nvidia-t4") if target == "nvidia" else Target(_local_llvm())
        return programs(task, tvm_target, max(*BATCHES, TRAIN), SEED, THREADS)

    def ours(name: str, update: str) -> Callable[[], list[dict[str, Any]]]:
        return lambda: pretrained(drawn(), name, TRAIN, BATCHES, repeats, update)

    subjects: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "stock": lambda: stock(drawn(), TRAIN, BATCHES, repeats, THREADS),
        "tilenet": ours(f"tilenet-{family}", "context"),
        "tcl": ours(f"tcl-{family}", "none"),
        "tenset-mlp": ours(f"tenset-mlp-{family}", "none"),
        "tilenet-decisions": lambda: from_decisions(drawn(), f"tilenet-{family}", BATCHES, repeats),
    }
    setting = f"{'-'.join(map(str, BATCHES))}/{TRAIN}/{repeats}/{THREADS}"
    journal, results = Journal(folder / "journal.jsonl"), {}
    for subject, make in subjects.items():
        kept = journal.get(lambda make=make: {"rows": make()}, key=f"{target}/{task}/{subject}/{setting}")
        results[subject] = {str(row["batch"]): row for row in kept["rows"]}
    return results


def _local_llvm() -> dict[str, Any]:
    from tchub.hub.device.detect import detect_local

    return {"kind": "llvm", "mcpu": detect_local().mcpu, "num-cores": THREADS}


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

    from scripts.benchmarks.predict.subjects import TASKS

    import_tensor_intrinsics()
    details = {target: {task: measure_task(task, target, repeats, work) for task in TASKS} for target in TARGETS}
    return summarise(details), {"tasks": details}, [SEED]

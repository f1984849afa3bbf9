"""Microseconds to score a candidate, features and forward pass apart, against stock MetaSchedule.

    python -m scripts.benchmarks predict --json

Six operators (convolution, depthwise, dense, batch matmul, softmax, pooling) on an LLVM and on a CUDA target, batches
of 64 and 512 distinct programs where the space holds as many. Stock is `XGBModel.predict` on PerStoreFeature with two
threads, past its random warm-up; TenSet-MLP reads PerStoreFeature too; TileNet and TCL read traces on one thread.
TileNet knows the latencies of as many programs as stock was trained on. `first_us` is the first batch of a task, when
nothing is known of its space yet.

Programs and results are kept in the work folder: a run that was stopped goes on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from scripts.benchmarks.common import ROOT, finish

TARGETS = {"llvm": "epyc", "nvidia": "t4"}
SEED = 0


class Results:
    """Rows of the benchmark in a file of JSON lines; what it holds is not measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._known: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            entry = json.loads(line)
            self._known[entry["key"]] = entry["rows"]

    def get(self, key: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows of this key, made and written where they are missing."""
        if key not in self._known:
            started = time.monotonic()
            self._known[key] = make()
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "rows": self._known[key]}) + "\n")
            click.echo(f"{key}: {time.monotonic() - started:.0f} s", err=True)
        return self._known[key]


def measure_task(
    results: Results, task: str, target: str, options: dict[str, Any], folder: Path
) -> dict[str, dict[str, Any]]:
    """Rows of every subject for one task on one target."""
    from tvm.target import Target

    from scripts.benchmarks.predict.subjects import from_decisions, pretrained, programs, stock

    family, sizes, repeats = TARGETS[target], tuple(options["batches"]), options["repeats"]
    count, threads = max(*sizes, options["train"]), options["threads"]
    loaded: list[Any] = []

    def found() -> Any:
        if not loaded:
            tvm_target = Target("nvidia/nvidia-t4") if target == "nvidia" else Target(_local_llvm(threads))
            loaded.append(programs(task, tvm_target, count, SEED, threads, folder))
        return loaded[0]

    def ours(name: str, update: str) -> Callable[[], list[dict[str, Any]]]:
        return lambda: pretrained(found(), name, options["train"], sizes, repeats, update)

    subjects: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "programs": lambda: [{"batch": 0, "distinct": len(found().candidates)}],
        "stock": lambda: stock(found(), options["train"], sizes, repeats, threads),
        "tilenet": ours(f"tilenet-{family}", "context"),
        "tilenet-blind": ours(f"tilenet-{family}", "none"),
        "tcl": ours(f"tcl-{family}", "none"),
        "tenset-mlp": ours(f"tenset-mlp-{family}", "none"),
        "tilenet-decisions": lambda: from_decisions(found(), f"tilenet-{family}", sizes, repeats),
        "tcl-decisions": lambda: from_decisions(found(), f"tcl-{family}", sizes, repeats),
    }
    setting = f"{'-'.join(map(str, sizes))}/{options['train']}/{repeats}/{threads}"
    return {
        subject: {str(row["batch"]): row for row in results.get(f"{target}/{task}/{subject}/{setting}", make)}
        for subject, make in subjects.items()
    }


def _local_llvm(threads: int) -> dict[str, Any]:
    from tchub.hub.device.detect import detect_local

    return {"kind": "llvm", "mcpu": detect_local().mcpu, "num-cores": threads}


def summarise(
    details: dict[str, dict[str, dict[str, dict[str, Any]]]], forward: list[dict[str, Any]]
) -> dict[str, Any]:
    """Geometric means over tasks and batches: `<target>_ratio`, and microseconds a candidate."""
    out: dict[str, Any] = {}
    for target, tasks in details.items():
        pairs = [(rows, size) for rows in tasks.values() for size in rows["stock"]]
        out[f"{target}_ratio"] = _mean(
            [rows["stock"][size]["us"] / rows["tilenet"][size]["us"] for rows, size in pairs]
        )
        for other in ("tcl", "tenset-mlp"):
            ratios = [rows["stock"][size]["us"] / rows[other][size]["us"] for rows, size in pairs]
            out[f"{target}_ratio_{other.replace('-', '_')}"] = _mean(ratios)
        for subject in ("stock", "tilenet", "tcl", "tenset-mlp"):
            for part in ("us", "features_us", "forward_us"):
                values = [rows[subject][size][part] for rows, size in pairs]
                out[f"{target}_{subject.replace('-', '_')}_{part}"] = _mean(values)
        for subject in ("tilenet", "tcl"):
            values = [rows[f"{subject}-decisions"][size]["us"] for rows, size in pairs]
            out[f"{target}_{subject}_decisions_us"] = _mean(values)
        out[f"{target}_fewest_distinct"] = min(rows["programs"]["0"]["distinct"] for rows in tasks.values())
    for row in forward:
        if "us" in row:
            out[f"forward_{row['model']}_{row['batch']}_{row['form']}_us"] = row["us"]
    return out


def _mean(values: list[float]) -> float:
    return round(float(np.exp(np.mean(np.log(values)))), 2)


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON.")
@click.option("--task", "tasks", multiple=True, help="Operators; all six without it.")
@click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), help="Targets; both without it.")
@click.option("--batch", "batches", multiple=True, type=int, default=(64, 512), show_default=True)
@click.option("--train", default=256, show_default=True, help="Programs whose latencies are known.")
@click.option("--repeats", default=5, show_default=True, help="Timed predictions of each batch.")
@click.option("--threads", default=2, show_default=True, help="Of stock's features and trees.")
@click.option("--work", type=click.Path(path_type=Path), default=ROOT / "runs" / "predict", show_default=True)
def main(as_json: bool, tasks: tuple[str, ...], targets: tuple[str, ...], work: Path, **options: Any) -> None:
    started = time.time()
    os.environ["OMP_NUM_THREADS"] = str(options["threads"])  # before TVM, XGBoost and PyTorch are imported
    from tchub.zoo.tvm_import import import_tensor_intrinsics

    from scripts.benchmarks.predict.forward import forms
    from scripts.benchmarks.predict.subjects import TASKS

    import_tensor_intrinsics()
    results = Results(work / "journal.jsonl")
    details = {
        target: {task: measure_task(results, task, target, options, work) for task in tasks or TASKS}
        for target in targets or TARGETS
    }
    forward = [
        row
        for name in ("tilenet-epyc", "tcl-epyc", "tenset-mlp-epyc")
        for row in results.get(
            f"forward/{name}/{'-'.join(map(str, options['batches']))}",
            lambda name=name: forms(name, tuple(options["batches"]), max(20, options["repeats"]), SEED),
        )
    ]
    finish("predict", summarise(details, forward), {"tasks": details, "forward": forward}, [SEED], as_json, started)


if __name__ == "__main__":
    main()

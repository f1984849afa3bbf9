"""Import and one training epoch of a large made-up corpus: programs a second, and the memory that they take.

    python -m scripts.benchmarks corpus --programs 100000

The log is made as Ansor writes it (steps of tiled matrix products, tuned in rounds of 64 programs a task, all
tasks interleaved). Making it, importing it and training on the corpus each run in a process of their own, whose
largest resident memory is reported; the training is one epoch of TCL with its usual batches, on one thread.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import Document, benchmark, in_process, note

ROUND = 64
# TenSet has about this many programs a task.
PROGRAMS_A_TASK = 2500
LIMIT_GIB = 2.0
# Tasks in memory at a time.
TASKS = 16


def _lines(programs: int) -> Iterator[str]:
    """Distinct records, round after round over the tasks, as a task scheduler measures them."""
    rng, tasks, written = random.Random(0), max(1, programs // PROGRAMS_A_TASK), 0
    while written < programs:
        for task in range(tasks):
            for _ in range(min(ROUND, programs - written)):
                yield _line(rng, task, written)
                written += 1


def _line(rng: random.Random, task: int, number: int) -> str:
    m, n, k = 64 * (1 + task % 16), 64 * (1 + task // 16 % 16), 64 * (1 + task // 256)
    key = json.dumps(["matmul_nkkm", m, k, n])
    steps = [["CHW", 2, "local"]]
    steps += [["SP", 2, i, extent, [rng.choice((1, 2, 4, 8)) for _ in range(4)], 1] for i, extent in ((0, m), (5, n))]
    # The unroll step carries the number, so that no two programs are equal.
    steps += [["SP", 2, 10, k, [rng.choice((1, 2, 4)), rng.choice((1, 2, 4))], 1], ["FU", 2, [0, 1]]]
    steps += [["AN", 2, 0, 5], ["PR", 2, 0, f"auto_unroll_max_step${number}"]]
    result = [[1e-4 * (1 + rng.random())], 0, 0.5, 1_600_000_000 + number]
    target = "cuda -keys=cuda,gpu -max_num_threads=1024 -thread_warp_size=32"
    task_key = [key, target, [-1, 16, 64, 49152, 2147483647, 1024, 8, 32], "", 0, []]
    return json.dumps({"i": [task_key, [[], steps]], "r": result, "v": "v0.6"}) + "\n"


def make_log(folder: Path, programs: int) -> dict[str, Any]:
    """Write the log, packed."""
    with gzip.open(folder / "log.json.gz", "wt", compresslevel=1) as stream:
        stream.writelines(_lines(programs))
    return {"programs": programs, "bytes": (folder / "log.json.gz").stat().st_size}


def import_log(folder: Path, _: int) -> dict[str, Any]:
    """Import the log as a user does."""
    from tchub.zoo.corpus.importers import ImportContext, import_corpus

    report = import_corpus(folder / "log.json.gz", folder / "corpus", ImportContext("v100", "CC0-1.0")).as_dict()
    size = sum(file.stat().st_size for file in (folder / "corpus").iterdir())
    return {name: report[name] for name in ("tasks", "programs", "duplicates", "broken")} | {"bytes": size}


def train_epoch(folder: Path, _: int) -> dict[str, Any]:
    """One epoch of TCL over all tasks, a chunk of tasks in memory at a time."""
    import numpy as np
    import torch
    from tchub.zoo.corpus import Corpus
    from tchub.zoo.devices import get_device
    from tchub.zoo.features import get_schema
    from tchub.zoo.models import create
    from tchub.zoo.training import TrainConfig, train
    from tchub.zoo.training.programs import read_programs

    torch.set_num_threads(1)
    corpus, schema, recipe = Corpus.open(folder / "corpus"), get_schema("tcl-gpu"), TrainConfig.find("tcl")
    recipe = replace(recipe, epochs=1, warmup_epochs=0, select="last")
    model, programs = create("tcl", width=schema.width, hardware=schema.hardware), 0
    order = np.random.default_rng(0).permutation(list(corpus.tasks)).tolist()
    for start in range(0, len(order), TASKS):
        data, _ = read_programs(corpus, order[start : start + TASKS], schema, device=get_device("v100"))
        if data is not None:
            train(model, data, None, recipe)
            programs += len(data)
    return {"programs": programs}


STAGES = {"make": make_log, "import": import_log, "train": train_epoch}


def _measured(stage: Callable[[Path, int], dict[str, Any]], folder: Path, programs: int) -> dict[str, Any]:
    start = time.perf_counter()
    result = stage(folder, programs)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return result | {"seconds": seconds, "programs_per_second": result["programs"] / seconds, "peak_resident_gib": peak}


def measured(stage: Callable[[Path, int], dict[str, Any]], folder: Path, programs: int) -> dict[str, Any]:
    """Run a stage in a fresh process and return what it counted, its seconds and its peak resident memory."""
    result = in_process(_measured, stage, folder, programs)
    note(f"{stage.__name__}: {json.dumps(result)}")
    return result


@benchmark(
    "corpus", click.option("--programs", default=5_000_000, show_default=True, help="Programs of the made-up log.")
)
def main(programs: int) -> Document:
    """Import a large made-up corpus and train on it, one stage after the other."""
    with tempfile.TemporaryDirectory(prefix="tchub-bench-") as work:
        stages = {name: measured(stage, Path(work), programs) for name, stage in STAGES.items()}
    summary: dict[str, Any] = {"programs": programs, "tasks": stages["import"]["tasks"]}
    for name in ("import", "train"):
        summary |= {f"{name}_{key}": stages[name][key] for key in ("programs_per_second", "peak_resident_gib")}
    summary["under_2_gib"] = all(stages[name]["peak_resident_gib"] < LIMIT_GIB for name in ("import", "train"))
    return summary, stages, [0]

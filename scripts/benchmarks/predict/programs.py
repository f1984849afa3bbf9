"""The programs that the benchmark scores: valid random ones of six operators, kept on disk between runs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

TASKS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows", "pool-max-3x3")
_ROUND = 64
_IDLE_ROUNDS = 2


@dataclass(frozen=True)
class Programs:
    """Distinct programs of one task, live, and MetaSchedule's context of the task."""

    name: str
    context: Any
    candidates: list[Any]

    def batch(self, size: int) -> list[Any]:
        """So many of them; of a smaller space each as often as it takes."""
        return [self.candidates[i % len(self.candidates)] for i in range(size)]


def programs(name: str, target: Any, count: int, seed: int, threads: int, folder: Path) -> Programs:
    """At most `count` distinct valid programs of an operator; fewer when two rounds of sampling bring nothing new."""
    from tchub.hub.networks.operators import operator_module
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.search.candidates import tune_context
    from tchub.zoo.corpus.workloads import OPERATORS

    task = make_task(operator_module(OPERATORS[name]), name)
    file = folder / f"programs-{name}-{target.kind.name}-{seed}.json.gz"
    kept = json.loads(gzip.decompress(file.read_bytes())) if file.exists() else {"rounds": 0, "idle": 0, "traces": {}}
    while len(kept["traces"]) < count and kept["idle"] < _IDLE_ROUNDS:
        before = len(kept["traces"])
        kept["traces"].update(_sample(task, target, seed * 1009 + kept["rounds"], threads))
        kept["rounds"] += 1
        kept["idle"] = 0 if len(kept["traces"]) > before else kept["idle"] + 1
        _write(file, kept)
        click.echo(f"{name} for {target.kind.name}: {len(kept['traces'])} programs", err=True)
    context = tune_context(task, target, "replay-trace", seed, threads)
    live = [_replay(task.mod, trace) for trace in list(kept["traces"].values())[:count]]
    return Programs(name, context, live)


def _sample(task: Any, target: Any, seed: int, threads: int) -> Iterator[tuple[str, Any]]:
    """A round of programs by their keys, as JSON."""
    from tchub.hub.device.candidate import trace_json, trace_key
    from tchub.hub.search.candidates import tune_context
    from tvm.s_tir import meta_schedule as ms

    context = tune_context(task, target, ms.search_strategy.ReplayTrace(), seed, threads)
    spaces, database = context.generate_design_space(), ms.database.MemoryDatabase()
    context.pre_tuning(_ROUND, _ROUND, spaces, database, ms.cost_model.RandomModel())
    for candidate in context.generate_measure_candidates() or ():
        trace = trace_json(candidate.sch.trace)
        yield trace_key(trace), trace
    context.post_tuning()


def _replay(mod: Any, trace: Any) -> Any:
    from tvm.s_tir import Schedule
    from tvm.s_tir import meta_schedule as ms
    from tvm.s_tir.schedule import Trace

    schedule: Any = Schedule(mod)
    Trace.apply_json_to_schedule(trace, schedule)
    return ms.MeasureCandidate(schedule, [])


def _write(file: Path, kept: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    partial.write_bytes(gzip.compress(json.dumps(kept).encode(), 3))
    os.replace(partial, file)

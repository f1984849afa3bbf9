"""Whose predictions the benchmark times: stock XGBoost, TenSet-MLP, and the zoo's own, each as it is used."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np


def clock(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each of `repeats` calls."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return times


def stock(programs: Programs, train: int, sizes: tuple[int, ...], repeats: int, threads: int) -> list[dict[str, Any]]:
    """`XGBModel` on PerStoreFeature, trained on `train` programs of the task with random labels first."""
    from tvm.s_tir.meta_schedule.cost_model.xgb_model import XGBModel

    model: Any = XGBModel(num_tuning_cores=threads, verbose_eval=0)
    model.update(programs.context, programs.batch(train), _results(train))
    assert model.booster is not None
    rows = []
    for size in sizes:
        batch = programs.batch(size)
        features = [x.numpy().astype("float32") for x in model.extractor.extract_from(programs.context, batch)]
        parts = (
            partial(model.predict, programs.context, batch),
            partial(model.extractor.extract_from, programs.context, batch),
            partial(model._predict, xs=features),
        )
        rows.append(_row(size, *(clock(part, repeats) for part in parts)))
    return rows


def pretrained(
    programs: Programs, name: str, train: int, sizes: tuple[int, ...], repeats: int, update: str
) -> list[dict[str, Any]]:
    """A checkpoint as MetaSchedule calls it, told the latencies of `train` programs where `update` is `context`."""
    from tchub import hub
    from tchub.hub.search.candidate_features import candidate_features
    from tvm.s_tir.meta_schedule.utils import shash2hex

    checkpoint, task = hub.load(name), shash2hex(programs.context.mod)
    rows = []
    for size in sizes:
        model: Any = hub.tvm_cost_model(checkpoint, update=update)
        if update == "context":
            model.update(programs.context, programs.batch(train), _results(train))
        batch = programs.batch(size)
        model.predict(programs.context, batch)  # the first batch of a task makes what its space needs
        features, usable = candidate_features(checkpoint, programs.context, batch)
        parts = (
            partial(model.predict, programs.context, batch),
            partial(candidate_features, checkpoint, programs.context, batch),
            partial(model.scorer.predict, task, features, usable),
        )
        rows.append(_row(size, *(clock(part, repeats) for part in parts)))
    return rows


def from_decisions(programs: Programs, name: str, sizes: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """Features of a checkpoint from decisions, as a search that draws them itself asks for them."""
    from tchub import hub
    from tchub.zoo.features import get_schema
    from tchub.zoo.features.skeleton import Skeleton
    from tchub.zoo.primitives.metaschedule import read_trace

    checkpoint = hub.load(name)
    schema = get_schema(checkpoint.config.feature_schema)
    read = [read_trace(candidate.sch.trace) for candidate in programs.candidates]
    template = read[0][0]
    decided = [decisions for own, decisions in read if own is template]
    skeleton = Skeleton(template, schema, checkpoint.device if schema.hardware else None)
    rows = []
    for size in sizes:
        batch = [decided[i % len(decided)] for i in range(size)]
        times = clock(partial(skeleton.features, batch), max(repeats, 20))
        rows.append({"batch": size, "us": microseconds(times, size)})
    return rows


def _results(count: int) -> list[Any]:
    """Latencies of no program in particular, in seconds."""
    from tvm.s_tir import meta_schedule as ms

    return [ms.runner.RunnerResult([float(x)], None) for x in np.random.default_rng(0).uniform(1e-4, 1e-3, count)]


def _row(size: int, total: list[float], features: list[float], forward: list[float]) -> dict[str, Any]:
    """Medians of microseconds a candidate."""
    return {
        "batch": size,
        "us": microseconds(total, size),
        "features_us": microseconds(features, size),
        "forward_us": microseconds(forward, size),
    }


def microseconds(times: list[float], size: int) -> float:
    return round(1e6 * float(np.median(times)) / size, 2)


TASKS = ("conv2d-3x3", "depthwise-3x3", "dense-square", "batch-matmul-scores", "softmax-rows", "pool-max-3x3")


@dataclass(frozen=True)
class Programs:
    """Distinct programs of one task, live, and MetaSchedule's context of the task."""

    context: Any
    candidates: list[Any]

    def batch(self, size: int) -> list[Any]:
        """So many of them; of a smaller space each as often as it takes."""
        return [self.candidates[i % len(self.candidates)] for i in range(size)]


def programs(name: str, target: Any, count: int, seed: int, threads: int) -> Programs:
    """At most `count` distinct valid programs of an operator; fewer when its space is smaller."""
    from tchub.hub.device.candidate import replayed
    from tchub.hub.networks.tasks import make_task
    from tchub.hub.networks.workloads import operator_module
    from tchub.hub.search.candidates import random_candidates, tune_context
    from tchub.zoo.corpus.workloads import OPERATORS
    from tvm.s_tir import meta_schedule as ms

    task = make_task(operator_module(OPERATORS[name]), name)
    traces = [json.loads(one.trace) for one in random_candidates(task, target, count, seed)]
    live = [ms.MeasureCandidate(replayed(task.mod, trace), []) for trace in traces]
    click.echo(f"{name} for {target.kind.name}: {len(live)} programs", err=True)
    return Programs(tune_context(task, target, "replay-trace", seed, threads), live)

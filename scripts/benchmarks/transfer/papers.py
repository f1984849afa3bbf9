"""The papers' own networks in the transfer benchmark, and the parts of TCL one after another (its table 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from tchub.zoo.adapt.sampling import Pool, PoolPredictions, create_sampler

from scripts.benchmarks.transfer.case import CROSS, Case
from scripts.benchmarks.transfer.continual import base_seconds
from scripts.benchmarks.transfer.data import SHARE, draw
from scripts.benchmarks.transfer.methods import Answer, Method, learnt_on, multi, of_base, scratch, tuned
from scripts.benchmarks.transfer.models import kept_model
from scripts.zoo.build import open_corpus

# One source, as in TCL's table 6; few programs of a task, for these networks take minutes where TileNet takes seconds.
TARGETS = {"k80": ("v100",), "mi50": ("v100",)}
CAP, SOURCE_CAP = 200, 40


def by_rdu(case: Case) -> Case:
    """The same with a tenth of which half is random, and the rest what RDU picks by a model that learnt that half."""
    own = case.scene.own
    first = draw(own, SHARE / 2, case.seed)
    folder = case.models / case.scene.place / f"{case.arch}-half-{case.seed}"
    model = kept_model(folder, case.scene, lambda: case.train(own.take(first))).model
    tasks = open_corpus(case.scene.target).tasks
    pool = Pool(own.group, tuple(tasks[task].op for task in own.task_ids))
    view = PoolPredictions.of(model, own.features, first, own.latency[first], task=own.group)
    wanted = len(draw(own, SHARE, case.seed)) - len(first)
    if wanted < 1:  # of a few programs a task, half a tenth is as many as a tenth
        return replace(case, drawn=first)
    rng = np.random.default_rng(case.seed)
    picked = create_sampler("rdu").select(pool, first, wanted, view, rng, round=2).indices
    return replace(case, drawn=np.sort(np.concatenate([first, picked])))


def sampled(run: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
    """A method on programs that RDU chose."""
    return lambda case: run(by_rdu(case))


def _method(run: Callable[[Case], Answer], title: str, arch: str, before: Callable[[Case], float] | None) -> Method:
    return Method(run, title, (CROSS,), before, arch=arch)


PAPER_METHODS: dict[str, Method] = {
    "tlp-fine-tune": _method(tuned, "TLP, fine-tuned", "tlp", of_base),
    "mtl-tlp": _method(multi, "MTL-TLP", "tlp", None),
    "tcl-fine-tune": _method(tuned, "TCL, fine-tuned", "tcl", of_base),
    "tcl-continual": _method(learnt_on, "TCL, continual distillation", "tcl", base_seconds),
}
ABLATION: dict[str, Method] = {
    "tlp-random": _method(scratch, "TLP, random tenth", "tlp", None),
    "tlp-rdu": _method(sampled(scratch), "+ RDU", "tlp", None),
    "tcl-rdu": _method(sampled(scratch), "+ Mamba", "tcl", None),
    "tcl-rdu-continual": _method(sampled(learnt_on), "+ continual distillation", "tcl", base_seconds),
}


def paper_rows(rows: Sequence[dict], methods: dict[str, Method]) -> Iterator[dict]:
    """A row for each method, two columns for each target: mean, deviation and number of seeds."""
    for name, method in methods.items():
        told = {"method": method.title}
        for row in rows:
            if row["method"] == name:
                told[f"{row['target']}, pairwise"] = row["pairwise"]
                told[f"{row['target']}, top-1"] = row["mean_top1"]
        if len(told) > 1:
            yield told

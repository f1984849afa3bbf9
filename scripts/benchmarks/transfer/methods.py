"""The methods of the transfer benchmark: what each makes of the sources and of what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from scripts.benchmarks.transfer import adapt
from scripts.benchmarks.transfer.case import CROSS, IN_TASK, PROTOCOLS, Answer, Case, task_tree_scores, train_heads
from scripts.benchmarks.transfer.continual import continual, gone_on

Run = Callable[[Case], Answer]
# One source, as in TCL's table 6.
PAPER_TARGETS = {"k80": ("v100",), "mi50": ("v100",)}


def scratch(case: Case) -> Answer:
    """The architecture trained on what was measured, from random weights; labels are context too, and no source."""
    return case.answer(case.train(case.measured))


def trees(case: Case) -> Answer:
    """Boosted trees of each task's own labels; no source."""
    return Answer(task_tree_scores(case.judged, case.known))


def pretrained(case: Case) -> Answer:
    """The model of the sources with the labels, if there are any, as context; no gradient step."""
    return case.answer(case.base())


def tuned(case: Case) -> Answer:
    """The model of the sources, fine-tuned on what was measured."""
    return case.answer(gone_on(case.base(), case))


def multi(case: Case) -> Answer:
    """One trunk for what was measured and for all sources, a head each (MTL-TLP's way)."""
    return case.answer(train_heads(case))


def on_all(run: Run) -> Run:
    """A method that has measured all programs of the target's training tasks."""
    return lambda case: run(replace(case, drawn=np.arange(len(case.scene.own))))


@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes:
        run: makes the answer.
        title: in tables.
        protocols: where it has a meaning.
        seeds: how many at most.
        arch: of its models.
        alone: no source has a part in it.
        slow: it learns the sources anew for every number of labels.
        unseen: it is asked of tasks that no source knows, and of no others.
    """

    run: Run
    title: str
    protocols: tuple[str, ...] = PROTOCOLS
    seeds: int = 5
    alone: bool = False
    arch: str = "tilenet"
    slow: bool = False
    unseen: bool = False


_ALL = "all of the target's training data"
METHODS: dict[str, Method] = {
    "random": Method(lambda case: Answer(np.zeros(len(case.judged))), "random order", (CROSS,), alone=True, seeds=1),
    "scratch": Method(scratch, "from scratch", alone=True),
    "three-scratch": Method(adapt.three_scratch, "three from scratch", (IN_TASK,), alone=True, unseen=True),
    "trees": Method(trees, "boosted trees of the task's labels", (IN_TASK,), alone=True),
    "zero-shot": Method(pretrained, "pretrained, nothing measured", (CROSS,)),
    "context": Method(pretrained, "pretrained, labels as context", (IN_TASK,)),
    "fine-tune": Method(tuned, "pretrained, fine-tuned"),
    "fine-tune-strata": Method(
        lambda case: tuned(adapt.on_strata(case, case.base())), "the same on strata", (CROSS, IN_TASK)
    ),
    "committee": Method(lambda case: adapt.ensemble(case, case.base()), "a committee on strata", (IN_TASK,)),
    "multi-task": Method(multi, "multi-task", slow=True),
    "continual": Method(continual, "continual distillation"),
    "continual-adapt": Method(adapt.continual, "tchub adapt --method continual", (CROSS, IN_TASK), slow=True),
    "merged": Method(adapt.merged, "models of the sources averaged, fine-tuned", (CROSS,)),
    "ours": Method(adapt.ours, "ours"),
    "fine-tune-all": Method(on_all(tuned), f"fine-tuned on {_ALL}", (CROSS,)),
    "continual-all": Method(on_all(continual), f"continual distillation, {_ALL}", (CROSS,)),
    "full": Method(lambda case: case.answer(case.informed()), f"one training on {_ALL} and the sources", (CROSS,)),
    "committee-informed": Method(
        lambda case: adapt.ensemble(case, case.informed()),
        "a committee that knows the target's other tasks",
        (IN_TASK,),
        unseen=True,
    ),
}
PAPER_METHODS: dict[str, Method] = {
    "tlp-fine-tune": Method(tuned, "TLP, fine-tuned", (CROSS,), arch="tlp"),
    "mtl-tlp": Method(multi, "MTL-TLP", (CROSS,), arch="tlp"),
    "tcl-fine-tune": Method(tuned, "TCL, fine-tuned", (CROSS,), arch="tcl"),
    "tcl-continual": Method(continual, "TCL, continual distillation", (CROSS,), arch="tcl"),
}

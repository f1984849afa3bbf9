"""The methods of the transfer benchmark: what each makes of the sources and of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tchub.zoo.adapt.ensemble import recipe_for
from tchub.zoo.adapt.sampling import Pool, PoolPredictions, create_sampler
from tchub.zoo.training import RankingDataset

from scripts.benchmarks.transfer import adapt
from scripts.benchmarks.transfer.adapt import on_strata, ours, starts, three_scratch
from scripts.benchmarks.transfer.case import CROSS, IN_TASK, PROTOCOLS, Case, kept_model, train_heads
from scripts.benchmarks.transfer.continual import base_seconds, chosen, continual, gone_on
from scripts.benchmarks.transfer.data import SHARE, draw
from scripts.benchmarks.transfer.devices import head_parameters
from scripts.zoo.build import open_corpus


@dataclass(frozen=True)
class Answer:
    """What a method came to.

    Attributes:
        scores: (N,) of the judging tasks' programs.
        parameters: of its model; 0: it has none.
        known: (N,) bool, the programs that it had measured where it chose them itself; None: the case's.
    """

    scores: np.ndarray
    parameters: int = 0
    known: np.ndarray | None = None


def chance(case: Case) -> Answer:
    """Every order equally likely."""
    return Answer(np.zeros(len(case.judged)))


def scratch(case: Case) -> Answer:
    """The architecture trained on what was measured, from random weights; labels are context too, and no source."""
    model = case.train(case.measured).model
    return Answer(case.told(model), model.parameter_count())


def scratch_of_three(case: Case) -> Answer:
    """Three such models; no source."""
    return Answer(*three_scratch(case))


def trees(case: Case) -> Answer:
    """Boosted trees of each task's own labels; no source."""
    from tchub.zoo.models.trees import grow_task_trees

    scores = np.full(len(case.judged), np.nan)
    for members in case.judged.members:
        have, rest = members[case.known[members]], members[~case.known[members]]
        speed = -np.log(case.judged.latency[have])
        grown = grow_task_trees(np.ascontiguousarray(case.judged.features[have, 0]), speed - speed.mean())
        scores[rest] = grown.inplace_predict(case.judged.features[rest, 0])
    return Answer(scores)


def zero_shot(case: Case) -> Answer:
    """The model of the sources as it is; nothing is measured."""
    model = case.base().model
    return Answer(model.score(case.judged.features), model.parameter_count())


def context(case: Case) -> Answer:
    """The model of the sources with the labels as context; no gradient step."""
    model = case.base().model
    return Answer(case.told(model), model.parameter_count())


def tuned(case: Case) -> Answer:
    """The model of the sources, fine-tuned on what was measured."""
    model = gone_on(case.base().model, case)
    return Answer(case.told(model), model.parameter_count())


def tuned_on_strata(case: Case) -> Answer:
    """The same on programs that the model of the sources chose, as `ours` does."""
    case = on_strata(case, case.base().model)
    return replace(tuned(case), known=case.known)


def committee(case: Case) -> Answer:
    """What `tchub adapt --method ensemble --sampler strata` makes of the model of the sources."""
    return Answer(*adapt.committee(case, case.base().model))


def informed_committee(case: Case) -> Answer:
    """What it makes of a model that knows the target's other tasks already: more than sources can teach."""
    return Answer(*adapt.committee(case, case.informed().model))


def local_model(case: Case) -> Answer:
    """The model of the sources, and trees that predict its gap to what was measured (TenSet)."""
    from scripts.benchmarks.transfer.local_model import fit_local

    model = case.base().model
    return Answer(fit_local(model, case.measured).score(case.judged.features), model.parameter_count())


def multi(case: Case) -> Answer:
    """One trunk for what was measured and for all sources, a head each (MTL-TLP's way)."""
    given = list(case.scene.given)
    settings = recipe_for(case.arch, RankingDataset.concat([case.measured, *given]))
    model = train_heads(case.arch, case.measured, given, settings, case.seed)
    return Answer(case.told(model), model.parameter_count() + len(given) * head_parameters(model))


def learnt_on(case: Case) -> Answer:
    """A knowledge base of the sources, and a column on what was measured (TCL)."""
    return Answer(*continual(case))


def learnt_on_chosen(case: Case) -> Answer:
    """A base that rehearses, of the sources that agree with what was measured (tchub's)."""
    return Answer(*chosen(case))


def learnt_by_adapt(case: Case) -> Answer:
    """What `tchub adapt --method continual` makes of a model of the first source and corpora of the others."""
    return Answer(*adapt.continual(case))


def merged(case: Case) -> Answer:
    """The Fisher-weighted average of models of the sources, fine-tuned on what was measured."""
    return Answer(*adapt.merged(case))


def on_all(run: Callable[[Case], Answer]) -> Callable[[Case], Answer]:
    """A method that has measured all programs of the target's training tasks."""
    return lambda case: run(replace(case, drawn=np.arange(len(case.scene.own))))


def full(case: Case) -> Answer:
    """The architecture trained on all programs of the target's training tasks and on the sources, in one training."""
    model = case.informed().model
    return Answer(model.score(case.judged.features), model.parameter_count())


def our_own(case: Case) -> Answer:
    """tchub's choice."""
    return Answer(*ours(case))


def of_starts(case: Case) -> float:
    """Seconds of the models of the sources that `ours` begins with."""
    return sum(made.seconds for made in starts(case))


def of_informed(case: Case) -> float:
    """Seconds of the model of the sources and of the target's training tasks."""
    return case.informed().seconds


def of_base(case: Case) -> float:
    """Seconds of the model of the sources."""
    return case.base().seconds


@dataclass(frozen=True)
class Method:
    """One row of a table.

    Attributes:
        run: makes the answer.
        title: in tables.
        protocols: where it has a meaning.
        before: makes what it starts from, which the sources alone decide, and tells its seconds; None: nothing.
        seeds: how many at most.
        arch: of its models.
        alone: no source has a part in it.
        slow: it learns the sources anew for every number of labels.
        unseen: it is asked of tasks that no source knows, and of no others.
    """

    run: Callable[[Case], Answer]
    title: str
    protocols: tuple[str, ...] = PROTOCOLS
    before: Callable[[Case], float] | None = of_base
    seeds: int = 5
    alone: bool = False
    arch: str = "tilenet"
    slow: bool = False
    unseen: bool = False


METHODS: dict[str, Method] = {
    "random": Method(chance, "random order", (CROSS,), before=None, alone=True, seeds=1),
    "scratch": Method(scratch, "from scratch", before=None, alone=True),
    "three-scratch": Method(scratch_of_three, "three from scratch", (IN_TASK,), before=None, alone=True, unseen=True),
    "trees": Method(trees, "boosted trees of the task's labels", (IN_TASK,), before=None, alone=True),
    "zero-shot": Method(zero_shot, "pretrained, nothing measured", (CROSS,)),
    "context": Method(context, "pretrained, labels as context", (IN_TASK,)),
    "fine-tune": Method(tuned, "pretrained, fine-tuned"),
    "fine-tune-strata": Method(tuned_on_strata, "the same on strata", (CROSS, IN_TASK)),
    "committee": Method(committee, "a committee on strata", (IN_TASK,)),
    "local": Method(local_model, "pretrained, local model of the gap"),
    "multi-task": Method(multi, "multi-task", before=None, slow=True),
    "continual": Method(learnt_on, "continual distillation", before=base_seconds),
    "continual-chosen": Method(learnt_on_chosen, "the same, sources chosen, rehearsal", (CROSS,), before=None),
    "continual-adapt": Method(
        learnt_by_adapt, "tchub adapt --method continual", (CROSS, IN_TASK), before=None, slow=True
    ),
    "merged": Method(merged, "models of the sources averaged, fine-tuned", (CROSS,), before=None),
    "ours": Method(our_own, "ours", before=of_starts),
    "fine-tune-all": Method(on_all(tuned), "fine-tuned on all of the target's training data", (CROSS,)),
    "continual-all": Method(
        on_all(learnt_on), "continual distillation, all of the target's training data", (CROSS,), before=base_seconds
    ),
    "full": Method(
        full, "one training on all of the target's training data and the sources", (CROSS,), before=of_informed
    ),
    "committee-informed": Method(
        informed_committee,
        "a committee that knows the target's other tasks",
        (IN_TASK,),
        before=of_informed,
        unseen=True,
    ),
}


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

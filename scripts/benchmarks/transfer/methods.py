"""The methods of the transfer benchmark: what each makes of the sources and of what was measured."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tchub.zoo.adapt.continual import ContinualConfig, fisher_diagonal
from tchub.zoo.adapt.continual.device import Continual
from tchub.zoo.adapt.method import EnsembleMethod, SourceData, TrainingSet
from tchub.zoo.adapt.sampling import Pool, PoolPredictions, StrataSampler
from tchub.zoo.models import CostModel
from tchub.zoo.training import RankingDataset
from tchub.zoo.training.programs import corpus_device
from torch import Tensor

from scripts.benchmarks.transfer.case import CROSS, IN_TASK, PROTOCOLS, Answer, Case, task_tree_scores, train_heads
from scripts.benchmarks.transfer.continual import continual, gone_on, learn_more
from scripts.benchmarks.transfer.data import SHARE, cut
from scripts.zoo.plan import open_corpus

Run = Callable[[Case], Answer]
# One source, as in TCL's table 6.
PAPER_TARGETS = {"k80": ("v100",), "mi50": ("v100",)}
# Programs of a corpus's task that `tchub adapt --sources` learns at most.
FROM_CORPUS = 200
MEMBERS = 3
# Labels of a task from which models of no source have a say, and those from which they have as much as the others.
FRESH_FROM, FRESH_EQUAL = 8, 16
# Importance of every weight in an average, beside a mean of 1: one that no model needs is averaged plainly.
LEAST_IMPORTANCE = 1e-3


def tuned(case: Case) -> Answer:
    """The model of the sources, fine-tuned on what was measured."""
    return case.answer(gone_on(case.base(), case))


# What `tchub adapt` itself makes of sources, and averages ------------------------------------------------


def ensemble(case: Case, base: CostModel) -> Answer:
    """`--method ensemble --sampler strata`."""
    case = on_strata(case, base)
    return case.answer(EnsembleMethod().learn(base, _training_set(case, base)).model)


def continual_adapt(case: Case) -> Answer:
    """`--method continual`: a model of the first source, and the others' corpora by `--sources`."""
    first, *others = case.scene.sources
    sources = []
    for name in others:
        data = case.given(name)
        device = corpus_device(open_corpus(name))
        sources.append(SourceData(name, device, cut(data, data.task_ids, FROM_CORPUS)))
    known = case.given(first).features[:1]
    training_set = _training_set(case, case.alone(first), sources=tuple(sources), known_devices=known)
    method = Continual()
    return case.answer(method.learn(method.start(training_set).model, training_set).model)


def merged(case: Case) -> Answer:
    """A model of the first source goes on with each other one apart; the average of all by what each weight is worth.

    Averages are of models that share a start and the scales of their columns, which is why the first source begins.
    """
    first, *others = case.scene.sources
    base = copy.deepcopy(case.alone(first))
    for name in others:
        base.admit(torch.from_numpy(case.given(name).features[:1]))
    models = {first: base}
    for name in others:
        learnt = partial(learn_more, base, case.given(name), case.arch, case.seed)
        models[name] = case.kept(f"moved-on/{first}-{name}-{case.seed}", learnt)
    worths = [fisher_diagonal(model, case.given(name), ContinualConfig()) for name, model in models.items()]
    return case.answer(gone_on(fisher_average(list(models.values()), worths), case))


def fisher_average(models: Sequence[CostModel], fishers: Sequence[Mapping[str, Tensor]]) -> CostModel:
    """Average models of one start, each weight in proportion to how much each depends on it (Matena and Raffel 2022).

    Networks of different random weights would have their units in another order. `fishers` are the `fisher_diagonal` of
    each model on its own device, here scaled to a mean of 1, so that larger losses give no more influence.
    """
    sums = [sum(float(f.sum()) for f in fisher.values()) for fisher in fishers]
    means = [total / sum(f.numel() for f in fisher.values()) for total, fisher in zip(sums, fishers, strict=True)]
    average = copy.deepcopy(models[0])
    with torch.no_grad():
        for name in fishers[0]:
            parts = zip(fishers, means, strict=True)
            weights = torch.stack([fisher[name] / (mean or 1.0) + LEAST_IMPORTANCE for fisher, mean in parts])
            values = torch.stack([model.get_parameter(name) for model in models])
            average.get_parameter(name).copy_((weights * values).sum(dim=0) / weights.sum(dim=0))
    return average


def _training_set(case: Case, base: CostModel, **more: Any) -> TrainingSet:
    return TrainingSet(base, case.measured, case.measured.features, case.scene.device, seed=case.seed, **more)


def ours(case: Case) -> Answer:
    """Three models of the sources, each fine-tuned on programs that the first one chose; the mean of their scores.

    With more labels three models from scratch join them, which know what the sources mislead about. As many programs
    are measured as for every other method.

    Chosen on training and validation tasks: three models hardly more than one, models from scratch where a task has
    labels enough for them to learn. `transfer --split val` has one model (`fine-tune-strata`), one of each
    kind (`committee`) and this side by side.
    """
    begun = [case.base(), *(case.base(100 * (case.seed + 1) + i) for i in range(1, MEMBERS))]
    case = on_strata(case, begun[0])
    answer = case.answer(*(gone_on(model, case) for model in begun))
    labels = len(case.measured) / len(case.measured.task_ids)
    if labels < FRESH_FROM:
        return answer
    weight, fresh = min(1.0, labels / FRESH_EQUAL), three_scratch(case)
    return replace(answer, scores=(answer.scores + weight * fresh.scores) / (1 + weight))


def three_scratch(case: Case) -> Answer:
    """As many models of no source, of other seeds: what part of the gain is that there are three."""
    seeds = (case.seed + 100 * i for i in range(MEMBERS))
    return case.answer(*(case.train(case.measured, seed) for seed in seeds))


def on_strata(case: Case, model: CostModel) -> Case:
    """The case with as many programs measured, chosen by a model: even strata of its scores within each task."""
    rng = np.random.default_rng([case.seed, case.labels])
    own, judged = case.scene.own, case.judged
    known = np.zeros(len(judged), dtype=bool)
    if case.labels:
        known[strata(model, judged, [min(case.labels, len(m) // 2) for m in judged.members], rng)] = True
    tenth = strata(model, own, [max(2, round(SHARE * len(m))) for m in own.members], rng)
    return replace(case, drawn=tenth, chosen=known)


def strata(model: CostModel, data: RankingDataset, counts: list[int], rng: np.random.Generator) -> np.ndarray:
    """Indices of programs, sorted: of each task so many as the sampler `strata` picks by a model's scores."""
    picks = [np.zeros(0, dtype=np.int64)]
    for members, count in zip(data.members, counts, strict=True):
        if count:
            pool = Pool(np.zeros(len(members), np.int64), ("task",))
            view = PoolPredictions.of(model, data.features[members], [], np.zeros(0))
            picks.append(members[StrataSampler().select(pool, [], count, view, rng).indices])
    return np.sort(np.concatenate(picks))


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
    "scratch": Method(lambda case: case.answer(case.train(case.measured)), "from scratch", alone=True),
    "three-scratch": Method(three_scratch, "three from scratch", (IN_TASK,), alone=True, unseen=True),
    "trees": Method(
        lambda case: Answer(task_tree_scores(case.judged, case.known)),
        "boosted trees of the task's labels",
        (IN_TASK,),
        alone=True,
    ),
    "zero-shot": Method(lambda case: case.answer(case.base()), "pretrained, nothing measured", (CROSS,)),
    "context": Method(lambda case: case.answer(case.base()), "pretrained, labels as context", (IN_TASK,)),
    "fine-tune": Method(tuned, "pretrained, fine-tuned"),
    "fine-tune-strata": Method(
        lambda case: tuned(on_strata(case, case.base())), "the same on strata", (CROSS, IN_TASK)
    ),
    "committee": Method(lambda case: ensemble(case, case.base()), "a committee on strata", (IN_TASK,)),
    "multi-task": Method(lambda case: case.answer(train_heads(case)), "multi-task", slow=True),
    "continual": Method(continual, "continual distillation"),
    "continual-adapt": Method(continual_adapt, "tchub adapt --method continual", (CROSS, IN_TASK), slow=True),
    "merged": Method(merged, "models of the sources averaged, fine-tuned", (CROSS,)),
    "ours": Method(ours, "ours"),
    "fine-tune-all": Method(on_all(tuned), f"fine-tuned on {_ALL}", (CROSS,)),
    "continual-all": Method(on_all(continual), f"continual distillation, {_ALL}", (CROSS,)),
    "full": Method(lambda case: case.answer(case.informed()), f"one training on {_ALL} and the sources", (CROSS,)),
    "committee-informed": Method(
        lambda case: ensemble(case, case.informed()),
        "a committee that knows the target's other tasks",
        (IN_TASK,),
        unseen=True,
    ),
}
PAPER_METHODS: dict[str, Method] = {
    "tlp-fine-tune": Method(tuned, "TLP, fine-tuned", (CROSS,), arch="tlp"),
    "mtl-tlp": Method(METHODS["multi-task"].run, "MTL-TLP", (CROSS,), arch="tlp"),
    "tcl-fine-tune": Method(tuned, "TCL, fine-tuned", (CROSS,), arch="tcl"),
    "tcl-continual": Method(continual, "TCL, continual distillation", (CROSS,), arch="tcl"),
}

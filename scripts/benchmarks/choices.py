"""The settings of adapting, each changed alone, on validation tasks: why the defaults are what they are.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks choices --json

Tasks, sources and protocols are those of the transfer benchmark, but validation tasks judge,
because choices are made by them. Each answer is kept under `runs/choices`, so that a run that was killed goes on.
"""

from __future__ import annotations

import copy
import math
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from tchub.zoo.adapt.continual import ContinualConfig
from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune, in_head
from tchub.zoo.adapt.sampling import MeasuringCost, RDUPlusConfig, RDUPlusSampler
from tchub.zoo.training import TrainConfig
from tchub.zoo.training.evaluation import evaluate_unknown

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, kept, lacking, note, work_option
from scripts.benchmarks.sampling.rounds import PER_TASK, Material, from_pretrained, run_rounds
from scripts.benchmarks.transfer.case import Case, train_new
from scripts.benchmarks.transfer.continual import (
    EQUATIONS,
    GENTLE,
    SETTINGS,
    bases,
    column_of,
    is_base,
    knowledge_base,
    learn_more,
    next_base,
)
from scripts.benchmarks.transfer.data import CAP, SOURCE_CAP, TARGETS, Library, cut
from scripts.benchmarks.transfer.devices import CHAIN_CAP
from scripts.benchmarks.transfer.local_model import LocalModelConfig, fit_local
from scripts.zoo.plan import open_corpus

CHOSEN_ON = ("k80", "mi50", "ryzen-3700x-autotvm")
SCORES = ("pairwise", "mean_top1")

# Target, seed, labels.
Where = tuple[str, int, int]
Scores = Mapping[str, float]


def pretrained(case: Case, **changed: Any) -> np.ndarray:
    """A network of the sources; labels are context."""
    if not changed:
        return case.scores(case.base().model)
    name = "-".join((case.arch, *(f"{setting}={value}" for setting, value in changed.items()), str(case.seed)))
    made = case.kept(name, lambda: train_new(case.scene, case.scene.all_given, case.seed, case.arch, changed))
    return case.scores(made.model)


def tuned(case: Case, **changed: Any) -> np.ndarray:
    """The model of the sources, fine-tuned on the labels, which are context too."""
    head = changed.get("update") == "head"  # the encoder frozen: no option of the product
    model = copy.deepcopy(case.base().model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and (in_head(name) or not head))
    config = FineTuneConfig(seed=case.seed, **({"update": "all"} if head else changed))
    return case.scores(fine_tune(model, case.measured, config).model)


def corrected(case: Case, **changed: Any) -> np.ndarray:
    """The model of the sources, and a local model of its gap."""
    return fit_local(case.base().model, case.measured, LocalModelConfig(**changed))(case.judged.features)


def gone_on(case: Case, rate: float = GENTLE) -> np.ndarray:
    """The model of the sources goes on with a tenth of other tasks, at a share of its recipe's rate."""
    return learn_more(case.base().model, case.measured, case.arch, case.seed, rate).score(case.judged.features)


def with_column(case: Case, **changed: Any) -> np.ndarray:
    """A base of the sources, whose column learns a tenth of other tasks."""
    base = is_base(bases(case, case.taught, EQUATIONS)[-1])
    return column_of(base, case, replace(EQUATIONS, **changed)).score(case.judged.features)


def base_of_two(whole: ContinualConfig, before: bool, case: Case, **changed: Any) -> np.ndarray:
    """What a base knows of the target after a further device (`before`), or of the target after another one before."""
    config, first = replace(whole, **changed), case.scene.sources[0]
    both = {case.scene.target: case.scene.own, first: case.scene.given[0]}
    order = both if before else dict(reversed(both.items()))
    most = CHAIN_CAP if case.arch == "tilenet" else SOURCE_CAP
    one, two = [(name, cut(data, data.task_ids, most)) for name, data in order.items()]
    (base,) = knowledge_base(case.scene, [one], case.seed, case.folder / "two", case.arch, config)
    return next_base(is_base(base), two[1], case.seed, config).model.score(case.judged.features)


def sampled(share: float, case: Case, **changed: Any) -> np.ndarray:
    """The model of the sources learns, by rounds, what `rdu+` picks of other tasks' programs."""
    own, target = cut(case.scene.own, case.scene.own.task_ids, PER_TASK), case.scene.target
    tasks = open_corpus(target).tasks
    picked = run_rounds(
        own,
        [tasks[task].op for task in own.task_ids],
        RDUPlusSampler(RDUPlusConfig(**changed)),
        round(share * len(own)),
        case.seed,
        from_pretrained(case.base().model),
        MeasuringCost(*Material(target, case.scene.split).cost),
    )
    return picked.model.score(case.judged.features)


# By the runs of `choices.toml`: (N,) scores of the judging tasks' programs with changed settings, and the defaults.
RUNS: dict[str, tuple[Callable[..., np.ndarray], Mapping[str, Any]]] = {
    "pretraining": (pretrained, vars(TrainConfig.find("tilenet")) | TrainConfig.find("tilenet").model),
    "fine-tuning": (tuned, vars(FineTuneConfig())),
    "local": (corrected, vars(LocalModelConfig())),
    "gone-on": (gone_on, {"rate": GENTLE}),
    "column": (with_column, vars(EQUATIONS)),
    "rdu+ 2%": (partial(sampled, 0.02), vars(RDUPlusConfig())),
    "rdu+ 5%": (partial(sampled, 0.05), vars(RDUPlusConfig())),
    "consolidated, first": (partial(base_of_two, EQUATIONS, True), vars(EQUATIONS)),
    "consolidated, second": (partial(base_of_two, EQUATIONS, False), vars(EQUATIONS)),
    "rehearsed, first": (partial(base_of_two, SETTINGS, True), vars(SETTINGS)),
    "rehearsed, second": (partial(base_of_two, SETTINGS, False), vars(SETTINGS)),
}


@dataclass(frozen=True)
class Part:
    """What is chosen together, as `choices.toml` has it: a run, its cases, and the values beside the defaults."""

    title: str
    run: str
    protocol: str
    labels: Sequence[int]
    beside: Mapping[str, Sequence[Any]]
    arch: str = "tilenet"

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The settings as the product has them."""
        return RUNS[self.run][1]

    def choices(self) -> Iterator[Choice]:
        """As it is, then every other value alone."""
        yield Choice(self)
        for name, values in self.beside.items():
            yield from (Choice(self, name, value, self.defaults[name]) for value in values)


@dataclass(frozen=True)
class Choice:
    """One variant: a setting that has another value than in the product, whose own variant has no setting."""

    part: Part
    setting: str = ""
    value: Any = None
    default: Any = None

    def path(self, target: str, seed: int, labels: int) -> str:
        """The name of an answer."""
        changed = f"{self.setting}={self.value}" if self.setting else "default"
        return f"{self.part.title}/{changed}/{target}-{labels}-{seed}.json".replace(" ", "-")

    def scores(self, case: Case) -> np.ndarray:
        """(N,) of the judging tasks' programs."""
        return RUNS[self.part.run][0](case, **({self.setting: self.value} if self.setting else {}))


PARTS = [Part(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["part"]]


class Answers:
    """Scores of single cases, each kept as a file under a folder; nothing new is begun once the time is over."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        libraries = {"tilenet": Library(folder / "data"), "tcl": Library(folder / "data", CAP, SOURCE_CAP)}
        self._scene = lru_cache(1)(
            lambda target, arch: libraries[arch].scene(
                target, TARGETS[target], False, "val", TrainConfig.find(arch).feature_schema
            )
        )

    def of(self, choice: Choice, target: str, seed: int) -> dict[Where, Scores]:
        """Those that are there or that time allows."""
        own = {
            labels: kept(
                self.folder / "answers" / choice.path(target, seed, labels),
                partial(self._ask, choice, target, seed, labels),
                self.clock,
            )
            for labels in choice.part.labels
        }
        return {(target, seed, labels): scores for labels, scores in own.items() if scores}

    def _ask(self, choice: Choice, target: str, seed: int, labels: int) -> dict[str, float]:
        scene = self._scene(target, choice.part.arch)
        case = Case(scene, choice.part.protocol, labels, seed, self.folder / "models", choice.part.arch)
        scores = evaluate_unknown(case.judged, case.known, choice.scores(case))
        note(f"{choice.path(target, seed, labels)}: {scores['pairwise']:.4f}")
        return {name: scores[name] for name in SCORES}


def row(choice: Choice, own: Mapping[Where, Scores], default: Mapping[Where, Scores]) -> dict[str, Any]:
    """A line of the table: for each number of labels the scores, and what they are above the product's, case by case.

    Returns:
        `scores`: by number of labels, `cases`, and of each score the `mean` and, for a changed setting, the `gain` and
        its standard `error` over the cases.
    """
    scores = {}
    for labels in choice.part.labels:
        both = sorted(key for key in own.keys() & default.keys() if key[2] == labels)
        if both:
            scores[str(labels)] = {"cases": len(both)} | {
                name: _score(choice, [own[k][name] for k in both], [default[k][name] for k in both]) for name in SCORES
            }
    facts = {name: getattr(choice, name) for name in ("setting", "value", "default")}
    return {"part": choice.part.title} | facts | {"protocol": choice.part.protocol, "scores": scores}


def _score(choice: Choice, own: list[float], default: list[float]) -> dict[str, float | None]:
    score: dict[str, float | None] = {"mean": statistics.mean(own)}
    if choice.setting:
        gains = [a - b for a, b in zip(own, default, strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None
        score |= {"gain": statistics.mean(gains), "error": error}
    return score


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many values were tried, and how many rank better than the default, in the mean over labels."""
    gains = [
        statistics.mean(score["pairwise"]["gain"] for score in row["scores"].values())
        for row in rows
        if row["setting"] and row["scores"]
    ]
    return {
        "values_tried": len(gains),
        "values_better": sum(gain > 0 for gain in gains),
        "largest_gain": max(gains, default=None),
    }


@benchmark(
    "choices", click.option("--seeds", default=2, show_default=True, help="How many."), CLOCK, work_option("choices")
)
def main(seeds: int, clock: Clock, work: Path) -> Document:
    """Judge every value of every setting, and write docs/benchmarks/choices.json of all that is kept."""
    import torch

    torch.set_num_threads(1)
    answers = Answers(work, clock)
    for seed, target, part in product(range(seeds), CHOSEN_ON, PARTS):
        for choice in part.choices():
            answers.of(choice, target, seed)
    answers.clock = Clock(0)  # nothing new
    rows, missing = [], []
    for part in PARTS:
        known = [(choice, dict[Where, Scores]()) for choice in part.choices()]
        for (choice, own), seed, target in product(known, range(seeds), CHOSEN_ON):
            own.update(answers.of(choice, target, seed))
        rows += [row(choice, own, known[0][1]) for choice, own in known]
        asked = len(known) * seeds * len(CHOSEN_ON) * len(part.labels)
        missing += lacking(asked - sum(len(own) for _, own in known), asked, f"answers of {part.title}")
    return summary(rows), {"targets": list(CHOSEN_ON), "rows": rows, "not_done": missing}, range(seeds)

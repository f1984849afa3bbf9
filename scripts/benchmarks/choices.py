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

from scripts.benchmarks.common import Clock, Document, benchmark, kept, lacking, note, work_option
from scripts.benchmarks.sampling.results import PER_TASK
from scripts.benchmarks.sampling.rounds import Material, from_pretrained, run_rounds
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
from scripts.benchmarks.transfer.data import TARGETS, Library, Scene, cut
from scripts.benchmarks.transfer.devices import CHAIN_CAP
from scripts.benchmarks.transfer.local_model import LocalModelConfig, fit_local
from scripts.benchmarks.transfer.methods import CAP, SOURCE_CAP
from scripts.zoo.plan import open_corpus

Run = Callable[[Case], np.ndarray]


@dataclass(frozen=True)
class Choice:
    """One variant.

    Attributes:
        part: what it is a setting of; setting, value, default: the changed one, what it is here and in the product.
            The product itself has no setting.
        run: makes the (N,) scores of the judging tasks' programs.
        protocol, labels, arch: of the cases.
    """

    part: str
    setting: str
    value: Any
    default: Any
    run: Run
    protocol: str
    labels: tuple[int, ...]
    arch: str = "tilenet"

    def path(self, target: str, seed: int, labels: int) -> str:
        """The name of an answer."""
        changed = f"{self.setting}={self.value}" if self.setting else "default"
        return f"{self.part}/{changed}/{target}-{labels}-{seed}.json".replace(" ", "-")


@dataclass(frozen=True)
class Part:
    """What is chosen together.

    Attributes:
        make: a run of changed settings.
        defaults: has the settings' values.
        title: in a table.
        beside: the values that are tried instead.
        protocol, labels, arch: of the cases.
    """

    make: Callable[..., Run]
    defaults: Mapping[str, Any]
    title: str
    beside: Mapping[str, Sequence[Any]]
    protocol: str
    labels: tuple[int, ...]
    arch: str = "tilenet"

    def choices(self) -> Iterator[Choice]:
        """As it is, then every other value alone."""
        asked = self.protocol, self.labels, self.arch
        yield Choice(self.title, "", None, None, self.make(), *asked)
        for name, values in self.beside.items():
            for value in values:
                yield Choice(self.title, name, value, self.defaults[name], self.make(**{name: value}), *asked)


def pretrained(**changed: Any) -> Run:
    """A network of the sources; labels are context."""

    def run(case: Case) -> np.ndarray:
        if not changed:
            return case.scores(case.base().model)
        settings = (f"{setting}={value}" for setting, value in changed.items())
        name = "-".join((case.arch, *settings, str(case.seed)))
        scene = case.scene
        model = case.kept(name, lambda: train_new(scene, scene.all_given, case.seed, case.arch, changed)).model
        return case.scores(model)

    return run


def tuned(**changed: Any) -> Run:
    """The model of the sources, fine-tuned on the labels, which are context too."""
    head = changed.get("update") == "head"  # the encoder frozen: no option of the product
    settings = {"update": "all"} if head else changed

    def run(case: Case) -> np.ndarray:
        model = copy.deepcopy(case.base().model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and (in_head(name) or not head))
        return case.scores(fine_tune(model, case.measured, FineTuneConfig(seed=case.seed, **settings)).model)

    return run


def corrected(**changed: Any) -> Run:
    """The model of the sources, and a local model of its gap."""
    return lambda case: fit_local(case.base().model, case.measured, LocalModelConfig(**changed)).score(
        case.judged.features
    )


def gone_on(rate: float = GENTLE) -> Run:
    """The model of the sources goes on with a tenth of other tasks, at a share of its recipe's rate."""

    return lambda case: learn_more(case.base().model, case.measured, case.arch, case.seed, rate).score(
        case.judged.features
    )


def with_column(**changed: Any) -> Run:
    """A base of the sources, whose column learns a tenth of other tasks."""
    config = replace(EQUATIONS, **changed)

    def run(case: Case) -> np.ndarray:
        base = is_base(bases(case, case.taught, EQUATIONS)[-1])
        return column_of(base, case, config).score(case.judged.features)

    return run


def _base_of_two(case: Case, config: ContinualConfig, before: bool) -> np.ndarray:
    """A base that learns the target and then its first source, or the other way round."""
    first, given = case.scene.sources[0], case.scene.given[0]
    both = {case.scene.target: case.scene.own, first: given}
    order = both if before else dict(reversed(both.items()))
    most = CHAIN_CAP if case.arch == "tilenet" else SOURCE_CAP
    one, two = [(name, cut(data, data.task_ids, most)) for name, data in order.items()]
    folder = case.folder / "two"
    (base,) = knowledge_base(case.scene, [one], case.seed, folder, case.arch, config)
    return next_base(is_base(base), two[1], case.seed, config).model.score(case.judged.features)


def base_of_two(whole: ContinualConfig, before: bool) -> Callable[..., Run]:
    """What a base knows of the target after a further device, or of the target after another one before."""
    return lambda **changed: lambda case: _base_of_two(case, replace(whole, **changed), before)


def sampled(share: float) -> Callable[..., Run]:
    """The model of the sources learns, by rounds, what `rdu+` picks of other tasks' programs."""

    def make(**changed: Any) -> Run:
        def run(case: Case) -> np.ndarray:
            own, target = cut(case.scene.own, case.scene.own.task_ids, PER_TASK), case.scene.target
            tasks = open_corpus(target).tasks
            picked = run_rounds(
                own,
                [tasks[task].op for task in own.task_ids],
                RDUPlusSampler(RDUPlusConfig(**changed)),
                round(share * len(own)),
                case.seed,
                from_pretrained(case.base().model),
                MeasuringCost(*Material(target, PER_TASK, case.scene.split).cost),
            )
            return picked.model.score(case.judged.features)

        return run

    return make


# By the runs of `choices.toml`: what makes one of changed settings, and the settings as they are.
RUNS: dict[str, tuple[Callable[..., Run], Mapping[str, Any]]] = {
    "pretraining": (pretrained, vars(TrainConfig.find("tilenet")) | TrainConfig.find("tilenet").model),
    "fine-tuning": (tuned, vars(FineTuneConfig())),
    "local": (corrected, vars(LocalModelConfig())),
    "gone-on": (gone_on, {"rate": GENTLE}),
    "column": (with_column, vars(EQUATIONS)),
    "rdu+ 2%": (sampled(0.02), vars(RDUPlusConfig())),
    "rdu+ 5%": (sampled(0.05), vars(RDUPlusConfig())),
    "consolidated, first": (base_of_two(EQUATIONS, True), vars(EQUATIONS)),
    "consolidated, second": (base_of_two(EQUATIONS, False), vars(EQUATIONS)),
    "rehearsed, first": (base_of_two(SETTINGS, True), vars(SETTINGS)),
    "rehearsed, second": (base_of_two(SETTINGS, False), vars(SETTINGS)),
}


def read_parts() -> list[Part]:
    """The parts of `choices.toml`."""
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["part"]
    return [Part(*RUNS[row.pop("run")], **row | {"labels": tuple(row["labels"])}) for row in rows]


PARTS = read_parts()


CHOSEN_ON = ("k80", "mi50", "ryzen-3700x-autotvm")
SCORES = ("pairwise", "mean_top1")

# Target, seed, labels.
Where = tuple[str, int, int]
Scores = Mapping[str, float]


class Answers:
    """Scores of single cases, each kept as a file under a folder; nothing new is begun once the time is over."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        libraries = {"tilenet": Library(folder / "data"), "tcl": Library(folder / "data", CAP, SOURCE_CAP)}

        def scene(target: str, arch: str) -> Scene:
            return libraries[arch].scene(target, TARGETS[target], False, "val", TrainConfig.find(arch).feature_schema)

        self._scene = lru_cache(1)(scene)

    def of(self, choice: Choice, target: str, seed: int) -> dict[Where, Scores]:
        """Those that are there or that time allows."""
        own = {}
        for labels in choice.labels:
            path = self.folder / "answers" / choice.path(target, seed, labels)
            if path.is_file() or not self.clock.is_over:
                own[target, seed, labels] = kept(path, partial(self._ask, choice, target, seed, labels))
        return own

    def _ask(self, choice: Choice, target: str, seed: int, labels: int) -> dict[str, float]:
        scene = self._scene(target, choice.arch)
        case = Case(scene, choice.protocol, labels, seed, self.folder / "models", choice.arch)
        scores = evaluate_unknown(case.judged, case.known, choice.run(case))
        note(f"{choice.path(target, seed, labels)}: {scores['pairwise']:.4f}")
        return {name: scores[name] for name in SCORES}


def row(choice: Choice, own: Mapping[Where, Scores], default: Mapping[Where, Scores]) -> dict[str, Any]:
    """A line of the table: for each number of labels the scores, and what they are above the product's, case by case.

    Returns:
        `scores`: by number of labels, `cases`, and of each score the `mean` and, for a changed setting, the `gain` and
        its standard `error` over the cases.
    """
    scores = {}
    for labels in choice.labels:
        both = sorted(key for key in own.keys() & default.keys() if key[2] == labels)
        if both:
            scores[str(labels)] = {"cases": len(both)} | {
                name: _score(choice, [own[k][name] for k in both], [default[k][name] for k in both]) for name in SCORES
            }
    facts = {name: getattr(choice, name) for name in ("part", "setting", "value", "default", "protocol")}
    return facts | {"scores": scores}


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
    "choices",
    click.option("--target", "targets", multiple=True, type=click.Choice(list(TARGETS)), default=CHOSEN_ON),
    click.option("--seeds", default=2, show_default=True, help="How many."),
    click.option(
        "--part", "parts", multiple=True, type=click.Choice([part.title for part in PARTS]), help="All by default."
    ),
    click.option("--minutes", type=float, help="Begin nothing new after so long."),
    work_option("choices"),
)
def main(targets: tuple[str, ...], seeds: int, parts: tuple[str, ...], minutes: float | None, work: Path) -> Document:
    """Judge every value of every setting, and write docs/benchmarks/choices.json of all that is kept."""
    import torch

    torch.set_num_threads(1)
    answers = Answers(work, Clock(minutes))
    for seed, target, part in product(range(seeds), targets, PARTS):
        for choice in part.choices() if part.title in (parts or (part.title,)) else ():
            answers.of(choice, target, seed)
    answers.clock = Clock(0)  # nothing new
    rows, missing = [], []
    for part in PARTS:
        known: dict[Choice, dict[Where, Scores]] = {choice: {} for choice in part.choices()}
        for choice, seed, target in product(known, range(seeds), targets):
            known[choice] |= answers.of(choice, target, seed)
        default = next(iter(known.values()))
        rows += [row(choice, own, default) for choice, own in known.items()]
        asked = len(known) * seeds * len(targets) * len(part.labels)
        missing += lacking(asked - sum(map(len, known.values())), asked, f"answers of {part.title}")
    return summary(rows), {"targets": list(targets), "rows": rows, "not_done": missing}, range(seeds)

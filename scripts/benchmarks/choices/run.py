"""The settings of adapting, each changed alone, on validation tasks: why the defaults are what they are.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks choices --json

Tasks, sources and protocols are those of the transfer benchmark, but validation tasks judge,
because choices are made by them. Each answer is kept under `runs/choices`, so that a run that was killed goes on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import click
from tchub.zoo.training import TrainConfig
from tchub.zoo.training.evaluation import evaluate_unknown

from scripts.benchmarks.choices.settings import PARTS, Choice
from scripts.benchmarks.common import Clock, Document, benchmark, kept, lacking, note, work_option
from scripts.benchmarks.transfer.case import Case
from scripts.benchmarks.transfer.data import TARGETS, Library, Scene
from scripts.benchmarks.transfer.methods import CAP, SOURCE_CAP

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

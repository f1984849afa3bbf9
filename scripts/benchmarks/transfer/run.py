"""What other devices' programs are worth on a new one: methods x targets x protocols, many seeds.

    python -m scripts.zoo.build import --data DIR
    python -m scripts.benchmarks transfer --json

Each result and each trained model is kept under `runs/transfer`, so that a run that was killed goes on: the document is
always of everything that is kept, and names what is missing. Choices between methods are made with `--split val`, which
writes no document.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import click
from tchub.zoo.training.evaluation import evaluate_unknown

from scripts.benchmarks.common import CLOCK, Clock, Document, Journal, benchmark, lacking, note, work_option
from scripts.benchmarks.transfer.case import CROSS, IN_TASK, Case
from scripts.benchmarks.transfer.continual import OURS, VARIANTS, devices_block
from scripts.benchmarks.transfer.data import SHARE, TARGETS, read_scene
from scripts.benchmarks.transfer.figures import (
    difference_rows,
    mean_rows,
    method_rows,
    ratio_rows,
    source_rows,
    summary,
)
from scripts.benchmarks.transfer.methods import METHODS, PAPER_METHODS, PAPER_TARGETS

LABELS = (4, 8, 16, 32)
# Where a method trains on thousands of programs for every number of labels, one of them must do.
FEW_LABELS = (8,)
# Targets of which the number and the order of the sources are asked.
ORDERED = ("k80", "mi50", "ryzen-3700x-autotvm")
# Of everything that depends on what was drawn.
WANTED_SEEDS = 5
ALL = METHODS | PAPER_METHODS


class Question(NamedTuple):
    """One result, see `Case` and `Scene`; `taught` are the sources that teach, where the order is the question."""

    target: str
    seen: bool
    protocol: str
    labels: int
    method: str
    seed: int
    sources: tuple[str, ...]
    taught: tuple[str, ...] = ()


def questions(seeds: Sequence[int]) -> Iterator[Question]:
    """The main table's, target by target and seed by seed, so that a run that is cut has whole targets; seen ones last.

    Whether a source knows the task is asked where it matters most, in-task, and without any label.
    """
    for seen in (False, True):
        for target, sources in TARGETS.items():
            for seed in seeds:
                for name, method in METHODS.items():
                    for protocol in method.protocols if seed < method.seeds else ():
                        if seen and (method.slow or method.unseen or (protocol != IN_TASK and name != "zero-shot")):
                            continue
                        for labels in counts(protocol, method.slow):
                            yield Question(target, seen, protocol, labels, name, seed, sources)


def counts(protocol: str, slow: bool) -> tuple[int, ...]:
    """Labels of each judging task that are asked for."""
    if protocol == CROSS:
        return (0,)
    return LABELS if protocol == IN_TASK and not slow else FEW_LABELS


def order_questions(seeds: Sequence[int]) -> Iterator[Question]:
    """One source more at a time, and all of them the other way round (TCL's table 5), cross-task."""
    for target in ORDERED:
        sources = TARGETS[target]
        orders = [sources[:count] for count in range(1, len(sources))] + [tuple(reversed(sources))]
        for seed in seeds:
            for taught in orders:
                yield Question(target, False, CROSS, 0, "continual", seed, sources, taught)


def paper_questions(seeds: Sequence[int]) -> Iterator[Question]:
    """Those of the papers' own networks."""
    for target, sources in PAPER_TARGETS.items():
        for seed in seeds:
            for name in PAPER_METHODS:
                yield Question(target, False, CROSS, 0, name, seed, sources)


class Runs:
    """Answers of questions, each kept in a journal; nothing new is answered once the time is over."""

    def __init__(self, folder: Path, split: str, clock: Clock) -> None:
        self.folder, self.split, self.clock = folder, split, clock
        self.scene = lru_cache(2)(partial(read_scene, folder / "data", split))
        self.answers, self.chains = (Journal(folder / f"{name}-{split}.jsonl") for name in ("answers", "forgetting"))

    def collect(self, asked: Iterable[Question]) -> tuple[list[dict[str, Any]], list[Question]]:
        """The answers that are there or that time allows, and the questions that have none.

        One that has no meaning for its target, for no source knows a judging task, is in neither.
        """
        pairs = [(question, self._answer(question, self.clock)) for question in asked]
        answers = [answer for _, answer in pairs if answer and answer["scores"]]
        return answers, [question for question, answer in pairs if answer is None]

    def _answer(self, question: Question, clock: Clock | None = None) -> Any:
        return self.answers.get(lambda: self._ask(question), clock, **question._asdict())

    def _ask(self, question: Question) -> dict[str, Any]:
        method = ALL[question.method]
        scene = self.scene(question.target, question.sources, question.seen, method.arch)
        if scene.judged is None:
            return {"scores": None}
        if question.seen and method.alone:  # the same tasks may be judged: then so is the answer
            unseen = self.scene(question.target, question.sources, False, method.arch).judged
            if unseen is not None and unseen.task_ids == scene.judged.task_ids:
                same = self._answer(question._replace(seen=False))
                return {name: same[name] for name in ("scores", "drawn")}
        asked = question.protocol, question.labels, question.seed
        case = Case(scene, *asked, self.folder / "models", method.arch, order=question.taught)
        answer = method.run(case)
        known = case.known if answer.known is None else answer.known
        scores = evaluate_unknown(case.judged, known, answer.scores)
        note(f"{question}: pairwise {scores['pairwise']:.4f}")
        # Labels of a judging task in the mean: half of a task's programs is the most that is measured.
        return {"scores": scores, "drawn": fmean(min(question.labels, len(own) // 2) for own in case.judged.members)}


def not_done(answers: Iterable[dict[str, Any]], missing: Sequence[Question]) -> list[str]:
    """How many answers of each method are missing."""
    done = Counter(answer["method"] for answer in answers)
    left = Counter(question.method for question in missing)
    return [line for name in left for line in lacking(left[name], left[name] + done[name], f"answers of {name}")]


# What the page reads of a row.
_FACTS, _SCORES = ("target", "seen", "protocol", "labels", "method", "seeds"), ("pairwise", "mean_top1")


def collect(runs: Runs, seeds: Sequence[int]) -> tuple[list[Any], dict[str, Any]]:
    """Answers and what is missing of the main table, of the order of sources and of the papers' networks; devices."""
    parts = [runs.collect(asked(seeds)) for asked in (questions, order_questions, paper_questions)]
    return parts, devices_block(runs, seeds)


def document(runs: Runs, seeds: int) -> Document:
    """Summary, details and seeds of all that is kept, of these seeds and of as many as are wanted of everything."""
    runs.clock = Clock(0)  # nothing new
    parts, devices = collect(runs, range(max(WANTED_SEEDS, seeds)))
    rows, ordered, papers = (mean_rows(answers) for answers, _ in parts)
    details = {
        "share": SHARE,
        "labels": list(LABELS),
        "targets": {target: list(sources) for target, sources in TARGETS.items()},
        "methods": {name: method.title for name, method in METHODS.items()},
        "columns": [*_FACTS, *_SCORES],
        "rows": [[row[name] for name in (*_FACTS, *_SCORES)] for row in rows],
        "differences": difference_rows(rows),
        "label_ratios": ratio_rows(rows),
        "sources": source_rows(rows, ordered),
        "papers": method_rows(papers, PAPER_METHODS),
        **devices,
        "not_done": [line for part in parts for line in not_done(*part)],
    }
    for name in VARIANTS:
        left = WANTED_SEEDS - len(devices.get("forgetting_seeds", {}).get(name, ()))
        details["not_done"] += lacking(left, WANTED_SEEDS, f"seeds of a base with {name}")
    used = {answer["seed"] for answers, _ in parts for answer in answers}
    used.update(*devices.get("forgetting_seeds", {}).values())
    lost = {name: one["mean"] for name, one in devices.get("lost", {}).get(OURS, {}).items()}
    return summary(rows, lost), details, sorted(used)


@benchmark(
    "transfer",
    click.option("--seeds", default=WANTED_SEEDS, show_default=True, help="How many."),
    CLOCK,
    click.option("--split", default="test", type=click.Choice(["val", "test"]), help="Judging tasks."),
    work_option("transfer"),
)
def main(seeds: int, clock: Clock, split: str, work: Path) -> Document | None:
    """Judge every method on every target; with test tasks, writes docs/benchmarks/transfer.json."""
    import torch

    torch.set_num_threads(1)
    runs = Runs(work, split, clock)
    collect(runs, range(seeds))
    figures, details, used = document(runs, seeds)
    if split == "test":
        return figures, details, used
    for name, value in figures.items():
        click.echo(f"{name:<40} {value:.4f}")
    return None

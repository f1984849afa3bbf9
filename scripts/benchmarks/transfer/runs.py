"""The single results of the transfer benchmark: what is asked, and the file of each answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from tchub.zoo.training import TrainConfig

from scripts.benchmarks.common import listed
from scripts.benchmarks.models import kept
from scripts.benchmarks.transfer.case import CROSS, IN_TASK, Case
from scripts.benchmarks.transfer.data import TARGETS, Library, Scene
from scripts.benchmarks.transfer.methods import ABLATION, CAP, METHODS, PAPER_METHODS, SOURCE_CAP
from scripts.benchmarks.transfer.methods import TARGETS as PAPER_TARGETS

LABELS = (4, 8, 16, 32)
# Where a method trains on thousands of programs for every number of labels, one of them must do.
FEW_LABELS = (8,)

# Targets of which the number and the order of the sources are asked.
ORDERED = ("k80", "mi50", "ryzen-3700x-autotvm")


@dataclass(frozen=True)
class Question:
    """One result.

    Attributes:
        target, seen, protocol, labels, method, seed: see `Case` and `Scene`.
        sources: of the scene, in order; taught: those that teach, where the order is the question.
    """

    target: str
    seen: bool
    protocol: str
    labels: int
    method: str
    seed: int
    sources: tuple[str, ...]
    taught: tuple[str, ...] = ()

    def place(self, split: str) -> Path:
        """Of its answer, under the folder of the runs."""
        known = "seen" if self.seen else "unseen"
        folder = Path("results") / split / "+".join((self.target, *self.sources)) / known
        order = f"by {'+'.join(self.taught)}" if self.taught else ""
        return folder / order / f"{self.protocol}-{self.labels}" / f"{self.method}-{self.seed}.json"


def questions(targets: tuple[str, ...], methods: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Question]:
    """The main table's, target by target and seed by seed, so that a run that is cut has whole targets; seen ones last.

    Whether a source knows the task is asked where it matters most, in-task, and without any label.
    """
    for seen in (False, True):
        for target in targets:
            for seed in seeds:
                yield from _of_scene(target, methods, seed, seen)


def _of_scene(target: str, methods: tuple[str, ...], seed: int, seen: bool) -> Iterator[Question]:
    for name in methods:
        method = METHODS[name]
        for protocol in method.protocols if seed < method.seeds else ():
            if seen and (method.slow or method.unseen or (protocol != IN_TASK and name != "zero-shot")):
                continue
            for labels in counts(protocol, method.slow):
                yield Question(target, seen, protocol, labels, name, seed, TARGETS[target])


def counts(protocol: str, slow: bool) -> tuple[int, ...]:
    """Labels of each judging task that are asked for."""
    if protocol == CROSS:
        return (0,)
    return LABELS if protocol == IN_TASK and not slow else FEW_LABELS


def order_questions(targets: tuple[str, ...], seeds: Sequence[int]) -> Iterator[Question]:
    """One source more at a time, and all of them the other way round (TCL's table 5), cross-task."""
    for target in (name for name in ORDERED if name in targets):
        sources = TARGETS[target]
        orders = [sources[:count] for count in range(1, len(sources))] + [tuple(reversed(sources))]
        for seed in seeds:
            for taught in orders:
                yield Question(target, False, CROSS, 0, "continual", seed, sources, taught)


def paper_questions(targets: tuple[str, ...], seeds: Sequence[int]) -> Iterator[Question]:
    """Those of the papers' own networks, and of TCL's parts."""
    for target in (name for name in PAPER_TARGETS if name in targets):
        for seed in seeds:
            for name in (*PAPER_METHODS, *ABLATION):
                yield Question(target, False, CROSS, 0, name, seed, PAPER_TARGETS[target])


ALL = METHODS | PAPER_METHODS | ABLATION


class Runs:
    """Answers of questions, each kept as a file under a folder."""

    def __init__(self, folder: Path, split: str, deadline: float, cap: int = 0) -> None:
        """`deadline`: `time.monotonic()` after which nothing new is answered; `cap`: programs of a task at most."""
        self.folder, self.split, self.deadline = folder, split, deadline
        self.library = Library(folder / "data", cap)
        self._papers = Library(folder / "data", min(cap or CAP, CAP), SOURCE_CAP)
        self.scene = lru_cache(2)(self._scene)
        self.left = 0

    def _scene(self, target: str, sources: tuple[str, ...], seen: bool, arch: str) -> Scene:
        library = self.library if arch == "tilenet" else self._papers
        return library.scene(target, sources, seen, self.split, TrainConfig.find(arch).feature_schema)

    @property
    def in_time(self) -> bool:
        """Whether something new may be begun."""
        return time.monotonic() < self.deadline

    def answer(self, question: Question) -> dict[str, Any] | None:
        """The answer; None where it is not there and the time is up, or where no source knows a judging task."""
        path = self.folder / question.place(self.split)
        if not path.is_file() and not self.in_time:
            self.left += 1
            return None
        found = kept(path, lambda: self._ask(question))
        return asdict(question) | found | {"drawn": self.drawn(question)} if found["scores"] else None

    def drawn(self, question: Question) -> float:
        """Labels of a judging task in the mean: half of a task's programs is the most that is measured."""
        if not question.labels:
            return 0.0
        place = replace(question, method="programs", seed=0, protocol=IN_TASK, labels=0).place(self.split)
        sizes = kept(self.folder / place, lambda: self._sizes(question))["programs"]
        return sum(min(question.labels, size // 2) for size in sizes) / len(sizes)

    def _sizes(self, question: Question) -> dict[str, Any]:
        judged = self._stage(question).judged
        return {"programs": [] if judged is None else [len(members) for members in judged.members]}

    def _stage(self, question: Question) -> Scene:
        return self.scene(question.target, question.sources, question.seen, ALL[question.method].arch)

    def _judged(self, question: Question) -> tuple[str, ...] | None:
        judged = self._stage(question).judged
        return None if judged is None else judged.task_ids

    def _ask(self, question: Question) -> dict[str, Any]:
        from tchub.zoo.training.evaluation import evaluate_unknown

        scene = self._stage(question)
        if scene.judged is None:
            return {"scores": None}
        method = ALL[question.method]
        same = replace(question, seen=False)
        if question.seen and method.alone and self._judged(same) == scene.judged.task_ids:
            return kept(self.folder / same.place(self.split), lambda: self._ask(same))
        case = Case(
            scene,
            question.protocol,
            question.labels,
            question.seed,
            self.folder / "models",
            method.arch,
            order=question.taught,
        )
        pretraining = method.before(case) if method.before else 0.0
        started = time.process_time()
        answer = method.run(case)
        seconds = time.process_time() - started
        scores = evaluate_unknown(
            case.judged, case.known if answer.known is None else answer.known, np.asarray(answer.scores)
        )
        label = f"{question.target} {'seen' if question.seen else 'unseen'} {question.protocol} {question.labels}"
        click.echo(
            f"{time.strftime('%H:%M:%S')} {label} {question.method} {question.seed}: "
            f"pairwise {scores['pairwise']:.4f} top-1 {scores['mean_top1']:.4f} in {seconds:.1f} s",
            err=True,
        )
        return {
            "scores": scores,
            "seconds": round(seconds, 2),
            "pretraining_seconds": round(pretraining, 2),
            "parameters": answer.parameters,
            "tasks": len(case.judged.task_ids),
        }


# Of everything that depends on what was drawn.
WANTED_SEEDS = 5


@dataclass
class Kept:
    """The answers to some questions.

    Attributes:
        answers: that are there.
        missing: questions that have none yet; one that has no meaning for its target is neither.
    """

    answers: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Question] = field(default_factory=list)


def collect(runs: Runs, asked: Iterable[Question]) -> Kept:
    """Answer the questions, or find those that time does not allow."""
    found = Kept()
    for question in asked:
        left = runs.left
        answer = runs.answer(question)
        if answer is not None:
            found.answers.append(answer)
        elif runs.left > left:
            found.missing.append(question)
    return found


def used_seeds(*parts: Iterable[Mapping[str, Any]]) -> list[int]:
    """The seeds that answers have."""
    return sorted({answer["seed"] for part in parts for answer in part})


def shortfalls(
    kept: Kept, wanted: int = WANTED_SEEDS, fixed: Iterable[str] = (), targets: Sequence[str] = ()
) -> list[str]:
    """Where there are fewer seeds than wanted, in few words: methods, protocols and targets that lack as many.

    Of several numbers of labels the one that lacks most counts.

    Args:
        wanted: seeds of everything, whatever is planned.
        fixed: methods that draw nothing, of which one seed is all.
        targets: all that there are.
    """
    cells: dict[tuple[Any, ...], set[int]] = {}
    for answer in kept.answers:
        cells.setdefault(_cell(answer), set()).add(answer["seed"])
    for question in kept.missing:
        cells.setdefault(_cell(vars(question)), set())
    lacking: dict[tuple[str, str, str], int] = {}
    single = set(fixed)
    for (method, target, seen, protocol, *_), seeds in cells.items():
        place = method, f"{protocol}, seen" if seen else protocol, target
        lack = 0 if seeds and method in single else wanted - len(seeds)
        if lack > 0:
            lacking[place] = max(lack, lacking.get(place, 0))
    return _told(lacking, wanted, targets)


def _cell(asked: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("method", "target", "seen", "protocol", "labels")
    return (*(asked[name] for name in names), tuple(asked["sources"]), tuple(asked["taught"]))


def _told(lacking: Mapping[tuple[str, str, str], int], wanted: int, every: Sequence[str]) -> list[str]:
    """First the targets that lack alike are gathered, then the protocols, then the methods."""
    targets: dict[tuple[str, str, int], list[str]] = {}
    for (method, protocol, target), lack in lacking.items():
        targets.setdefault((method, protocol, lack), []).append(target)
    protocols: dict[tuple[str, int, tuple[str, ...]], list[str]] = {}
    for (method, protocol, lack), where in targets.items():
        protocols.setdefault((method, lack, tuple(where)), []).append(protocol)
    methods: dict[tuple[int, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (method, lack, where), how in protocols.items():
        methods.setdefault((lack, tuple(how), where), []).append(method)
    return [
        f"{lack} of {wanted} seeds of {listed(who)} ({listed(how)}; {listed(where, every, 'target')})"
        for (lack, how, where), who in methods.items()
    ]

"""The single results of the transfer benchmark: what is asked, and the file of each answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tchub.zoo.training import TrainConfig
from tchub.zoo.training.evaluation import evaluate_unknown

from scripts.benchmarks.common import Clock, kept, lacking, note
from scripts.benchmarks.transfer.case import CROSS, IN_TASK, Case
from scripts.benchmarks.transfer.data import TARGETS, Library, Scene
from scripts.benchmarks.transfer.methods import ABLATION, CAP, METHODS, PAPER_METHODS, PAPER_TARGETS, SOURCE_CAP

LABELS = (4, 8, 16, 32)
# Where a method trains on thousands of programs for every number of labels, one of them must do.
FEW_LABELS = (8,)
# Targets of which the number and the order of the sources are asked.
ORDERED = ("k80", "mi50", "ryzen-3700x-autotvm")
# Of everything that depends on what was drawn.
WANTED_SEEDS = 5
ALL = METHODS | PAPER_METHODS | ABLATION


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

    def path(self, split: str) -> Path:
        """Of its answer, under the folder of the runs."""
        known = "seen" if self.seen else "unseen"
        folder = Path("results") / split / "+".join((self.target, *self.sources)) / known
        order = f"by {'+'.join(self.taught)}" if self.taught else ""
        return folder / order / f"{self.protocol}-{self.labels}" / f"{self.method}-{self.seed}.json"


def questions(targets: tuple[str, ...], methods: tuple[str, ...], seeds: Sequence[int]) -> Iterator[Question]:
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


class Runs:
    """Answers of questions, each kept as a file under a folder.

    Args:
        clock: when nothing new is answered; cap: programs of a task at most, 0 takes all.
    """

    def __init__(self, folder: Path, split: str, clock: Clock, cap: int = 0) -> None:
        self.folder, self.split, self.clock = folder, split, clock
        self.library = Library(folder / "data", cap)
        self._papers = Library(folder / "data", min(cap or CAP, CAP), SOURCE_CAP)
        self.scene = lru_cache(2)(self._scene)

    def _scene(self, target: str, sources: tuple[str, ...], seen: bool, arch: str) -> Scene:
        library = self.library if arch == "tilenet" else self._papers
        return library.scene(target, sources, seen, self.split, TrainConfig.find(arch).feature_schema)

    def collect(self, asked: Iterable[Question]) -> tuple[list[dict[str, Any]], list[Question]]:
        """The answers that are there or that time allows, and the questions that have none.

        One that has no meaning for its target, for no source knows a judging task, is in neither.
        """
        answers, missing = [], []
        for question in asked:
            path = self.folder / question.path(self.split)
            if not path.is_file() and self.clock.is_over:
                missing.append(question)
                continue
            answer = kept(path, lambda q=question: self._ask(q))
            if answer["scores"]:
                answers.append(asdict(question) | answer | {"drawn": self._drawn(question)})
        return answers, missing

    def _drawn(self, question: Question) -> float:
        """Labels of a judging task in the mean: half of a task's programs is the most that is measured."""
        if not question.labels:
            return 0.0
        path = replace(question, method="programs", seed=0, protocol=IN_TASK, labels=0).path(self.split)
        sizes = kept(self.folder / path, lambda: {"programs": self._sizes(question)})["programs"]
        return sum(min(question.labels, size // 2) for size in sizes) / len(sizes)

    def _sizes(self, question: Question) -> list[int]:
        judged = self._scene_of(question).judged
        return [] if judged is None else [len(members) for members in judged.members]

    def _scene_of(self, question: Question) -> Scene:
        return self.scene(question.target, question.sources, question.seen, ALL[question.method].arch)

    def _ask(self, question: Question) -> dict[str, Any]:
        scene, method = self._scene_of(question), ALL[question.method]
        if scene.judged is None:
            return {"scores": None}
        same = replace(question, seen=False)
        if question.seen and method.alone:  # the same tasks may be judged: then so is the answer
            unseen = self._scene_of(same).judged
            if unseen is not None and unseen.task_ids == scene.judged.task_ids:
                return kept(self.folder / same.path(self.split), lambda: self._ask(same))
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
        known = case.known if answer.known is None else answer.known
        scores = evaluate_unknown(case.judged, known, answer.scores)
        note(f"{question.path(self.split)}: pairwise {scores['pairwise']:.4f} in {seconds:.1f} s")
        return {
            "scores": scores,
            "seconds": round(seconds, 2),
            "pretraining_seconds": round(pretraining, 2),
            "parameters": answer.parameters,
            "tasks": len(case.judged.task_ids),
        }


def not_done(answers: Iterable[dict[str, Any]], missing: Sequence[Question]) -> list[str]:
    """How many answers of each method are missing."""
    done = Counter(answer["method"] for answer in answers)
    left = Counter(question.method for question in missing)
    return [line for name in left for line in lacking(left[name], left[name] + done[name], f"answers of {name}")]

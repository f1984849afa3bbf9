"""The single results of the transfer benchmark: what is asked, and the file of each answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
from bench_models import kept
from transfer_data import TARGETS, Library, Scene
from transfer_methods import CROSS, LABELS, METHODS, Case


@dataclass(frozen=True)
class Question:
    """One result.

    Attributes:
        target, seen, protocol, labels, method, seed: see `Case` and `Scene`.
        sources: in order; those of `TARGETS` unless the sources are the question.
    """

    target: str
    seen: bool
    protocol: str
    labels: int
    method: str
    seed: int
    sources: tuple[str, ...]

    def place(self, split: str) -> Path:
        """Of its answer, under the folder of the runs."""
        known = "seen" if self.seen else "unseen"
        folder = Path("results") / split / "+".join((self.target, *self.sources)) / known
        return folder / f"{self.protocol}-{self.labels}" / f"{self.method}-{self.seed}.json"


def questions(targets: tuple[str, ...], methods: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Question]:
    """The main table's, target by target and seed by seed, so that a run that is cut has whole targets.

    Whether a source knows the task is asked where it matters most, in-task, and without any label.
    """
    for target in targets:
        for seed in seeds:
            for seen in (False, True):
                yield from _of_scene(target, methods, seed, seen)


def _of_scene(target: str, methods: tuple[str, ...], seed: int, seen: bool) -> Iterator[Question]:
    for name in methods:
        method = METHODS[name]
        if seed >= method.seeds:
            continue
        for protocol in method.protocols:
            if seen and (protocol != "in-task" and name != "zero-shot"):
                continue
            for labels in (0,) if protocol == CROSS else LABELS:
                yield Question(target, seen, protocol, labels, name, seed, TARGETS[target])


class Runs:
    """Answers of questions, each kept as a file under a folder."""

    def __init__(self, folder: Path, split: str, library: Library, deadline: float) -> None:
        """`deadline`: `time.monotonic()` after which nothing new is answered."""
        self.folder, self.split, self._library, self._deadline = folder, split, library, deadline
        self.scene = lru_cache(2)(self._scene)
        self.left = 0

    def _scene(self, target: str, sources: tuple[str, ...], seen: bool) -> Scene:
        return self._library.scene(target, sources, seen, self.split)

    def answer(self, question: Question) -> dict[str, Any] | None:
        """The answer; None where it is not there and the time is up, or where no source knows a judging task."""
        path = self.folder / question.place(self.split)
        if not path.is_file() and time.monotonic() > self._deadline:
            self.left += 1
            return None
        found = kept(path, lambda: self._ask(question))
        return asdict(question) | found if found["scores"] else None

    def _ask(self, question: Question) -> dict[str, Any]:
        from tchub.zoo.training.few_shot import evaluate_unknown

        scene = self.scene(question.target, question.sources, question.seen)
        if scene.judged is None:
            return {"scores": None}
        case = Case(scene, question.protocol, question.labels, question.seed, self.folder / "models")
        pretraining = case.base().seconds if METHODS[question.method].base else 0.0
        started = time.process_time()
        answer = METHODS[question.method].run(case)
        seconds = time.process_time() - started
        scores = evaluate_unknown(case.judged, case.known, np.asarray(answer.scores))
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

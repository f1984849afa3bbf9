"""`continual`: a column beside a frozen base learns the device (TCL, section 6)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from ..models import CostModel, Progressive, list_knowledge_bases
from ..training.dataset import RankingDataset
from .continual import add_device, choose_sources
from .fine_tune import fine_tune
from .kept_models import kept_model, mark_of, model_mark
from .methods import Learnt, Lesson, SourceData

# Every so many tasks of a source one chooses the epoch.
VALIDATION_EVERY = 10


class Continual:
    """Corpora are learnt and distilled into the base one after another, the device most like the target last.

    Then the column learns the target's labels by `fine_tune`, which stops by itself. Nothing is distilled after that:
    the target is the last device, and its column is what ranks for it (section 7.4.3).
    """

    name: ClassVar[str] = "continual"
    near: ClassVar[bool] = True

    def missing(self, base: CostModel, sources: int) -> str | None:
        """See `Method.missing`: a network that has knowledge bases, or is one."""
        if isinstance(base, Progressive) or f"{base.arch}-kb" in list_knowledge_bases():
            return None
        return f"no knowledge base is made of a {base.arch}"

    def start(self, lesson: Lesson) -> CostModel:
        """A knowledge base that knows the sources, its column ready to learn the target."""
        base = _as_knowledge_base(lesson)
        sources = _in_order(lesson)
        if not sources:
            return base.learning().eval()
        marks = ("continual start", model_mark(base), str(lesson.seed))
        marks += tuple(f"{source.name}:{source.data.fingerprint()}" for source in sources)
        state = lesson.folder and lesson.folder / f"continual-{mark_of(marks)}"

        def train() -> tuple[CostModel, dict[str, Any]]:
            known = _taught(base, sources, lesson.seed, state)
            known.new_column("base", lesson.seed)
            return known.learning().eval(), {}

        return kept_model(lesson.folder, marks, train)[0]

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        """Column and laterals by `fine_tune`, which leaves alone what is frozen."""
        result = fine_tune(start, lesson.data, replace(lesson.config, seed=lesson.seed))
        order = [source.name for source in _in_order(lesson)]
        return Learnt(result.model, {"epochs": result.epochs, "validated": result.validated, "sources": order})


def _as_knowledge_base(lesson: Lesson) -> Progressive:
    """The base as it is if its column knows a device already, else with a column that is its copy.

    The programs that a plain network learnt from are not at hand, so nothing says what its weights are worth. Which
    devices it learnt is known: what it says of them is rehearsed when sources are distilled into it.
    """
    model, seed = lesson.base, lesson.seed
    if not isinstance(model, Progressive):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            base = Progressive.around(model)
        for program in () if lesson.known is None else lesson.known:
            base.note_device(torch.from_numpy(program[None]))
        return base
    base = copy.deepcopy(model)
    if not base.config.as_dict()["column"]:
        base.new_column("base", seed)
    return base


def _in_order(lesson: Lesson) -> list[SourceData]:
    """The sources that are worth learning, by spec sheets and by what a knowledge base says of those it has learnt.

    No label of the target may be known before it is learnt, so none is asked for.
    """
    by_name = {source.name: source for source in lesson.sources}
    devices = {name: source.device for name, source in by_name.items()}
    gates = {name: source.gate for name, source in by_name.items() if source.gate is not None}
    chosen = choose_sources(lesson.device, devices, gates=gates)
    return [by_name[source.name] for source in chosen if source.weight > 0]


def _taught(base: Progressive, sources: Sequence[SourceData], seed: int, state: Path | None) -> Progressive:
    for number, source in enumerate(sources):
        train, val = _parts(source.data)
        base = add_device(base, train, val, seed=seed, folder=state and state / f"{number}-{source.name}").kb
    return base


def _parts(data: RankingDataset) -> tuple[RankingDataset, RankingDataset | None]:
    """Training and validation tasks; a source of few tasks keeps all of them for training."""
    held = data.group % VALIDATION_EVERY == VALIDATION_EVERY - 1
    if not held.any():
        return data, None
    return data.take(np.flatnonzero(~held)), data.take(np.flatnonzero(held))

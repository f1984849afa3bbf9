"""`continual`: a column beside a frozen base learns the device (TCL, section 6)."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch

from ..models import CostModel, Progressive, list_knowledge_bases
from ..training.dataset import RankingDataset
from .continual import add_device, choose_sources, measure_change
from .fine_tune import fine_tune
from .kept_models import kept_model, mark_of, model_mark
from .knowledge_base import DistillSettings
from .methods import Learnt, Lesson, SourceData

# Every so many tasks of a source one chooses the epoch.
VALIDATION_EVERY = 10


class Continual:
    """Corpora are learnt and distilled into the base one after another, the device most like the target last.

    One after which the base ranks the target's labels worse, beyond their uncertainty, is left out whole: the base of
    before goes on. They are the labels to learn from, and where they are few a source has to do much harm to be told.

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

    def start(self, lesson: Lesson) -> Learnt:
        """A knowledge base that knows the sources, its column ready to learn the target.

        Its facts: `sources`, those that it knows, in the order of learning; `left_out`, by name the `Change` of each
        that made the base rank the labels worse.
        """
        base, learnt, left_out = _as_knowledge_base(lesson), [], {}
        for source in _in_order(lesson):
            taught = _taught(base.distilling(), source, lesson)
            change = measure_change(base, taught, lesson.judging, lesson.seed)
            if change is not None and change.fell:
                left_out[source.name] = change.as_dict()
            else:
                base = taught
                learnt.append(source.name)
        if learnt:
            base.new_column("base", lesson.seed)
        return Learnt(base.learning().eval(), {"sources": learnt, "left_out": left_out})

    def learn(self, start: CostModel, lesson: Lesson) -> Learnt:
        """Column and laterals by `fine_tune`, which leaves alone what is frozen.

        A few labels (`FineTuneConfig.low_rank_below`) move the matrices alone: those of the column, U and V. Biases
        and the laterals' alpha stay where they began.
        """
        result = fine_tune(start, lesson.data, replace(lesson.config, seed=lesson.seed))
        return Learnt(result.model, {"epochs": result.epochs, "validated": result.validated})


def _as_knowledge_base(lesson: Lesson) -> Progressive:
    """The base as it is if its column knows a device already, else with a column that is its copy.

    The programs that a plain network learnt from are not at hand, so nothing says what its weights are worth: its
    Fisher diagonal is 0, and consolidation holds nothing back while the first source is distilled. What protects it
    there is rehearsal of what it says of the devices it learnt, which are known where it reads them. From the second
    source on, consolidation holds what those before it need.
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
    """The sources, the one whose device is most like the target last.

    All of them, since somebody named them and nothing is measured yet: what the labels say of one leaves it out.
    """
    by_name = {source.name: source for source in lesson.sources}
    chosen = choose_sources(lesson.device, {name: source.device for name, source in by_name.items()})
    return [by_name[source.name] for source in chosen]


def _taught(base: Progressive, source: SourceData, lesson: Lesson) -> Progressive:
    """A base that knows a source too, as `tchub distill` would teach it.

    Kept whatever the labels say of it: more labels may say something else.
    """
    programs, val = _parts(source.data)
    config = DistillSettings().phases(base.kb.arch, programs)
    marks = ("continual", model_mark(base), source.name, source.data.fingerprint(), repr(config), str(lesson.seed))
    state = lesson.folder and lesson.folder / f"continual-{source.name}-{mark_of(marks)}"

    def train() -> tuple[CostModel, dict[str, Any]]:
        return add_device(base, programs, val, config, seed=lesson.seed, folder=state).kb, {}

    taught = kept_model(lesson.folder, marks, train)[0]
    assert isinstance(taught, Progressive)
    return taught


def _parts(data: RankingDataset) -> tuple[RankingDataset, RankingDataset | None]:
    """Training and validation tasks; a source of few tasks keeps all of them for training."""
    held = data.group % VALIDATION_EVERY == VALIDATION_EVERY - 1
    if not held.any():
        return data, None
    return data.take(np.flatnonzero(~held)), data.take(np.flatnonzero(held))

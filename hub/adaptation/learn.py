"""The learning side of an adaptation: from measured places of the pool to models, and to the verdict about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...zoo.adapt.choose_method import AdaptedModel, adapt_model
from ...zoo.adapt.fine_tune import fine_tune
from ...zoo.adapt.kept_models import model_mark
from ...zoo.adapt.methods import Lesson
from ...zoo.adapt.stopping import CurvePoint, slowdown
from ...zoo.adapt.view import MeasuringCost, ModelView
from ...zoo.training import RankingDataset, pairwise_accuracy
from .judge import Judgement, Seen, judge
from .seen import PoolPrograms
from .settings import AdaptProgress, AdaptSettings, Clock
from .sources import Sources, corpus_name, read_sources
from .start import Start, choose_start

if TYPE_CHECKING:
    from ...zoo.adapt.methods import SourceData
    from ...zoo.devices import Device
    from ...zoo.models import CostModel
    from .measure import PoolMeasuring
    from .pool import CandidatePool
    from .tools import Base


@dataclass(frozen=True)
class Told:
    """What a session's parts share.

    Attributes:
        settings: budget, sampler, rounds, seed, method.
        progress: told of every phase; clock: takes the time of every phase.
        folder: where training that takes long keeps its state.
        programs: the pool's, as corpora and lineages know them.
        scope: what must be equal for measurements to be reused, as a word.
    """

    settings: AdaptSettings
    progress: AdaptProgress
    clock: Clock
    folder: Path
    programs: PoolPrograms
    scope: str


class Learner:
    """Models of one pool.

    Args:
        sources: checkpoints to start from, corpora to learn from.
        device: the one that is measured.
        features: (N, rows, width) float32 of the pool, with this device's hardware row.
        pool: the candidates; measuring: what is measured of them.
        told: settings, progress, clock and folder.

    Attributes:
        start: what learning begins with; the first base until `choose` is called.
        model: the model as it is now.
    """

    def __init__(
        self,
        sources: Sources,
        device: Device,
        features: np.ndarray,
        pool: CandidatePool,
        measuring: PoolMeasuring,
        told: Told,
    ) -> None:
        self._sources, self._device, self._told = sources, device, told
        self._features, self._pool, self._measuring = features, pool, measuring
        self._group = pool.group
        first = sources.bases[0]
        self.start = Start(first.checkpoint.model, first, first.entry.id, (first,))
        self.model: CostModel = self.start.model

    def dataset(self, indices: Sequence[int] | np.ndarray) -> RankingDataset:
        """The valid ones of measured places, in their order."""
        valid = self._valid(indices)
        return RankingDataset(
            features=self._features[valid],
            latency=self._measuring.latency(valid),
            group=self._group[valid],
            task_ids=tuple(task.task_id for task in self._pool.tasks),
            task_weights=np.array([task.weight for task in self._pool.tasks], dtype=np.float64),
        )

    def choose(self, indices: Sequence[int]) -> None:
        """Begin with the source that ranks those measured places best that none of them has learnt before."""
        bases = self._sources.bases
        if len(bases) > 1:
            places = np.array(indices, dtype=np.int64)[self._fresh(indices, bases)]
            self.start = choose_start(self._sources, self.dataset(places), self._told.settings.seed)
            self.model = self.start.model
            self._told.progress.note(f"start: {self.start.name}")  # the result says why

    def update(self, indices: Sequence[int]) -> None:
        """f.update() of algorithm 1 (TCL): from the start's weights, on everything measured so far.

        Raises:
            LabelError: the labels have no order to learn.
        """
        config = replace(self._told.settings.fine_tune, seed=self._told.settings.seed)
        self.model = fine_tune(self.start.model, self.dataset(indices), config).model

    def words(self) -> tuple[str, ...]:
        """That tell the checkpoints to start from, and how the rounds learn, from any others."""
        marks = (model_mark(base.checkpoint.model) for base in self._sources.bases)
        return (*marks, repr(self._told.settings.fine_tune))

    def learnt_before(self) -> np.ndarray:
        """(k,) places of the pool that a checkpoint to start from, or the one to beat, has learnt: no judge of them."""
        return self._told.programs.learnt_by(self._sources.bases)

    def finish(self, indices: Sequence[int], held: Sequence[int]) -> AdaptedModel:
        """The last update, by the method that was asked for.

        Args:
            indices: places to learn from.
            held: places that judge, which are learnt from no corpus either.

        Raises:
            MethodError, LabelError: see `adapt_model`.
        """
        told, settings, start = self._told, self._told.settings, self.start
        lesson = Lesson(
            base=start.model,
            data=self.dataset(indices),
            base_view=self._as_base_sees(indices),
            device=self._device,
            sources=self._corpora(indices, held),
            config=settings.fine_tune,
            seed=settings.seed,
            folder=told.folder,
            known=self._known_devices(indices),
            to_beat=start.base.checkpoint.model,
            fresh=self._fresh(self._valid(indices), (start.base, *start.made_of)),
        )
        found = adapt_model(settings.method, lesson, self._steps())
        told.progress.advance()
        self.model = found.model
        return found

    def _corpora(self, indices: Sequence[int], held: Sequence[int]) -> tuple[SourceData, ...]:
        """The corpora to learn; one that has nothing beside what was measured here is left out, and told of."""
        told, corpora = self._told, self._sources.corpora
        with told.clock("sources"):
            found = read_sources(
                self.start.base,
                corpora,
                told.folder / "statements",
                told.settings.seed,
                lambda corpus: told.programs.withheld(corpus, held, indices),
            )
        for name in sorted({corpus_name(corpus) for corpus in corpora} - {source.name for source in found}):
            told.progress.note(
                f"{name} teaches nothing: it has no task with programs to compare but those measured here"
            )
        return found

    def _fresh(self, indices: Sequence[int] | np.ndarray, bases: Sequence[Base]) -> np.ndarray:
        """(k,) bool: places that none of some checkpoints has learnt before."""
        return ~np.isin(indices, self._told.programs.learnt_by(bases))

    def _steps(self) -> Callable[[str, str], None]:
        """Shows each step of the methods as a phase, done when the next one begins."""
        begun: list[str] = []

        def step(method: str, what: str) -> None:
            if begun:
                self._told.progress.advance()
            begun.append(method)
            self._told.progress.start(f"{method}: {what}", 1)

        return step

    def view(self, open_: np.ndarray, labeled: np.ndarray) -> ModelView:
        """What a sampler may ask about places of the pool.

        Args:
            open_: (n,) places; labeled: (m,) which of them are measured, as places in `open_`.
        """
        latency = self._measuring.latency(open_[labeled])
        return ModelView.of(
            self.model, self._features[open_], labeled, latency, task=self._group[open_], cost=self._cost()
        )

    def point(self, learn: Sequence[int], held: Sequence[int]) -> CurvePoint:
        """The learning curve at this moment, on the held-out places."""
        known, data = self.dataset(learn), self.dataset(held)
        scores = self._seen(self.model, held, learn).scores(data, known)
        return CurvePoint(
            len(known),
            self._measuring.seconds,
            slowdown(scores, data.latency, data.group, data.task_weights),
            pairwise_accuracy(scores, data.latency, data.group),
        )

    def judge(self, adapted: AdaptedModel, learn: Sequence[int], held: Sequence[int]) -> Judgement:
        """The comparison of the adapted model with the base to beat."""
        base = self.start.base.checkpoint.model
        before = Seen(base, self._as_base_sees(held), self._as_base_sees(learn))
        after = self._seen(adapted.model, held, learn)
        seed = self._told.settings.seed
        return judge(before, after, self.dataset(held), self.dataset(learn), adapted.learnt_gain, seed)

    def _seen(self, model: CostModel, held: Sequence[int], learn: Sequence[int]) -> Seen:
        return Seen(model, self._features[self._valid(held)], self._features[self._valid(learn)])

    def _as_base_sees(self, indices: Sequence[int]) -> np.ndarray:
        """Features of valid places, with the base's own device in the hardware row, if there is one."""
        valid, base = self._valid(indices), self.start.base.checkpoint
        return base.features(self._pool.sequences(valid)) if base.model.config.hardware else self._features[valid]

    def _known_devices(self, indices: Sequence[int]) -> np.ndarray | None:
        """A program as each checkpoint of the start sees it, its own device in the hardware row, if there is one."""
        one, made_of = self._valid(indices)[:1], self.start.made_of
        if not len(one) or not self.start.model.config.hardware:
            return None
        return np.concatenate([base.checkpoint.features(self._pool.sequences(one)) for base in made_of])

    def _valid(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Places of valid programs."""
        return np.array(indices, dtype=np.int64)[np.isfinite(self._measuring.latency(indices))]

    def _cost(self) -> MeasuringCost:
        """Building, and how many times its latency a program runs, as measured so far."""
        done = [result for result in self._measuring.results.values() if result.error is None and result.latency > 0]
        if not done:
            return MeasuringCost()
        runs = np.median([result.run_seconds / result.latency for result in done])
        return MeasuringCost(float(np.median([result.build_seconds for result in done])), float(runs))

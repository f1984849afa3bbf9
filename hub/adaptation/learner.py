"""The learning side of an adaptation: from measured candidates to models, and to the verdict about them."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ...zoo.adapt.adapt_model import AdaptedModel, adapt_model
from ...zoo.adapt.budget import LearningPoint, slowdown
from ...zoo.adapt.fine_tune import fine_tune
from ...zoo.adapt.guard import Judgement, ModelFeatures, judge
from ...zoo.adapt.method import SourceData, TrainingSet, model_digest
from ...zoo.adapt.sampling import MeasuringCost, PoolPredictions
from ...zoo.models import CheckpointConfig, CostModel
from ...zoo.training import RankingDataset, pairwise_accuracy
from ...zoo.training.metrics import task_scores
from ...zoo.trust import ClassTrust, class_trust
from ..api import CheckpointChoice
from ..device.detect import LocalDevice
from .config import SessionContext
from .pool import CandidatePool, PoolLatencies
from .sources import AdaptationSources, WarmStart, choose_start, corpus_name, learnt_by, read_sources, withheld


class Learner:
    """Makes models of the measured candidates of one pool; `start` is the first base until `choose` is called."""

    def __init__(
        self,
        sources: AdaptationSources,
        local: LocalDevice,
        pool: CandidatePool,
        measurer: PoolLatencies,
        context: SessionContext,
    ) -> None:
        self.sources, self.local, self.pool, self.measurer, self.context = sources, local, pool, measurer, context
        with context.timed("features"):
            self._features = pool.features(replace(sources.bases[0].checkpoint, device=local.device), local.target)
        self.start = WarmStart(sources.bases[0], sources.bases[0])
        self.model: CostModel = self.start.model

    def dataset(self, indices: Sequence[int] | np.ndarray) -> RankingDataset:
        """Return the valid ones of measured candidates, in their order."""
        valid = self._valid(indices)
        return RankingDataset(
            features=self._features[valid],
            latency=self.measurer.latency(valid),
            group=self.pool.group[valid],
            task_ids=tuple(task.task_id for task in self.pool.tasks),
            task_weights=np.array([task.weight for task in self.pool.tasks], dtype=np.float64),
        )

    def choose(self, indices: Sequence[int]) -> None:
        """Begin with the source that ranks those measured candidates best that none of them has learnt before."""
        bases = self.sources.bases
        if len(bases) > 1:
            fresh = np.array(indices, dtype=np.int64)[self._fresh(indices, bases)]
            self.start = choose_start(self.sources, self.dataset(fresh))
            self.model = self.start.model
            self.context.progress.note(f"start: {self.start.chosen.entry.id}")  # the result says why

    def update(self, indices: Sequence[int]) -> None:
        """Learn from everything measured so far: f.update() of algorithm 1 (TCL). LabelError: there is no order."""
        config = replace(self.context.config.learning, seed=self.context.config.seed)
        self.model = fine_tune(self.start.model, self.dataset(indices), config).model

    def key(self) -> tuple[str, ...]:
        """Return what tells the checkpoints to start from, and how the rounds learn, from any others."""
        digests = (model_digest(base.checkpoint.model) for base in self.sources.bases)
        return (*digests, repr(self.context.config.learning))

    def finish(self, indices: Sequence[int], held: Sequence[int]) -> AdaptedModel:
        """Make the last model by the method that was asked for; those `held` are learnt from no corpus either."""
        config, start = self.context.config, self.start
        training_set = TrainingSet(
            base=start.model,
            data=self.dataset(indices),
            incumbent_features=self._as_base_sees(indices),
            device=self.local.device,
            sources=self._corpora(indices, held),
            config=config.learning,
            seed=config.seed,
            folder=self.context.folder / "training",
            known_devices=self._known_devices(indices),
            incumbent=start.base.checkpoint.model,
            incumbent_trusted=self._trusted(start.base.checkpoint.config),
            unseen=self._fresh(self._valid(indices), (start.base, start.chosen)),
        )
        adapted = adapt_model(config.method, training_set, self._show_steps())
        self.context.progress.advance()
        self.model = adapted.model
        return adapted

    def _corpora(self, indices: Sequence[int], held: Sequence[int]) -> tuple[SourceData, ...]:
        """Return the corpora to learn; one that has nothing beside what was measured here is left out, and noted."""
        context, corpora = self.context, self.sources.corpora
        with context.timed("sources"):
            sources = read_sources(
                self.start.base,
                corpora,
                context.folder / "training" / "statements",
                context.config.seed,
                lambda corpus: withheld(corpus, self.pool, held, indices),
            )
        for name in sorted({corpus_name(corpus) for corpus in corpora} - {source.name for source in sources}):
            context.progress.note(
                f"{name} teaches nothing: it has no task with programs to compare but those measured here"
            )
        return sources

    def _fresh(self, indices: Sequence[int] | np.ndarray, bases: Sequence[CheckpointChoice]) -> np.ndarray:
        """Return (k,) bool: candidates that none of some checkpoints has learnt before."""
        return ~np.isin(indices, learnt_by(bases, self.pool))

    def _show_steps(self) -> Callable[[str, str], None]:
        """Return a callback that shows each step of the methods as a phase, done when the next one begins."""
        begun: list[str] = []

        def show(method: str, step: str) -> None:
            if begun:
                self.context.progress.advance()
            begun.append(method)
            self.context.progress.start(f"{method}: {step}", 1)

        return show

    def view(self, open_: np.ndarray, labeled: np.ndarray) -> PoolPredictions:
        """Return predictions for candidates `open_` (n,), of which those at `labeled` (m,) are measured."""
        latency = self.measurer.latency(open_[labeled])
        return PoolPredictions.of(
            self.model, self._features[open_], labeled, latency, task=self.pool.group[open_], cost=self._cost()
        )

    def point(self, learn: Sequence[int], held: Sequence[int]) -> LearningPoint:
        """Return the learning curve at this moment, on the held-out candidates."""
        known, data = self.dataset(learn), self.dataset(held)
        scores = self._as_here(self.model, held, learn).scores(data, known)
        return LearningPoint(
            len(known),
            self.measurer.seconds,
            slowdown(scores, data.latency, data.group, data.task_weights),
            pairwise_accuracy(scores, data.latency, data.group),
        )

    def judge(self, adapted: AdaptedModel, learn: Sequence[int], held: Sequence[int]) -> Judgement:
        """Compare the adapted model with the base to beat, each with the trust of its checkpoint."""
        base = self.start.base.checkpoint
        then = replace(base.config, trust=self.trust(adapted, learn, held))
        seen = self._as_base_sees(held), self._as_base_sees(learn)
        before = ModelFeatures(base.model, *seen, self._trusted(base.config))
        after = replace(self._as_here(adapted.model, held, learn), trusted=self._trusted(then))
        seed = self.context.config.seed
        return judge(before, after, self.dataset(held), self.dataset(learn), adapted.learnt_gain, seed)

    def trust(self, adapted: AdaptedModel, learn: Sequence[int], held: Sequence[int]) -> dict[str, ClassTrust]:
        """Return the trust of the start's operator classes, restored in those that held-out programs speak for."""
        start = self.start.chosen.checkpoint.config.trust
        if not start:
            return {}
        known, data = self.dataset(learn), self.dataset(held)
        scores = self._as_here(adapted.model, held, learn).scores(data, known)
        framework, operators = self.pool.framework, [task.op for task in self.pool.tasks]
        rows = class_trust(
            (framework, operators[task], row["pairwise"], 0)
            for task, row in task_scores(scores, data.latency, data.group).items()
            if "pairwise" in row
        )
        learnt = Counter(f"{framework}/{operators[task]}" for task in known.group)
        own = {key: replace(row, tasks=row.judged, programs=learnt[key]) for key, row in rows.items() if "*" not in key}
        return start | {key: row for key, row in own.items() if row.trusted}

    def _trusted(self, config: CheckpointConfig) -> np.ndarray:
        """Return (T,) bool: tasks of whose operator class a checkpoint's scores count."""
        return np.array([config.trusts(self.pool.framework, task.op) for task in self.pool.tasks], dtype=bool)

    def _as_here(self, model: CostModel, held: Sequence[int], learn: Sequence[int]) -> ModelFeatures:
        return ModelFeatures(model, self._features[self._valid(held)], self._features[self._valid(learn)])

    def _as_base_sees(self, indices: Sequence[int]) -> np.ndarray:
        """Return features of valid candidates, with the base's own device in the hardware row, if there is one."""
        valid, base = self._valid(indices), self.start.base.checkpoint
        return base.features(self.pool.sequences(valid)) if base.model.config.hardware else self._features[valid]

    def _known_devices(self, indices: Sequence[int]) -> np.ndarray | None:
        """Return a program as the start sees it, its own device in the hardware row, if any."""
        one, start = self._valid(indices)[:1], self.start.chosen.checkpoint
        return start.features(self.pool.sequences(one)) if len(one) and start.model.config.hardware else None

    def _valid(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.array(indices, dtype=np.int64)[np.isfinite(self.measurer.latency(indices))]

    def _cost(self) -> MeasuringCost:
        """Return the cost of building, and how many times its latency a program runs, as measured so far."""
        done = [result for result in self.measurer.results.values() if result.error is None and result.latency > 0]
        if not self.measurer.seconds or not done:
            return MeasuringCost()
        runs = np.median([result.run_seconds / result.latency for result in done])
        return MeasuringCost(float(np.median([result.build_seconds for result in done])), float(runs))

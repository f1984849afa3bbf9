"""A corpus in place of measuring: its programs are the candidates, its rows the latencies, its test tasks judge."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from tvm import IRModule

from ...zoo.adapt import AdaptError, Budget
from ...zoo.corpus import (
    MIN_PROGRAMS,
    Corpus,
    CorpusError,
    Program,
    exclude_computations,
    held_out_computations,
    metric_weight,
    sequence_of,
    split_tasks,
)
from ...zoo.features import get_schema
from ...zoo.primitives import PrimitiveSequence
from ...zoo.training.dataset import stack_padded
from ...zoo.training.programs import Share, StatementStore, corpus_device, extract, pick_programs
from ..device.detect import LocalDevice
from ..device.measure import Measurement
from ..networks.tasks import TuningTask
from ..registry import cache_root
from .config import SessionContext
from .pool import CandidatePool, PoolEntry, PoolLatencies
from .sources import AdaptationSources, learnt_digests, program_digest

# Labels in all: two for each of the four batches of the default three rounds.
MIN_LABELS = 8


@dataclass(frozen=True, kw_only=True)
class CorpusPool(CandidatePool):
    """Programs of a corpus's training tasks, and all of its test tasks, which judge.

    Attributes:
        programs: the N candidates; matrices: (N, rows, width) as checkpoints read them on the corpus's device.
    """

    corpus: Corpus
    programs: tuple[Program, ...]
    matrices: np.ndarray

    @cached_property
    def computations(self) -> tuple[str, ...]:
        """What each task computes."""
        return tuple(self.corpus.tasks[task.task_id].computation or task.task_id for task in self.tasks)

    def sequences(self, indices: Any) -> list[PrimitiveSequence]:
        """Return candidates in the primitive language."""
        return [sequence_of(self.programs[int(index)]) for index in indices]

    def features(self, *_: object) -> np.ndarray:
        """Return the matrices: all checkpoints of an adaptation read the same features."""
        return self.matrices


class RecordedLatencies(PoolLatencies):
    """The latencies that a corpus has; they cost nothing."""

    def answer(self, indices: list[int], limit: float) -> Iterator[tuple[int, Measurement]]:
        assert isinstance(self._pool, CorpusPool)
        for index in () if self._stop.requested else indices:
            yield index, Measurement((self._pool.programs[index].latency,))


def recorded_device(corpus: Corpus) -> LocalDevice:
    """Return what a corpus knows of the device that it was measured on."""
    device, meta = corpus_device(corpus), corpus.meta
    target = meta["target"] if isinstance(meta["target"], dict) else device.target
    cores = {"num-cores": int(meta["threads"])} if meta.get("threads") else {}
    return LocalDevice(replace(device, target=target | cores), str(meta.get("cpu_model") or ""), True, ())


def read_pool(corpus: Corpus, sources: AdaptationSources, context: SessionContext) -> tuple[CorpusPool, Budget]:
    """Read the candidates of a corpus; return them, and labels and judging programs together as a budget.

    No training task computes what a test task does; test programs that a checkpoint has learnt do not judge.

    Raises:
        CorpusError: no test task or no training task has programs to compare.
        AdaptError: there are too few programs for the labels, or too few with the checkpoint's features.
    """
    config, labels, first = context.config, context.config.label_budget, sources.bases[0]
    each, rng = int(labels.value) if labels.kind == "programs" else 0, np.random.default_rng(config.seed)
    share = Share(per_task=max(config.per_task, each), seed=config.seed)
    split = exclude_computations(corpus, split_tasks(corpus), held_out_computations([corpus]))
    teaching = {name: pick_programs(corpus, name, share, rng) for name in (*split.train, *split.val)}
    judging = {name: _not_learnt(corpus, name, sources) for name in split.test}
    parts = [
        {name: programs for name, programs in part.items() if len(programs) >= MIN_PROGRAMS}
        for part in (teaching, judging)
    ]
    for part, tasks_of_part in zip(("training", "test"), parts, strict=True):
        if not tasks_of_part:
            raise CorpusError(
                f"{corpus.path} has no {part} task with {MIN_PROGRAMS} valid programs to compare",
                remedy="import or collect it with a split that has both (`tchub corpus check` shows the split)",
            )
    teaching, judging = parts
    sizes = [len(programs) for programs in teaching.values()]
    count = sum(min(each, size) for size in sizes) if each else labels.programs(sum(sizes)) or 0
    if each > max(sizes) or count < MIN_LABELS:
        raise AdaptError(
            f"labels are {labels.text}: the training tasks of {corpus.path} have {sum(sizes)} candidates, the largest "
            f"{max(sizes)}, and adapting learns from {MIN_LABELS} or more",
            remedy=f"give --labels {max(sizes)} or fewer of each task, and {MIN_LABELS} or more in all",
        )
    schema = get_schema(first.checkpoint.config.feature_schema)
    store = StatementStore(cache_root().parent / "statements")
    tasks: list[TuningTask] = []
    entries: list[PoolEntry] = []
    programs: list[Program] = []
    matrices: list[np.ndarray] = []
    context.progress.start("candidates", len(teaching) + len(judging))
    with context.timed("features"):
        for name, own in (teaching | judging).items():
            features, usable = extract(corpus, own, schema, corpus_device(corpus), store)
            kept = [program for program, good in zip(own, usable, strict=True) if good]
            if kept:
                entries += [PoolEntry(len(tasks), program.key, program.trace, program.strategy) for program in kept]
                task = corpus.tasks[name]
                tasks.append(TuningTask(name, task.name, task.op, metric_weight(task), IRModule(), task.flops))
                matrices.append(features)
                programs += kept
            context.progress.advance()
    judges = tuple(index for index, program in enumerate(programs) if program.task_id in judging)
    if len(judges) < MIN_PROGRAMS or len(programs) - len(judges) < MIN_LABELS:
        raise AdaptError(
            f"{corpus.path} has {len(judges)} test programs and {len(programs) - len(judges)} others with the features "
            f"{schema.name} that {first.entry.id} reads",
            remedy="choose a checkpoint that reads other features (`tchub list` shows the features of each)",
        )
    pool = CorpusPool(
        tuple(tasks), tuple(entries), str(corpus.meta["device"]), to_rank=each > 0, judging=judges,
        framework=programs[0].framework,
        corpus=corpus, programs=tuple(programs), matrices=stack_padded(matrices),
    )  # fmt: skip
    text = f"{each} labels a task" if each else f"{labels.text} of the training tasks' candidates"
    return pool, Budget("programs", count + len(judges), f"{text}: {count}")


def _not_learnt(corpus: Corpus, name: str, sources: AdaptationSources) -> list[Program]:
    """Return the valid programs of a task that no checkpoint has learnt."""
    learnt = frozenset[str]().union(*(learnt_digests(base.checkpoint.config) for base in sources.bases))
    device, computation = str(corpus.meta["device"]), corpus.tasks[name].computation or name
    programs = pick_programs(corpus, name, Share(), np.random.default_rng(0))
    return [program for program in programs if program_digest(device, computation, program.key) not in learnt]

"""Which tasks of which corpus teach, choose and judge: no test task of any device ever teaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...corpus import MIN_PROGRAMS, EmptyDatasetError, computations, split_tasks
from ...features import DeviceKindError, FeatureSchema
from ...training import RankingDataset
from ...training.inputs import StatementStore
from ...training.read import Share, corpus_device, read_programs
from ..continual import choose_sources
from .errors import LearntAlreadyError, NotLearntError
from .facts import LearntDevice, SeenTasks, computation_key, programs_digest

if TYPE_CHECKING:
    from ...corpus import Corpus


@dataclass(frozen=True)
class Lesson:
    """The programs of one device.

    Attributes:
        train: of the tasks that teach; val: of those that choose an epoch, None without any.
        learnt, tested: what the tasks of `train` compute, and its test tasks, as keys.
        without_features: programs that the schema could not describe.
    """

    train: RankingDataset
    val: RankingDataset | None
    learnt: tuple[str, ...]
    tested: tuple[str, ...]
    without_features: int


class Curriculum:
    """The corpora of a run, and what no device may learn of them.

    Attributes:
        corpora: to learn, in order; judged: of devices that are known already, which only judge.
    """

    def __init__(self, corpora: Sequence[Corpus], judged: Sequence[Corpus], schema: FeatureSchema, seen: SeenTasks):
        self.corpora, self.judged, self.schema = tuple(corpora), tuple(judged), schema
        self._splits = {c.path: split_tasks(c) for c in (*corpora, *judged)}
        self._keys = {
            c.path: {task: computation_key(name) for task, name in computations(c).items()} for c in (*corpora, *judged)
        }
        # Judged corpora add nothing: `seen` has their test tasks, and what is learnt must not hang on who judges.
        self._tests = seen.test | self._computed("test")
        self._learnt = seen.learnt  # before the run; what the run learns is no test of it
        self._read: dict[Path, RankingDataset | None] = {}
        # A validation task that an earlier device taught would choose for tasks that are known, unlike the test's.
        self._held = self._tests | self._computed("val")

    def _computed(self, part: str) -> set[str]:
        return {self._keys[c.path][task] for c in self.corpora for task in self._splits[c.path].part(part)}

    def lesson(self, corpus: Corpus, store: StatementStore, per_task: int, seed: int) -> Lesson:
        """Reads what a device learns from, and what chooses its epoch.

        Raises:
            EmptyDatasetError: no task that may teach has enough programs.
        """
        keys, split = self._keys[corpus.path], self._splits[corpus.path]
        share = Share(per_task=per_task, seed=seed)
        teach = sorted(t for part in ("train", "val") for t in split.part(part) if keys[t] not in self._held)
        train, failed = read_programs(corpus, teach, self.schema, store, share)
        if train is None:
            raise EmptyDatasetError(
                f"no task of {corpus.path} that may be learnt has {MIN_PROGRAMS} valid programs: "
                f"{len(teach)} of {len(keys)} tasks judge no device",
                remedy="measure more programs of each task, or other tasks (`tchub collect`)",
            )
        choose = sorted(t for t in split.part("val") if keys[t] not in self._tests)
        val, _ = read_programs(corpus, choose, self.schema, store, share)
        learnt = tuple(keys[task] for task in train.task_ids)
        return Lesson(train, val, learnt, tuple(keys[t] for t in split.part("test")), failed)

    def test(self, corpus: Corpus, store: StatementStore) -> RankingDataset | None:
        """All programs of a device's test tasks that no device taught; None without any. Read once."""
        if corpus.path not in self._read:
            keys = self._keys[corpus.path]
            judge = sorted(t for t in self._splits[corpus.path].part("test") if keys[t] not in self._learnt)
            self._read[corpus.path] = read_programs(corpus, judge, self.schema, store)[0]
        return self._read[corpus.path]


def check_kinds(corpora: Sequence[Corpus], schema: FeatureSchema) -> None:
    """Raises DeviceKindError for a corpus of the other kind of device, before anything is read."""
    for corpus in corpora:
        device = corpus_device(corpus)
        if device.kind != schema.kind:
            raise DeviceKindError(
                f"{corpus.path} is of {device.name}, a {device.kind.upper()}; the knowledge base reads "
                f"{schema.name}, features of programs for a {schema.kind.upper()}",
                remedy=f"leave it out, or add it to a knowledge base of {device.kind.upper()}s",
                schema=schema.name,
                device=device.name,
            )


def check_judged(judged: Sequence[Corpus], known: Sequence[LearntDevice], corpora: Sequence[Corpus]) -> None:
    """Raises NotLearntError for a corpus that the base has not learnt, as it is, and is not about to learn."""
    learnt = {device.sha256 for device in known} | {programs_digest(corpus) for corpus in corpora}
    for corpus in judged:
        if programs_digest(corpus) not in learnt:
            name = corpus.path.resolve().name
            raise NotLearntError(
                f"{name} (of {corpus.meta.get('device')}) is no corpus that the knowledge base has learnt, so it has "
                "no score to hold against it",
                remedy="leave out its --judge, or name the corpus with the programs that were learnt "
                "(`tchub info` tells them)",
                corpus=name,
            )


def check_new(corpora: Sequence[Corpus], learnt: Sequence[LearntDevice]) -> None:
    """Raises LearntAlreadyError for a corpus that the base has learnt, or that is named twice."""
    known = {d.sha256: d.version for d in learnt} | {(d.corpus, d.device): d.version for d in learnt}
    for corpus in corpora:
        name, device = corpus.path.resolve().name, str(corpus.meta.get("device"))
        same = {programs_digest(corpus), (name, device)}
        if found := [known[key] for key in same if key in known]:
            raise LearntAlreadyError(
                f"{name} (of {device}) was learnt already, in version {found[0]}",
                remedy="leave it out; programs measured since then go into a corpus of their own, under another name",
                corpus=name,
                version=found[0],
            )
        known |= dict.fromkeys(same, "this run")


def ordered(corpora: Sequence[Corpus]) -> list[Corpus]:
    """The last corpus is the target: before it, the devices that are most like it come last.

    See `choose_sources`, here without a measured agreement: nothing is left out.
    """
    *others, target = corpora
    names = {str(number): corpus for number, corpus in enumerate(others)}
    devices = {name: corpus_device(corpus) for name, corpus in names.items()}
    return [*(names[source.name] for source in choose_sources(corpus_device(target), devices)), target]

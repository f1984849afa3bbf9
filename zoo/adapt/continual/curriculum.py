"""Which tasks of which corpus teach, choose and judge: no test task of any device is ever learnt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ...corpus import MIN_PROGRAMS, CorpusError, computations, split_tasks
from ...corpus.schema import PROGRAMS_FILE
from ...features import DeviceKindError, FeatureSchema
from ...files import file_sha256
from ...models import CheckpointConfig, CostModel
from ...models.registry import get_architecture
from ...training import RankingDataset
from ...training.evaluation import task_accuracies
from ...training.programs import Share, StatementStore, corpus_device, read_programs, task_kinds
from ..errors import AdaptError
from .device import learning_order

if TYPE_CHECKING:
    from ...corpus import Corpus


@dataclass(frozen=True)
class DevicePrograms:
    """The programs that a device is learnt from and that choose an epoch; keys of its tasks, learnt and test."""

    train: RankingDataset
    val: RankingDataset | None
    learnt: tuple[str, ...]
    test: tuple[str, ...]
    without_features: int


class Curriculum:
    """The corpora of a run, and what no device may learn of them.

    Attributes:
        corpora: to learn, in order; judged: of devices that are known already, which only judge.
    """

    def __init__(self, corpora: Sequence[Corpus], judged: Sequence[Corpus], schema: FeatureSchema, seen: TaskKeys):
        self.corpora, self.judged, self.schema = tuple(corpora), tuple(judged), schema
        self._splits = {c.path: split_tasks(c) for c in (*corpora, *judged)}
        self._keys = {
            c.path: {task: computation_key(name) for task, name in computations(c).items()} for c in (*corpora, *judged)
        }
        # Judged corpora add nothing: `seen` has their test tasks, and what is learnt must not hang on who judges.
        self._tests = seen.test | self._part("test")
        self._learnt = seen.learnt  # before the run; what the run learns is no test of it
        self._test_data: dict[Path, RankingDataset | None] = {}
        # A validation task that an earlier device taught would choose for tasks that are known, unlike the test's.
        self._held = self._tests | self._part("val")

    def _part(self, part: str) -> set[str]:
        return {self._keys[c.path][task] for c in self.corpora for task in self._splits[c.path].part(part)}

    def training(self, corpus: Corpus, store: StatementStore, per_task: int, seed: int) -> DevicePrograms:
        """Read the programs that a device is learnt from, and those that choose its epoch.

        Raises:
            CorpusError: no task that may teach has enough programs.
        """
        keys, split = self._keys[corpus.path], self._splits[corpus.path]
        share = Share(per_task=per_task, seed=seed)
        teach = sorted(t for part in ("train", "val") for t in split.part(part) if keys[t] not in self._held)
        train, failed = read_programs(corpus, teach, self.schema, store, share)
        if train is None:
            raise CorpusError(
                f"no task of {corpus.path} that may be learnt has {MIN_PROGRAMS} valid programs: "
                f"{len(teach)} of {len(keys)} tasks judge no device",
                remedy="measure more programs of each task, or other tasks (`tchub collect`)",
            )
        choose = sorted(t for t in split.part("val") if keys[t] not in self._tests)
        val, _ = read_programs(corpus, choose, self.schema, store, share)
        learnt = tuple(keys[task] for task in train.task_ids)
        return DevicePrograms(train, val, learnt, tuple(keys[t] for t in split.part("test")), failed)

    def accuracies(
        self, model: CostModel, corpus: Corpus, store: StatementStore, per_task: int, seed: int
    ) -> Iterator[tuple[str, str, float, int]]:
        """Yield what `class_trust` counts of a device; tasks that the run began with do not judge."""
        programs, keys = self.training(corpus, store, per_task, seed), self._keys[corpus.path]
        val = programs.val
        if val is not None:
            unknown = np.array([keys[task] not in self._learnt for task in val.task_ids])
            val = val.take(np.flatnonzero(unknown[val.group]))
        return task_accuracies(model, programs.train, val, task_kinds(corpus))

    def test(self, corpus: Corpus, store: StatementStore) -> RankingDataset | None:
        """Read all programs of a device's test tasks that no device taught, once; None without any."""
        if corpus.path not in self._test_data:
            keys = self._keys[corpus.path]
            judge = sorted(t for t in self._splits[corpus.path].part("test") if keys[t] not in self._learnt)
            self._test_data[corpus.path] = read_programs(corpus, judge, self.schema, store)[0]
        return self._test_data[corpus.path]


def check_corpora(
    corpora: Sequence[Corpus], judged: Sequence[Corpus], schema: FeatureSchema, known: Sequence[DeviceRecord]
) -> None:
    """Check corpora against a base that knows some devices, before anything is read.

    Raises:
        DeviceKindError: one is of the other kind of device.
        AdaptError: one was learnt before or is named twice, or a judged one was never learnt.
    """
    for corpus in (*corpora, *judged):
        device = corpus_device(corpus)
        if device.kind != schema.kind:
            raise DeviceKindError(
                f"{corpus.path} is of {device.name}, a {device.kind.upper()}; the knowledge base reads "
                f"{schema.name}, features of programs for a {schema.kind.upper()}",
                remedy=f"leave it out, or add it to a knowledge base of {device.kind.upper()}s",
            )
    versions: dict[object, str] = {d.sha256: d.version for d in known}
    versions |= {(d.corpus, d.device): d.version for d in known}
    for corpus in corpora:
        name, device = corpus.path.resolve().name, str(corpus.meta.get("device"))
        same = (programs_digest(corpus), (name, device))
        if version := next((versions[key] for key in same if key in versions), None):
            raise AdaptError(
                f"{name} (of {device}) was learnt already, in version {version}",
                remedy="leave it out; programs measured since then go into a corpus of their own, under another name",
                corpus=name,
            )
        versions |= dict.fromkeys(same, "this run")
    for corpus in judged:
        if programs_digest(corpus) not in versions:
            name = corpus.path.resolve().name
            raise AdaptError(
                f"the knowledge base has not learnt the corpus {name} (of {corpus.meta.get('device')}), so it has no "
                "score to compare with",
                remedy="leave out its --judge, or name the corpus with the programs that were learnt "
                "(`tchub info` lists them)",
                corpus=name,
            )


def ordered(corpora: Sequence[Corpus]) -> list[Corpus]:
    """Return the corpora in the order to learn them: the last one is the target, the devices most like it come last."""
    *others, target = corpora
    devices = {number: corpus_device(corpus) for number, corpus in enumerate(others)}
    return [*(others[number] for number in learning_order(corpus_device(target), devices)), target]


# Digits of a computation's hash: among 100,000 computations, two share one with a probability of 2 in 100,000.
_DIGITS = 12


@dataclass(frozen=True)
class DeviceRecord:
    """One device, in the order of learning: an entry of `lineage.devices`.

    Attributes:
        corpus: its folder's name; sha256: of its programs; device: where they were measured.
        version: of the knowledge base that learnt it first.
        tasks, programs: learnt from.
        licence, source: of the corpus.
        gate: mean gate of the distillation (see `phases.distill`); None for the first device, which has none.
        validation: scores on its validation tasks, of `before` (the base as it came), `column` and `base`.
        test: scores on its test tasks right after it was learnt, of `column` and `base`.
        warning: set if the base ranks its validation tasks worse than before it learnt them, beyond doubt.
    """

    corpus: str
    sha256: str
    device: str
    version: str
    tasks: int
    programs: int
    licence: str | None = None
    source: str | None = None
    gate: float | None = None
    validation: dict[str, dict[str, float]] = field(default_factory=dict)
    test: dict[str, dict[str, float]] = field(default_factory=dict)
    warning: str | None = None


@dataclass(frozen=True)
class TaskKeys:
    """Hashes of the computations of tasks: an entry `seen` of `training`; `learnt` from some device, or its `test`s."""

    learnt: frozenset[str] = frozenset()
    test: frozenset[str] = frozenset()


def learnt_devices(config: CheckpointConfig) -> tuple[DeviceRecord, ...]:
    """Return the devices of a knowledge base, first learnt first.

    Raises:
        AdaptError: the checkpoint is none, or does not record them.
    """
    if get_architecture(config.arch).kind != "knowledge base":
        raise AdaptError(
            f"{config.name} is an ordinary checkpoint of {config.arch}, not a knowledge base",
            remedy=f"begin one with `new:{config.arch}`, or adapt this one: tchub adapt {config.name}",
        )
    try:
        return msgspec.convert(config.lineage.get("devices"), tuple[DeviceRecord, ...])
    except msgspec.ValidationError as error:
        raise AdaptError(
            f"{config.name} does not record which devices it has learnt ({error})",
            remedy="use a knowledge base of `tchub distill`",
        ) from error


def seen_tasks(config: CheckpointConfig | None) -> TaskKeys:
    """Return the tasks of a knowledge base; none where it does not record them."""
    seen = config.training.get("seen") if config else None
    return msgspec.convert(seen, TaskKeys) if isinstance(seen, dict) else TaskKeys()


def computation_key(computation: str) -> str:
    """Return the hash of a computation, for a config."""
    return hashlib.sha256(computation.encode()).hexdigest()[:_DIGITS]


def programs_digest(corpus: Corpus) -> str:
    """Return the sha256 of a corpus's programs, hex."""
    known = corpus.meta.get("files", {}).get(PROGRAMS_FILE, {}).get("sha256")
    return known if isinstance(known, str) else file_sha256(corpus.path / PROGRAMS_FILE)

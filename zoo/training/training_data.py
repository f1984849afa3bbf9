"""`TrainingData`: the programs that a run learns from and is judged by, with no test task among the former."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..corpus import (
    HELD_OUT,
    MIN_PROGRAMS,
    Corpus,
    CorpusError,
    computed,
    free_tasks,
    held_out_computations,
    split_tasks,
)
from ..devices import Device
from ..features import FeatureSchema
from .dataset import RankingDataset
from .programs import Share, StatementStore, corpus_device, read_programs, resolve_schema, task_kinds


@dataclass(frozen=True)
class TrainingData:
    """The data of a run.

    Attributes:
        schema: what the matrices are; device: the target's.
        own: training programs of the target, None where nothing of it is learnt (zero-shot); sources: of the others.
        val: what chooses an epoch: the target's validation tasks, or without any program of it the sources'.
        corpora: for each corpus its facts and counts, the target first; share: how much was taken.
        kinds: framework and operator class of each task, by its id.
    """

    schema: FeatureSchema
    device: Device
    own: RankingDataset | None
    sources: RankingDataset | None
    val: RankingDataset | None
    test: RankingDataset | None
    corpora: list[dict[str, Any]] = field(default_factory=list)
    share: Share = field(default_factory=Share)
    kinds: dict[str, tuple[str, str]] = field(default_factory=dict)

    @cached_property
    def train(self) -> RankingDataset:
        """Return all training programs together."""
        return RankingDataset.concat([part for part in (self.own, self.sources) if part is not None])


def load_training_data(
    target: Corpus,
    sources: Sequence[Corpus],
    feature_schema: str,
    share: Share | None = None,
    store: StatementStore | None = None,
) -> TrainingData:
    """Read the programs of a run; the device of each is its own corpus's.

    A task of any corpus is left out of the training when a test task of any corpus, or a validation task,
    has its id or computes the same, whatever the framework and the device.

    Args:
        target: whose test split judges; sources: further corpora, of devices of the same kind.
        feature_schema: with or without the device's kind at its end.
        share: how much is taken, all unless given; store: where features of statements are kept.

    Raises:
        CorpusError: no training task of any corpus has enough programs.
        DeviceKindError: a source's device is of another kind than the schema's.
    """
    share = share or Share()
    device = corpus_device(target)
    schema = resolve_schema(feature_schema, device.kind)
    corpora = (target, *sources)
    judges = (target,) if share.programs > 0 or not sources else tuple(sources)
    tests = held_out_computations(corpora)
    held = tests.union(*(computed(corpus, "val") for corpus in judges))
    whole = Share(per_task=share.per_task, seed=share.seed)
    trained: list[RankingDataset | None] = []
    facts: list[dict[str, Any]] = []
    for head, corpus in enumerate(corpora):
        part = share if corpus is target else whole
        free = free_tasks(corpus, held, "train", "val")
        data, failed = read_programs(corpus, free, schema, store, part, head) if part.programs > 0 else (None, 0)
        trained.append(data)
        tasks, programs = (0, 0) if data is None else (len(set(data.group.tolist())), len(data))
        counts = {"tasks": tasks, "programs": programs, "programs_without_features": failed}
        facts.append(describe_corpus(corpus) | counts)
    if all(data is None for data in trained):
        names = ", ".join(corpus.path.name for corpus in corpora)
        raise CorpusError(
            f"no training task of {names} has {MIN_PROGRAMS} valid programs",
            remedy="measure more programs of each task (`tchub collect --programs N`), or add a --corpus",
        )
    val = _join(read_programs(c, free_tasks(c, tests, "val"), schema, store)[0] for c in judges)
    test = load_part(target, "test", schema, store=store)
    return TrainingData(schema, device, trained[0], _join(trained[1:]), val, test, facts, share, task_kinds(*corpora))


def describe_corpus(corpus: Corpus) -> dict[str, Any]:
    """Return the facts of a corpus that a config and a card repeat."""
    keys = ("device", "cpu_model", "threads", "framework", "licence", "source", "tvm_version")
    networks = {name for task in corpus.tasks.values() for name, _ in task.networks}
    return {
        "name": corpus.path.resolve().name,
        **{k: corpus.meta[k] for k in keys if k in corpus.meta},
        "how": corpus.meta.get("notes"),
        "networks": sorted(networks - set(HELD_OUT)),
        "held_out": sorted(networks & set(HELD_OUT)),
    }


def load_part(
    corpus: Corpus,
    part: str,
    schema: FeatureSchema,
    device: Device | None = None,
    store: StatementStore | None = None,
) -> RankingDataset | None:
    """Return all programs of one part of a corpus's split; None where no task of it has enough of them."""
    return read_programs(corpus, split_tasks(corpus).part(part), schema, store, device=device)[0]


def _join(parts: Iterable[RankingDataset | None]) -> RankingDataset | None:
    filled = [part for part in parts if part is not None]
    return RankingDataset.concat(filled) if filled else None

"""Programs of a corpus as matrices and latencies: the input of models, by the name of a feature schema."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..corpus import MIN_PROGRAMS, Corpus, Program, metric_weight, sequence_of
from ..devices import Device, get_device, known_device
from ..features import FeatureSchema, get_schema
from ..features.schema import SCHEMAS
from ..primitives import PrimitiveSequence
from .dataset import RankingDataset, stack_padded

if TYPE_CHECKING:
    from ..corpus.replay.statements import NoFeatures

_CHUNK = 8192
# Of a task: its id, features, latencies, and memory-bound and core-bound scores.
_Part = tuple[str, np.ndarray, np.ndarray, np.ndarray]


def resolve_schema(name: str, kind: str) -> FeatureSchema:
    """Return the schema of a recipe's name, which may leave the device's kind out: `tlp` is `tlp-cpu` or `tlp-gpu`.

    Raises:
        TchubError: there is none.
    """
    full = f"{name}-{kind}"
    return get_schema(full if name not in SCHEMAS and full in SCHEMAS else name)


@dataclass(frozen=True)
class StatementStore:
    """A cache of the features of replayed programs, each of which takes 20 ms or more.

    Attributes:
        folder: None makes them anew.
        workers: processes that replay.
        count: called after some programs with what is done, how many are, and all that have to be replayed.
    """

    folder: Path | None = None
    workers: int = 1
    count: Callable[[str, int, int], None] | None = None

    def read(self, corpus: Corpus, programs: Sequence[Program]) -> tuple[list[np.ndarray], dict[int, NoFeatures]]:
        """Return statement features of programs and their failures, see `statement_features`."""
        from ..corpus.replay.statements import statement_features

        with tempfile.TemporaryDirectory() as scratch:
            return statement_features(corpus, programs, self.folder or scratch, self.workers, self.count)


def extract(
    corpus: Corpus,
    programs: Sequence[Program],
    schema: FeatureSchema,
    device: Device,
    store: StatementStore,
    sequences: Sequence[PrimitiveSequence] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Extract the matrices of n of N programs of a corpus: float32 (n, rows, width), and (N,) bool: which n they are.

    A program is left out when its schema reads statements and the program cannot be replayed. `sequences`: those of the
    programs, where they are at hand.
    """
    usable = np.ones(len(programs), dtype=bool)
    if schema.source != "statements":
        sequences = sequences or [sequence_of(p) for p in programs]
        return schema.extract(sequences, device if schema.hardware else None), usable
    from ..features.columns import OPS
    from ..features.statements import statement_matrices

    features, failures = store.read(corpus, programs)
    usable[list(failures)] = False
    kept = np.flatnonzero(usable).tolist()
    ops = [OPS.index(corpus.tasks[programs[i].task_id].op) for i in kept]
    return statement_matrices([features[i] for i in kept], ops, schema.rows), usable


@dataclass(frozen=True)
class Share:
    """The part of the training programs that is taken, at random.

    Attributes:
        programs: share of the programs of each of the target's training tasks; none (0) leave the target to be judged
            alone (zero-shot). The other corpora are taken whole.
        per_task: programs of a task at most, of any corpus; 0 takes all.
        without: (task, key) of programs that are never taken.
    """

    programs: float = 1.0
    per_task: int = 0
    seed: int = 0
    without: frozenset[tuple[str, str]] = frozenset()


def corpus_device(corpus: Corpus) -> Device:
    """Return the device that a corpus was measured on: as detected there if the corpus has it, else by its name.

    Raises:
        UnknownDeviceError: neither its device nor its family is known here.
    """
    if "device_sheet" in corpus.meta:
        return Device.from_dict(corpus.meta["device_sheet"])
    return known_device(str(corpus.meta["device"])) or get_device(str(corpus.meta["family"]))


def task_kinds(*corpora: Corpus) -> dict[str, tuple[str, str]]:
    """Return framework and operator class of each task, by its id."""
    return {k: (c.meta.get("framework", "metaschedule"), task.op) for c in corpora for k, task in c.tasks.items()}


def read_programs(
    corpus: Corpus,
    task_ids: Sequence[str],
    schema: FeatureSchema,
    store: StatementStore | None = None,
    share: Share | None = None,
    head: int = 0,
    device: Device | None = None,
) -> tuple[RankingDataset | None, int]:
    """Read features and latencies of the valid programs of some tasks.

    Args:
        task_ids: the tasks; those with fewer than `MIN_PROGRAMS` valid programs are left out.
        store: where features of statements are kept; share: how much is taken, all unless given.
        head: of a model of several heads, the one that learns these programs.
        device: of the hardware row; the corpus's own unless given.

    Returns:
        The programs, None without any, and how many were left out for want of features.
    """
    share, store, device = share or Share(), store or StatementStore(), device or corpus_device(corpus)
    rng = np.random.default_rng(share.seed)
    read = ["latency", "error", "key"]
    filled = [t for t in task_ids if _usable(corpus.table(t, read), t, share).sum() >= MIN_PROGRAMS]
    rng.permutation(len(filled))  # so that a seed draws the programs that it drew for the published checkpoints
    parts: list[_Part] = []
    failed = 0
    for programs in _chunks(corpus, filled, share, rng):
        sequences = [sequence_of(program) for program in programs] if schema.source != "statements" else None
        features, usable = extract(corpus, programs, schema, device, store, sequences)
        failed += len(programs) - len(features)
        kept = [program for program, good in zip(programs, usable, strict=True) if good]
        bounds = np.full((len(kept), 2), np.nan, np.float32)
        if sequences is not None:
            bounds = _bounds(corpus, sequences, np.array([program.latency for program in programs]))
        parts += _by_task(kept, features, bounds)
    if not parts:
        return None, failed
    ids, features, latency, bounds = zip(*parts, strict=True)
    weights = np.array([metric_weight(corpus.tasks[t]) for t in ids], dtype=np.float64)
    group = np.repeat(np.arange(len(ids), dtype=np.int64), [len(part) for part in features])
    heads = np.full(len(ids), head, np.int64) if head else None
    data = RankingDataset(stack_padded(features), np.concatenate(latency), group, ids, weights, heads)
    known = np.concatenate(bounds)
    return replace(data, bounds=known if np.isfinite(known).any() else None), failed


def _bounds(corpus: Corpus, sequences: Sequence[PrimitiveSequence], latency: np.ndarray) -> np.ndarray:
    """Return `bound_scores` of programs measured on the corpus's device, on as many cores as they ran on."""
    from ..features.nest_columns import bound_scores, encoder

    device, target = corpus_device(corpus), corpus.meta.get("target")
    cores = corpus.meta.get("threads") or (target.get("num-cores") if isinstance(target, dict) else None)
    return bound_scores(encoder(device.kind).rows(sequences), device.kind, latency, device.roofline(cores))


def _chunks(corpus: Corpus, task_ids: Sequence[str], share: Share, rng: np.random.Generator) -> Iterator[list[Program]]:
    """Yield the programs taken of some tasks at a time: all of a corpus would fill the memory."""
    waiting: list[Program] = []
    for task_id in task_ids:
        waiting += pick_programs(corpus, task_id, share, rng)
        if len(waiting) >= _CHUNK:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _by_task(programs: Sequence[Program], features: np.ndarray, bounds: np.ndarray) -> Iterator[_Part]:
    """Yield features, latencies and bounds of each task that has two programs to compare, which are neighbours."""
    start = 0
    for task_id, same in groupby(programs, key=lambda program: program.task_id):
        latency = np.array([program.latency for program in same])
        own = slice(start, start + len(latency))
        if len(latency) >= 2:
            yield task_id, features[own], latency, bounds[own]
        start += len(latency)


def _usable(table: pa.Table, task_id: str, share: Share) -> np.ndarray:
    """Return (N,) bool: a task's programs that have a latency (`Program.valid`) and that the share lets be taken."""
    latency = table["latency"].to_numpy(zero_copy_only=False).astype(np.float64)
    valid = np.isfinite(latency) & (latency > 0) & np.asarray(table["error"].is_null())
    if share.without:
        valid &= np.array([(task_id, key) not in share.without for key in table["key"].to_pylist()], dtype=bool)
    return valid


def pick_programs(corpus: Corpus, task_id: str, share: Share, rng: np.random.Generator) -> list[Program]:
    """Return valid programs of a task: the share, at least two, at most the cap; in the order of their keys."""
    table = corpus.table(task_id).sort_by("key")
    valid = np.flatnonzero(_usable(table, task_id, share))
    count = max(min(2, len(valid)), round(share.programs * len(valid)))
    kept = np.sort(rng.permutation(valid)[: min(count, share.per_task or count)])
    return [Program.from_row(row) for row in table.take(kept).to_pylist()]

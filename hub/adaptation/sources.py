"""The sources of an adaptation: checkpoints to start from, corpora to learn from, and what they must not tell.

No hold-out is judged by what taught a model: programs that a checkpoint has learnt by adapting are known by digests,
and programs that judge are left out of the corpora.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...zoo.adapt.errors import AdaptError
from ...zoo.adapt.method import SourceData
from ...zoo.corpus import Corpus, CorpusError, computations, usable_programs
from ...zoo.corpus.computation import normal
from ...zoo.corpus.schema import META_FILE
from ...zoo.features import get_schema
from ...zoo.models import CheckpointConfig, CostModel
from ...zoo.training import RankingDataset, pairwise_accuracy
from ...zoo.training.metrics import count_pairs
from ...zoo.training.programs import Share, StatementStore, corpus_device, read_programs
from ..api import CheckpointChoice
from ..registry.errors import CheckpointNameError, UnknownCheckpointError
from ..search.candidate_features import require_kind
from .pool import CandidatePool

# Programs of a task that are learnt of a source's corpus: a task's first programs teach most.
PROGRAMS_PER_TASK = 200
# Ordered pairs without which one more or less would turn the comparison of two sources.
MIN_PAIRS = 10
# Key of a checkpoint's `training`: digests of the programs that it has learnt by adapting.
LEARNT = "learnt_programs"
# Hex digits of a digest: of 10,000 programs, two share one with a probability of 4 in 100 billion.
_DIGITS = 12


@dataclass(frozen=True)
class AdaptationSources:
    """Checkpoints, which read the same features, and corpora; the first one is to be beaten if the user named it."""

    bases: tuple[CheckpointChoice, ...]
    named: bool
    corpora: tuple[Corpus, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (*(base.entry.id for base in self.bases[1:]), *map(corpus_name, self.corpora))


def corpus_name(corpus: Corpus) -> str:
    return corpus.path.resolve().name


def open_sources(
    checkpoint: str | None, sources: Sequence[str], choose: Callable[[str | None], CheckpointChoice]
) -> AdaptationSources:
    """Load the checkpoints by `choose`, open the corpora, and check that they fit each other.

    Without a checkpoint to adapt it is the first among the sources, or what fits the device best.

    Raises:
        AdaptError: a source is neither a checkpoint nor a corpus, they do not fit, or two corpora have one name.
        CorpusError: a corpus has no task with programs to compare.
    """
    folders = [name for name in sources if (Path(name) / META_FILE).is_file()]
    names = [name for name in sources if name not in folders]
    first = (replace(choose(checkpoint), asked=checkpoint),) if checkpoint is not None or not names else ()
    bases = (*first, *(replace(_open_checkpoint(name, choose), asked=name) for name in names))
    corpora = tuple(Corpus.open(Path(folder)) for folder in folders)
    reads = [(base.checkpoint.config.feature_schema, base.checkpoint.config.feature_version) for base in bases]
    for base, (schema, version) in zip(bases, reads, strict=True):
        if (schema, version) != reads[0]:
            raise AdaptError(
                f"{base.entry.id} reads {schema} version {version}, {bases[0].entry.id} reads {reads[0][0]} version "
                f"{reads[0][1]}",
                remedy=f"name sources that read {reads[0][0]} (`tchub list` shows the features of each)",
                source=base.entry.id,
            )
    for corpus in corpora:
        device = corpus_device(corpus)
        require_kind(bases[0].checkpoint, device.name, device.kind)
        if not any(usable_programs(corpus, [task]) for task in corpus.tasks):
            raise CorpusError(f"{corpus.path} has no task with programs to compare", remedy="leave it out of --sources")
    called = [corpus_name(corpus) for corpus in corpora]
    if twice := next((name for name in called if called.count(name) > 1), None):
        raise AdaptError(
            f"two corpora of --sources are called {twice}", remedy="give their folders different names", source=twice
        )
    return AdaptationSources(bases, checkpoint is not None or len(bases) == 1, corpora)


def _open_checkpoint(name: str, choose: Callable[[str | None], CheckpointChoice]) -> CheckpointChoice:
    try:
        return choose(name)
    except (CheckpointNameError, UnknownCheckpointError) as error:
        if Path(name).is_dir():
            reason = "the folder holds neither a corpus.json nor a config.json"
        elif "/" in name or Path(name).exists():
            reason = "there is no such folder"
        else:
            raise
        raise AdaptError(
            f"{name} is neither a corpus nor a checkpoint: {reason}",
            remedy="name folders of corpora (`tchub corpus check DIR` reads one), and folders or names of checkpoints",
            source=name,
        ) from error


def read_sources(
    base: CheckpointChoice,
    corpora: Sequence[Corpus],
    store: Path,
    seed: int,
    without: Callable[[Corpus], frozenset[tuple[str, str]]],
) -> tuple[SourceData, ...]:
    """Read programs of the corpora, but for (task, key) `without`; a corpus without any task to compare is left out."""
    sources, schema = [], get_schema(base.checkpoint.config.feature_schema)
    for corpus in corpora:
        share = Share(per_task=PROGRAMS_PER_TASK, seed=seed, without=without(corpus))
        data, _ = read_programs(corpus, sorted(corpus.tasks), schema, StatementStore(store), share)
        if data is not None:
            sources.append(SourceData(corpus_name(corpus), corpus_device(corpus), data))
    return tuple(sources)


# Programs that were learnt before, and programs that may not be learnt ------------------------------------


def program_digest(device: str, computation: str, key: str) -> str:
    """Return the digest of a program measured on a device, equal in every journal and corpus."""
    return hashlib.sha256("\n".join((device, computation, key)).encode()).hexdigest()[:_DIGITS]


def pool_digests(pool: CandidatePool, indices: Iterable[int]) -> list[str]:
    """Return the digests of some candidates, by which checkpoints remember what they have learnt."""
    entries = (pool.entries[int(index)] for index in indices)
    return [program_digest(pool.device, pool.computations[entry.task], entry.key) for entry in entries]


def corpus_digests(corpus: Corpus) -> frozenset[str]:
    """Return the digests of every program of a corpus."""
    device = str(corpus.meta["device"])
    return frozenset(
        program_digest(device, task.computation or name, str(key))
        for name, task in corpus.tasks.items()
        for key in corpus.table(name, ["key"])["key"].to_pylist()
    )


def learnt_digests(config: CheckpointConfig) -> frozenset[str]:
    """Return the programs that a checkpoint has learnt while it, or its base, was adapted."""
    digests = config.training.get(LEARNT)
    return frozenset(map(str, digests)) if isinstance(digests, list) else frozenset()


def learnt_by(bases: Sequence[CheckpointChoice], pool: CandidatePool) -> np.ndarray:
    """Return (k,) int64 indices of the candidates whose latency some checkpoint has learnt."""
    learnt = frozenset[str]().union(*(learnt_digests(base.checkpoint.config) for base in bases))
    digests = pool_digests(pool, range(len(pool))) if learnt else ()
    return np.array([index for index, digest in enumerate(digests) if digest in learnt], dtype=np.int64)


def withheld(
    corpus: Corpus, pool: CandidatePool, held: Iterable[int], learnt: Iterable[int]
) -> frozenset[tuple[str, str]]:
    """Return (task, key) of a corpus that are not learnt from it: what judges, and labels that are learnt here anyway.

    Of test tasks, which judge as a whole, it is every program. Cross-validation judges by the labels learnt here: a
    start that knew them of a corpus of this device would win by memory.
    """
    own: dict[str, set[str]] = {}  # keys by the tasks' names, and by what they compute
    for index in (*held, *(learnt if str(corpus.meta["device"]) == pool.device else ())):
        entry = pool.entries[int(index)]
        for name in (pool.tasks[entry.task].task_id, pool.computations[entry.task]):
            own.setdefault(name, set()).add(entry.key)
    judged = {normal(pool.computations[task]) for task in np.unique(pool.group[list(pool.judging)])}
    whole = [task for task, computed in computations(corpus).items() if computed in judged]
    keys = {(task, key) for task in whole for key in corpus.table(task, ["key"])["key"].to_pylist()}
    for name, task in corpus.tasks.items():
        keys |= {(name, key) for key in own.get(name, set()) | own.get(task.computation or name, set())}
    return frozenset(keys)


# The start ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarmStart:
    """The checkpoint that an adaptation starts from, chosen among all in `compared` if any; `base` is to be beaten."""

    chosen: CheckpointChoice
    base: CheckpointChoice
    reason: str = "it was asked for"
    compared: tuple[str, ...] = ()

    @property
    def model(self) -> CostModel:
        return self.chosen.checkpoint.model


def choose_start(sources: AdaptationSources, data: RankingDataset) -> WarmStart:
    """Choose the checkpoint that best ranks programs that none has learnt; too few labels keep the first."""
    bases, first = sources.bases, sources.bases[0]
    # Pairs of a task whose latencies are apart by more than the noise of measuring.
    pairs = sum(count_pairs(data.latency[members]) for members in data.members)
    if pairs < MIN_PAIRS:
        why = "was named" if sources.named else "is the first"
        reason = f"{first.entry.id}, which {why}: too few labels that no source has learnt ({pairs} ordered pairs)"
        return WarmStart(first, first, reason)
    scores = [base.checkpoint.model.score(data.features) for base in bases]
    accuracies = [pairwise_accuracy(own, data.latency, data.group) for own in scores]
    best = bases[int(np.argmax(accuracies))]
    names = tuple(base.entry.id for base in bases)
    shown = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in zip(names, accuracies, strict=True))
    reason = f"{best.entry.id} ranks the first {len(data)} programs that no source has learnt best (pairwise {shown})"
    return WarmStart(best, first if sources.named else best, reason, names)

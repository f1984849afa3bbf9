"""`--from`: checkpoints to start from and corpora of other devices to learn from, told apart and checked early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...zoo.errors import TchubError
from ..registry.errors import CheckpointNameError, UnknownCheckpointError
from .tools import Base

if TYPE_CHECKING:
    from ...zoo.adapt.methods import SourceData
    from ...zoo.corpus import Corpus
    from ...zoo.features import FeatureSchema

# Programs of a task that are learnt of a source's corpus: a task's first programs teach most.
PROGRAMS_PER_TASK = 200


class SourceSchemaError(TchubError):
    """A source reads other features than the base, or is of a device of another kind; fields: source."""


class SourceFolderError(TchubError):
    """What `--from` names is no folder of a checkpoint or corpus and no checkpoint, or not alone so; fields: source."""


@dataclass(frozen=True)
class Sources:
    """What an adaptation starts from.

    Attributes:
        bases: checkpoints, the first being the one that was named; they read the same features.
        named: whether the user named the first one, so that it is the one to beat.
        corpora: measured programs of other devices.
    """

    bases: tuple[Base, ...]
    named: bool
    corpora: tuple[Corpus, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the further checkpoints and of the corpora."""
        return (*(base.entry.id for base in self.bases[1:]), *map(corpus_name, self.corpora))


def corpus_name(corpus: Corpus) -> str:
    """What a corpus is called among the sources: its folder's name."""
    return corpus.path.resolve().name


def split_names(sources: str | Sequence[str]) -> tuple[str, ...]:
    """`A,B` or `["A", "B"]` as names, empty ones left out."""
    parts = sources.split(",") if isinstance(sources, str) else sources
    return tuple(part.strip() for part in parts if part.strip())


def open_sources(checkpoint: str | None, sources: Sequence[str], find_base: Callable[[str | None], Base]) -> Sources:
    """Load the checkpoints, open the corpora, and see that they fit each other.

    Args:
        checkpoint: the one to adapt; None for the first among the sources, or what fits this machine best.
        sources: names and folders of checkpoints, and folders of corpora.
        find_base: loads a checkpoint.

    Raises:
        SourceSchemaError: they do not fit.
        SourceFolderError: a source is neither a checkpoint nor a corpus, or two corpora have one name.
        EmptyDatasetError: a corpus has no task with programs to compare.
        TchubError: whatever loading raises.
    """
    from ...zoo.corpus import Corpus
    from ...zoo.corpus.schema import META_FILE

    folders = [name for name in sources if (Path(name) / META_FILE).is_file()]
    names = [name for name in sources if name not in folders]
    first = (replace(find_base(checkpoint), asked=checkpoint),) if checkpoint is not None or not names else ()
    bases = (*first, *(replace(_find_source(name, find_base), asked=name) for name in names))
    corpora = tuple(Corpus.open(Path(folder)) for folder in folders)
    for base in bases[1:]:
        _check_checkpoint(bases[0], base)
    for corpus in corpora:
        _check_corpus(bases[0], corpus)
    _check_names(corpora)
    return Sources(bases, checkpoint is not None or len(bases) == 1, corpora)


def _check_names(corpora: Sequence[Corpus]) -> None:
    """What is learnt, left out and licensed is told by the corpus's name."""
    names = [corpus_name(corpus) for corpus in corpora]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SourceFolderError(
            f"two corpora of --from are called {twice}",
            remedy="give their folders different names",
            source=twice,
        )


def _find_source(name: str, find_base: Callable[[str | None], Base]) -> Base:
    """A checkpoint among the sources; of a folder the registry knows only that it is no name."""
    try:
        return find_base(name)
    except (CheckpointNameError, UnknownCheckpointError) as error:
        if Path(name).is_dir():
            what = "the folder holds neither a corpus.json nor a config.json"
        elif "/" in name or Path(name).exists():
            what = "there is no such folder"
        else:
            raise
        raise SourceFolderError(
            f"{name} is neither a corpus nor a checkpoint: {what}",
            remedy="name folders of corpora (`tchub corpus stats DIR` reads one), and folders or names of checkpoints",
            source=name,
        ) from error


def _check_checkpoint(first: Base, other: Base) -> None:
    ours, theirs = first.checkpoint.config, other.checkpoint.config
    if (ours.feature_schema, ours.feature_version) != (theirs.feature_schema, theirs.feature_version):
        raise SourceSchemaError(
            f"{other.entry.id} reads {theirs.feature_schema} version {theirs.feature_version}, "
            f"{first.entry.id} reads {ours.feature_schema} version {ours.feature_version}",
            remedy=f"name sources that read {ours.feature_schema} (`tchub list` shows the features of each)",
            source=other.entry.id,
        )


def _check_corpus(first: Base, corpus: Corpus) -> None:
    from ...zoo.corpus import EmptyDatasetError, usable_programs
    from ...zoo.training.read import corpus_device

    schema, device = _schema(first), corpus_device(corpus)
    if device.kind != schema.kind:
        raise SourceSchemaError(
            f"{corpus.path} is of {device.name}, a {device.kind.upper()}; {first.entry.id} reads {schema.name}, "
            f"features of programs for a {schema.kind.upper()}",
            remedy=f"name corpora of a {schema.kind.upper()}",
            source=str(corpus.path),
        )
    if not any(usable_programs(corpus, [task]).programs for task in corpus.tasks):
        raise EmptyDatasetError(f"{corpus.path} has no task with programs to compare", remedy="leave it out of --from")


def read_sources(
    base: Base,
    corpora: Sequence[Corpus],
    store: Path,
    seed: int,
    without: Callable[[Corpus], frozenset[tuple[str, str]]] = lambda corpus: frozenset(),
) -> tuple[SourceData, ...]:
    """Programs of the corpora in the base's features, with each one's own hardware row.

    Args:
        base: a checkpoint that learning begins with, whose feature schema decides.
        corpora: of other devices, or of this one.
        store: folder that keeps features of lowered programs.
        seed: of the choice of programs of large tasks.
        without: (task, key) of a corpus's programs that may not be learnt.

    Returns:
        Those corpora that have a task with programs to compare beside these.
    """
    from ...zoo.adapt.methods import SourceData
    from ...zoo.training.inputs import StatementStore
    from ...zoo.training.read import Share, corpus_device, read_programs

    found, schema = [], _schema(base)
    for corpus in corpora:
        share = Share(per_task=PROGRAMS_PER_TASK, seed=seed, without=without(corpus))
        data, _ = read_programs(corpus, sorted(corpus.tasks), schema, StatementStore(store), share)
        if data is not None:
            found.append(SourceData(corpus_name(corpus), corpus_device(corpus), data))
    return tuple(found)


def _schema(base: Base) -> FeatureSchema:
    from ...zoo.features import get_schema

    return get_schema(base.checkpoint.config.feature_schema)

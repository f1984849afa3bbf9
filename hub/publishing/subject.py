"""The checkpoint that is checked: its folder, and what its files say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cards import CardData, CardError
from ..registry.entry import as_object
from ..registry.files import CARD_FILE, CONFIG_FILE, METRICS_FILE, read_json
from ..registry.index import Index

if TYPE_CHECKING:
    from ...zoo.corpus import Corpus
    from ...zoo.models import Checkpoint

TOLERANCE = 0.002
MAX_TEXT_BYTES = 4 << 20


@dataclass(frozen=True)
class Subject:
    """One checkpoint, and what it is checked against. Files are read when a question first needs them.

    Attributes:
        index: the published checkpoints.
        corpora: measured programs at hand, by their folders' names.
        tolerance: how far a score may be from the published one.
        threads: that may be used.
        note: told what is being done.
    """

    folder: Path
    index: Index
    corpora: dict[str, Corpus] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    threads: int = 1
    note: Callable[[str], None] = lambda _: None

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json; {} without one."""
        return read_json(self.folder / CONFIG_FILE)

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """metrics.json; {} without one."""
        return read_json(self.folder / METRICS_FILE)

    @cached_property
    def text(self) -> str:
        """The card; empty without one. Raises CardError for one that is no text."""
        path = self.folder / CARD_FILE
        try:
            with path.open("rb") as file:
                return file.read(MAX_TEXT_BYTES).decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            remedy = "write it again from config.json and metrics.json"
            raise CardError(f"{CARD_FILE} cannot be read: {error}", remedy=remedy, field=CARD_FILE) from error

    @cached_property
    def card(self) -> CardData:
        """What the card must say; raises CardError for a field of a wrong type."""
        return CardData.from_files(self.config, self.metrics)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Audited and loaded; raises CheckpointError."""
        from ...zoo.models import Checkpoint

        return Checkpoint.load(self.folder)

    @property
    def lineage(self) -> dict[str, Any]:
        """`lineage` of the config."""
        return as_object(self.config.get("lineage"))

    @property
    def is_base(self) -> bool:
        """Whether it is a knowledge base, whose devices are judged one by one."""
        return self.card.is_knowledge_base

    def missing(self, names: Sequence[str]) -> list[str]:
        """Corpora of these names that are not at hand, each once."""
        return [name for name in dict.fromkeys(names) if name not in self.corpora]


def open_corpora(corpora: Sequence[Path | str | Corpus]) -> dict[str, Corpus]:
    """Corpora by their folders' names, which is how a config names them.

    Raises:
        CorpusError: a folder is none.
    """
    from ...zoo.corpus import Corpus

    opened = [corpus if isinstance(corpus, Corpus) else Corpus.open(corpus) for corpus in corpora]
    return {corpus.path.resolve().name: corpus for corpus in opened}

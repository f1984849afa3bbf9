"""What a knowledge base's config tells of the devices that it has learnt, and of the tasks it may never learn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ...corpus.schema import PROGRAMS_FILE
from ...models import CheckpointConfig
from ...models.registry import get_architecture
from .errors import NotAKnowledgeBaseError

if TYPE_CHECKING:
    from ...corpus import Corpus

# Digits of a computation's hash: among 100,000 computations, two share one with a probability of 2 in 100,000.
_DIGITS = 12


@dataclass(frozen=True)
class LearntDevice:
    """One device, in the order of learning: an entry of `lineage.devices`.

    Attributes:
        corpus: its folder's name; sha256: of its programs; device: where they were measured.
        licence, source: of the corpus.
        version: of the knowledge base that learnt it first.
        tasks, programs: learnt from.
        gate: mean gate of the distillation (equations 10 and 11); None for the first device, which has none. It
            compares the device's batches with each other, and says nothing of the device.
        validation: scores on its validation tasks, of `before` (the base as it came), `column` and `base`.
        test: scores on its test tasks right after it was learnt, of `column` and `base`.
        warning: that the base ranks its validation tasks worse than before it learnt them; None: it does not, beyond
            doubt, or nothing tells.
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

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class SeenTasks:
    """What the tasks of all devices so far compute, as hashes: an entry `seen` of `training`.

    Attributes:
        learnt: that some device's programs taught; test: that judge some device.
    """

    learnt: frozenset[str] = frozenset()
    test: frozenset[str] = frozenset()

    def with_device(self, learnt: Iterable[str], test: Iterable[str]) -> SeenTasks:
        """After one more device."""
        return SeenTasks(self.learnt | set(learnt), self.test | set(test))

    def as_dict(self) -> dict[str, list[str]]:
        """JSON form."""
        return {"learnt": sorted(self.learnt), "test": sorted(self.test)}


def learnt_devices(config: CheckpointConfig) -> tuple[LearntDevice, ...]:
    """The devices of a knowledge base, first learnt first.

    Raises:
        NotAKnowledgeBaseError: the checkpoint is none, or does not tell them.
    """
    if get_architecture(config.arch).kind != "knowledge base":
        raise NotAKnowledgeBaseError(
            f"{config.name} is an ordinary checkpoint of {config.arch}, not a knowledge base",
            remedy=f"begin one with `new:{config.arch}`, or adapt this one: tchub adapt {config.name}",
            name=config.name,
            arch=config.arch,
        )
    known = {f.name for f in fields(LearntDevice)}
    try:
        return tuple(
            LearntDevice(**{k: v for k, v in entry.items() if k in known}) for entry in config.lineage["devices"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise NotAKnowledgeBaseError(
            f"{config.name} does not tell which devices it has learnt ({error!r})",
            remedy="use a knowledge base of `tchub distill`",
            name=config.name,
            arch=config.arch,
        ) from error


def seen_tasks(config: CheckpointConfig) -> SeenTasks:
    """Of a knowledge base that `learnt_devices` reads; nothing where it does not tell."""
    seen = config.training.get("seen")
    told = seen if isinstance(seen, dict) else {}
    return SeenTasks(*(frozenset(map(str, told.get(part) or ())) for part in ("learnt", "test")))


def computation_key(computation: str) -> str:
    """What stands for a computation in a config."""
    return hashlib.sha256(computation.encode()).hexdigest()[:_DIGITS]


def programs_digest(corpus: Corpus) -> str:
    """sha256 of a corpus's programs, hex."""
    told = corpus.meta.get("files", {}).get(PROGRAMS_FILE, {}).get("sha256")
    if isinstance(told, str):
        return told
    with (corpus.path / PROGRAMS_FILE).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

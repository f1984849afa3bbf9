"""What a checkpoint learnt from: its corpora, their licences, and whether its own device is among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..zoo.devices import get_device
from ..zoo.errors import TchubError
from .devices import KINDS
from .errors import CardError
from .fields import read_object, read_objects, read_text, read_texts, read_whole, wrong

MEASURED, TRANSFERRED = "measured", "transferred"


@dataclass(frozen=True)
class Corpus:
    """Measured programs that the checkpoint learnt from, or, with 0 programs, is only judged by.

    Attributes:
        threads: with which its programs ran; None where the log does not say.
        programs, tasks: learnt from; without_features: programs that the schema could not describe.
        source: where the log was published.
    """

    name: str | None = None
    device: str | None = None
    cpu_model: str | None = None
    framework: str | None = None
    licence: str | None = None
    source: str | None = None
    threads: int | None = None
    programs: int | None = None
    tasks: int | None = None
    without_features: int | None = None
    how: str | None = None
    networks: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    @property
    def unlicensed(self) -> bool:
        """Whether the log came without a licence (`none found`)."""
        return self.licence is not None and self.licence.lower().startswith("none")

    @property
    def copyleft(self) -> bool:
        """Whether the log is under a GNU licence."""
        return self.licence is not None and "GPL" in self.licence.upper()


@dataclass(frozen=True)
class Origin:
    """Whether the device that a checkpoint is for was measured.

    Attributes:
        data: `measured` when programs of the family's own devices are in the training, `transferred` when none
            are, or only those of a stand-in; None when the training's devices are not known.
        own: devices of the family that were measured; others: the other devices.
        stand_in: which device stands in for the family's own.
    """

    data: str | None = None
    own: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    stand_in: str | None = None


def read_corpora(training: Mapping[str, Any]) -> tuple[Corpus, ...]:
    """The target's corpus first, then the sources; () when the config names none."""
    raw = training.get("corpus")
    first = {"name": raw} if isinstance(raw, str) else read_object(training, "corpus")
    return tuple(_corpus(item) for item in (first, *read_objects(training, "sources")) if item)


def _corpus(raw: Mapping[str, Any]) -> Corpus:
    texts = ("name", "device", "cpu_model", "framework", "licence", "source", "how")
    facts: dict[str, Any] = {key: read_text(raw, key) for key in texts}
    facts |= {key: read_whole(raw, key) for key in ("threads", "programs", "tasks")}
    facts |= {key: read_texts(raw, key) for key in ("networks", "held_out")}
    return Corpus(**facts, without_features=read_whole(raw, "programs_without_features"))


def origin(lineage: Mapping[str, Any], corpora: Sequence[Corpus], family: str, own_device: str | None = None) -> Origin:
    """Where the training's programs were measured, as far as the device family is concerned.

    Args:
        lineage: of the config: `data`, `measured_on`, `stand_in`; what it does not say follows from the corpora.
        corpora: of `read_corpora`.
        family: that the checkpoint is for; of a knowledge base the kind of its devices.
        own_device: name of the config's own device, which may be no published one.

    Raises:
        CardError: the lineage says `measured`, and no program of the family is in the training.
    """
    told, stand_in = read_text(lineage, "data"), read_text(lineage, "stand_in")
    trained = [c.device for c in corpora if c.device and c.programs != 0]
    devices = tuple(dict.fromkeys(read_texts(lineage, "measured_on") or trained))
    own = tuple(d for d in devices if not stand_in and (d == own_device or belongs(d, family)))
    if told not in (None, MEASURED, TRANSFERRED):
        raise wrong("data", f"{MEASURED} or {TRANSFERRED}")
    if told == MEASURED and not own:
        raise CardError(
            f"lineage.data is {MEASURED}, but no device of the family {family} is in the training",
            remedy=f"say {TRANSFERRED}, or name the device in lineage.measured_on",
            field="data",
        )
    known = (MEASURED if own else TRANSFERRED) if devices else None
    return Origin(told or known, own, tuple(d for d in devices if d not in own), stand_in)


def belongs(device: str, family: str) -> bool:
    """Whether a device with a spec sheet is of a family, or of a kind."""
    try:
        known = get_device(device)
    except TchubError:
        return False
    return family == (known.kind if family in KINDS else known.family)


def licences(corpora: Sequence[Corpus]) -> tuple[str, ...]:
    """Every licence of the corpora, each once."""
    return tuple(dict.fromkeys(c.licence for c in corpora if c.licence))

"""Does a checkpoint fit a device, and what was measured of it there? A verdict with its reason in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...zoo.devices import Device, UnknownDeviceError, distance, get_device
from ...zoo.devices.registry import OTHER
from .compat import why_not
from .entry import TRANSFER, Entry
from .fields import is_number

_CHANCE = 0.5  # the pairwise accuracy of choosing at random


@dataclass(frozen=True)
class Measured:
    """What a checkpoint scored on a device, on programs that it had not seen.

    Attributes:
        here: whether that is the very device that is asked about; else it is one of its family.
    """

    device: str
    here: bool
    pairwise: float | None = None
    top1: float | None = None
    tasks: float | None = None

    @property
    def by_chance(self) -> bool:
        """Whether it ranked pairs of programs no better than a coin would."""
        return self.pairwise is not None and self.pairwise <= _CHANCE

    def __str__(self) -> str:
        names = {"top1": "top-1", "pairwise": "pairwise"}
        told = [f"{text} {value:.2f}" for key, text in names.items() if (value := getattr(self, key)) is not None]
        where = f"{'this device' if self.here else 'its family'} ({self.device})"
        tasks = "" if self.tasks is None else f" of {self.tasks:g} task{'s' if self.tasks != 1 else ''}"
        return f"measured on {where}: {', '.join(told) or '-'}{tasks}"


@dataclass(frozen=True)
class Verdict:
    """What the resolution thought of one checkpoint.

    Attributes:
        reason: why it fits, or why it does not.
        rank: the device distance's rank, smaller is nearer; None when it was rejected.
        gap: how far the spec sheets are apart; None when it was rejected.
        measured: its score on the device or its family; None where there is none.
        passed_over: why another one was chosen; empty for the chosen one.
    """

    id: str
    accepted: bool
    reason: str
    rank: int | None = None
    gap: float | None = None
    measured: Measured | None = None
    passed_over: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


def rejected(entry: Entry, reason: str) -> Verdict:
    """The verdict on a checkpoint that is out of the question."""
    return Verdict(entry.id, False, reason, passed_over=reason)


def judge(entry: Entry, device: Device) -> Verdict:
    """Whether a checkpoint fits a device, and why."""
    reason = why_not(entry) or (f"deprecated: {entry.deprecated}" if entry.deprecated else None)
    if reason:
        return rejected(entry, reason)
    if entry.is_knowledge_base:
        return _judge_knowledge_base(entry, device)
    trained_on = _trained_on(entry)
    if trained_on is None:
        return rejected(entry, f"no spec sheet of its device family {entry.family} is known")
    found = distance(device, trained_on)
    if not found.compatible:
        return rejected(entry, found.reason)
    measured = measured_near(entry, device)
    reason = f"{found.reason}; {measured}" if measured else found.reason
    return Verdict(entry.id, True, reason, found.rank, found.gap, measured)


def measured_near(entry: Entry, device: Device) -> Measured | None:
    """Its score on this device, else the best-known one on a device of the family (of most tasks)."""
    near = [
        Measured(known.name, known.name == device.name, **{key: _number(row.get(key)) for key in TRANSFER})
        for name, row in _scores(entry).items()
        if (known := _known(name)) and known.family == device.family
    ]
    telling = [one for one in near if one.top1 is not None or one.pairwise is not None]
    return max(telling, key=lambda one: (one.here, one.tasks or 0, one.device), default=None)


def _scores(entry: Entry) -> dict[str, Mapping[str, Any]]:
    """By device; the held-out networks of its own corpus were measured on that corpus's device."""
    if entry.is_knowledge_base:
        return dict(entry.transfer)
    return {**entry.transfer, str(entry.data.get("device")): entry.metrics}


def _number(value: Any) -> float | None:
    return value if is_number(value) else None


def _judge_knowledge_base(entry: Entry, device: Device) -> Verdict:
    """It knows several devices and is tuned to none: every family of the device's instruction set is nearer."""
    if entry.family != device.kind:
        return rejected(entry, f"{device.name} is a {device.kind}, it has learnt {entry.family}s")
    known = ", ".join(entry.measured_on)
    reason = f"a knowledge base of {entry.family}s ({known}), to adapt from; a family's own checkpoint goes before it"
    return Verdict(entry.id, True, reason, OTHER, 0.0, measured_near(entry, device))


def _trained_on(entry: Entry) -> Device | None:
    """The device whose programs it learnt from, or its family where that device has no data file."""
    return _known(str(entry.data.get("device"))) or _known(entry.family)


def _known(name: str) -> Device | None:
    try:
        return get_device(name)
    except UnknownDeviceError:
        return None

"""From a name, or from a device, to one checkpoint; every other one is passed over with a reason."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...zoo.devices import Device, distance, get_device
from ...zoo.devices.distance import OTHER
from ...zoo.devices.errors import UnknownDeviceError
from .compat import require_loadable, why_not
from .entry import Entry
from .errors import CheckpointNameError, NoFittingCheckpointError, UnknownCheckpointError, UnknownVersionError
from .names import CheckpointName

_UNKNOWN_RANK = 99


@dataclass(frozen=True)
class Verdict:
    """What the resolution thought of one checkpoint.

    Attributes:
        rank: the device distance's rank, smaller is nearer; None when it was rejected.
        gap: decides within a rank; None when it was rejected.
    """

    id: str
    accepted: bool
    reason: str
    rank: int | None = None
    gap: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


@dataclass(frozen=True)
class Resolution:
    """The chosen entry, and the verdict on each candidate, nearest first, rejected ones last.

    Attributes:
        warnings: what the user should know about the choice: an old name, a deprecated checkpoint.
    """

    entry: Entry
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()


def resolve(entries: Iterable[Entry], name: str | None = None, device: Device | None = None) -> Resolution:
    """Choose a checkpoint by name, or the one that fits a device best.

    A name without a version means the newest version that this tchub can load. Without a name, published
    checkpoints are ranked by the distance of their device to this one, then by top-1; a knowledge base comes after
    every checkpoint of a family that has the device's instruction set.

    Args:
        entries: all known versions of all checkpoints.
        name: `arch-family[+variant][@X.Y.Z]`, or None.
        device: needed without a name; with one it only explains an unknown name.

    Raises:
        CheckpointNameError: neither a name nor a device, or a malformed name.
        UnknownCheckpointError, UnknownVersionError, IncompatibleCheckpointError: for a name.
        NoFittingCheckpointError: for a device.
    """
    entries = list(entries)
    if name is not None:
        return Resolution(_named(entries, name, device), ())
    if device is None:
        raise CheckpointNameError("neither a checkpoint nor a device was given", remedy="name one: see `tchub list`")
    ranked = [(verdict, entry) for entry in _newest(entries) for verdict in [judge(entry, device)]]
    ranked.sort(key=lambda pair: _order(*pair))
    verdicts = tuple(verdict for verdict, _ in ranked)
    if not ranked or not ranked[0][0].accepted:
        raise NoFittingCheckpointError(
            f"no checkpoint fits {device.name} ({trace_text(verdicts)})",
            remedy="collect and train one: tchub collect --device local, then tchub train",
            device=device.name,
            verdicts=[verdict.as_dict() for verdict in verdicts],
        )
    return Resolution(ranked[0][1], verdicts)


def judge(entry: Entry, device: Device) -> Verdict:
    """Whether a checkpoint fits a device, and why."""
    reason = why_not(entry) or (f"deprecated: {entry.deprecated}" if entry.deprecated else None)
    if reason:
        return Verdict(entry.id, False, reason)
    if entry.is_knowledge_base:
        return _judge_knowledge_base(entry, device)
    trained_on = _trained_on(entry)
    if trained_on is None:
        return Verdict(entry.id, False, f"no spec sheet of its device family {entry.family} is known")
    found = distance(device, trained_on)
    if not found.compatible:
        return Verdict(entry.id, False, found.reason)
    return Verdict(entry.id, True, found.reason, found.rank, found.gap)


def _judge_knowledge_base(entry: Entry, device: Device) -> Verdict:
    """It knows several devices and is tuned to none: every family of the device's instruction set is nearer."""
    if entry.family != device.kind:
        return Verdict(entry.id, False, f"{device.name} is a {device.kind}, it has learnt {entry.family}s")
    known = ", ".join(entry.measured_on)
    reason = f"a knowledge base of {entry.family}s ({known}), to adapt from; a family's own checkpoint goes before it"
    return Verdict(entry.id, True, reason, OTHER, 0.0)


def _trained_on(entry: Entry) -> Device | None:
    """The device whose programs it learnt from, or its family where that device has no data file."""
    for name in (entry.data.get("device"), entry.family):
        try:
            return get_device(str(name))
        except UnknownDeviceError:
            continue
    return None


def trace_text(verdicts: Iterable[Verdict]) -> str:
    """`tcl-epyc@1.0.0 fits: ...; tcl-t4@1.0.0 does not: ...`"""
    lines = [f"{v.id} {'fits' if v.accepted else 'does not'}: {v.reason}" for v in verdicts]
    return "; ".join(lines) or "no checkpoint is published"


def _named(entries: list[Entry], name: str, device: Device | None) -> Entry:
    wanted = CheckpointName.parse(name)
    versions = [entry for entry in entries if entry.name == wanted.name]
    if not versions:
        raise _unknown(entries, wanted.name, device)
    if wanted.version is not None:
        exact = [entry for entry in versions if entry.version == str(wanted.version)]
        if not exact:
            known = sorted((entry.semver for entry in versions), reverse=True)
            raise UnknownVersionError(
                f"{wanted.name} has no version {wanted.version}",
                remedy=f"use one of: {', '.join(map(str, known))}",
                name=wanted.name,
                version=str(wanted.version),
                known=[str(version) for version in known],
            )
        versions = exact
    newest = _loadable(versions) or max(versions, key=lambda entry: entry.semver)
    require_loadable(newest)
    return newest


def _loadable(versions: list[Entry]) -> Entry | None:
    """The newest that this tchub can load; a pre-release only when there is no release."""
    usable = [entry for entry in versions if why_not(entry) is None]
    return max(usable, key=lambda entry: (not entry.semver.pre, entry.semver), default=None)


def _newest(entries: list[Entry]) -> list[Entry]:
    """One version of each published checkpoint; of those that cannot be loaded the newest, to say why."""
    names = sorted({entry.name for entry in entries if not entry.is_local})
    groups = [[entry for entry in entries if entry.name == name] for name in names]
    return [_loadable(group) or max(group, key=lambda entry: entry.semver) for group in groups]


def _order(verdict: Verdict, entry: Entry) -> tuple[Any, ...]:
    rank = _UNKNOWN_RANK if verdict.rank is None else verdict.rank
    return (not verdict.accepted, rank, verdict.gap or 0.0, -(entry.metrics.get("top1") or 0.0), verdict.id)


def _unknown(entries: list[Entry], name: str, device: Device | None) -> UnknownCheckpointError:
    names = sorted({entry.name for entry in entries})
    nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    message = f"no checkpoint is called {name}"
    if nearest:
        message += f"; nearest: {', '.join(nearest)}"
    verdicts = sorted((judge(entry, device) for entry in _newest(entries)), key=_nearness) if device else []
    if device:
        message += f". For this device ({device.name}): {trace_text(verdicts)}"
    fitting = next((verdict.id.partition("@")[0] for verdict in verdicts if verdict.accepted), None)
    choice = nearest[0] if nearest else fitting
    return UnknownCheckpointError(
        message,
        remedy=f"try {choice}; `tchub list` shows all" if choice else "`tchub list` shows all",
        name=name,
        nearest=nearest,
        verdicts=[verdict.as_dict() for verdict in verdicts],
    )


def _nearness(verdict: Verdict) -> tuple[Any, ...]:
    return (not verdict.accepted, verdict.rank or 0, verdict.gap or 0.0, verdict.id)

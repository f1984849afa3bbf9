"""From a name, a device family or a device to one checkpoint; every other one is passed over with a reason."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...zoo.devices import Device, UnknownDeviceError, get_device, list_devices
from .entry import Entry
from .errors import CheckpointNameError, UnknownCheckpointError
from .fit import Verdict, in_order, judge, rejected, require_loadable, why_not
from .names import CheckpointName

NO_ALIASES: Mapping[str, str] = {}
_SHOWN = 3  # verdicts that an error's sentence has room for; its field `verdicts` has all


@dataclass(frozen=True)
class Resolution:
    """The chosen entry, and the verdict on each candidate, the chosen one first, rejected ones last.

    The candidates are all published checkpoints for a device, those of the family for a family's name, and for a
    checkpoint's name the chosen version with each newer one.

    Attributes:
        warnings: what the user should know about the choice: an old name, a deprecated checkpoint.
    """

    entry: Entry
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()


def resolve(
    entries: Iterable[Entry],
    name: str | None = None,
    device: Device | None = None,
    aliases: Mapping[str, str] = NO_ALIASES,
) -> Resolution:
    """Choose a checkpoint by name, by family, or the one that fits a device best.

    A name without a version means the newest version that can be used here and is not deprecated. Without a name,
    and within a family, `fit` decides.

    Args:
        entries: all known versions of all checkpoints.
        name: `arch-family[+variant][@X.Y.Z]`; or a family or device, for the best checkpoint of that family; or None.
        device: needed without a name; with one it only explains an unknown name.
        aliases: a checkpoint's old name -> its new name.

    Raises:
        CheckpointNameError: neither a name nor a device, or a malformed name.
        UnknownCheckpointError: no such name or version, it cannot be used here, or none fits.
    """
    entries = list(entries)
    if name is not None:
        return _called(entries, name, device, aliases)
    if device is None:
        raise CheckpointNameError("neither a checkpoint nor a device was given", remedy="name one: see `tchub list`")
    return _best(_newest(entries), device, f"no checkpoint fits {device.name}")


def trace_text(verdicts: Sequence[Verdict]) -> str:
    """Return the first verdicts as one line: `tcl-epyc@1.0.0 fits: ...; tcl-t4@1.0.0 does not: ...`."""
    lines = [f"{v.id} {'fits' if v.accepted else 'does not'}: {v.reason}" for v in verdicts[:_SHOWN]]
    lines += [f"and {len(verdicts) - _SHOWN} more"] if len(verdicts) > _SHOWN else []
    return "; ".join(lines) or "no checkpoint is published"


def _called(entries: list[Entry], name: str, device: Device | None, aliases: Mapping[str, str]) -> Resolution:
    """Choose by a checkpoint's own name, else by an old one, else by a family."""
    plain, at, version = name.partition("@")
    if all(entry.name != plain for entry in entries):
        if plain in aliases:
            resolution = _named(entries, aliases[plain] + at + version, device)
            note = f"{plain} is called {aliases[plain]} now"
            return replace(resolution, warnings=(note, *resolution.warnings))
        if family := None if at else _family_of(name):
            of_family = [entry for entry in _newest(entries) if entry.family == family]
            return _best(of_family, get_device(name), f"no checkpoint of the family {family} can be used")
    return _named(entries, name, device)


def _family_of(name: str) -> str | None:
    """Return the family of a device or family name; None for another name."""
    try:
        return get_device(name).family
    except UnknownDeviceError:
        return None


def _best(candidates: list[Entry], device: Device, none_fits: str) -> Resolution:
    """Choose the one that fits the device best."""
    ranked = in_order((judge(entry, device), entry) for entry in candidates)
    verdicts = tuple(verdict for verdict, _ in ranked)
    if not ranked or not ranked[0][0].accepted:
        raise UnknownCheckpointError(
            f"{none_fits} ({trace_text(verdicts)})",
            remedy="collect and train one: tchub collect --device local, then tchub train",
            device=device.name,
            verdicts=[verdict.as_dict() for verdict in verdicts],
        )
    return Resolution(ranked[0][1], verdicts)


def _named(entries: list[Entry], name: str, device: Device | None) -> Resolution:
    wanted = _parsed(entries, name)
    versions = [entry for entry in entries if entry.name == wanted.name]
    if not versions:
        if wanted.variant and any(entry.name == wanted.base for entry in entries):
            raise _unadapted(entries, wanted)
        raise _unknown(entries, wanted.name, device)
    if wanted.version is not None:
        versions = _exactly(versions, wanted)
    chosen = _newest_of(versions)
    require_loadable(chosen)
    verdict = Verdict(chosen.id, True, "named" if wanted.version else "the newest version that can be used here")
    newer = tuple(_other_version(entry, chosen) for entry in versions if entry.semver > chosen.semver)
    note = (f"{chosen.id} is deprecated: {chosen.deprecated}",) if chosen.deprecated else ()
    return Resolution(chosen, (verdict, *newer), note)


def _parsed(entries: list[Entry], name: str) -> CheckpointName:
    try:
        return CheckpointName.parse(name)
    except CheckpointNameError as error:
        if Path(name).is_dir():
            lacks = "it is a folder" + ("" if (Path(name) / "config.json").is_file() else " without a config.json")
            raise CheckpointNameError(f"{error.message}; {lacks}", remedy=error.remedy, name=name) from None
        known = {entry.name for entry in entries}.union(*((d.name, d.family, *d.aliases) for d in list_devices()))
        nearest = difflib.get_close_matches(name.lower(), sorted(known), n=3, cutoff=0.75)
        if not nearest or "@" in name:
            raise
        message = f"{error.message}; nearest: {', '.join(nearest)}"
        raise CheckpointNameError(message, remedy=f"try {nearest[0]}; {error.remedy}", name=name) from None


def _exactly(versions: list[Entry], wanted: CheckpointName) -> list[Entry]:
    exact = [entry for entry in versions if entry.version == str(wanted.version)]
    if not exact:
        known = sorted((entry.semver for entry in versions), reverse=True)
        raise UnknownCheckpointError(
            f"{wanted.name} has no version {wanted.version}",
            remedy=f"use one of: {', '.join(map(str, known))}",
            name=wanted.name,
            version=str(wanted.version),
            known=[str(version) for version in known],
        )
    return exact


def other_versions(entries: Iterable[Entry], verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Judge the versions that a resolution did not look at, because another one of the checkpoint was taken."""
    known = {entry.id: entry for entry in entries}
    judged = [known[verdict.id] for verdict in verdicts if verdict.id in known]
    taken = {entry.name: entry for entry in reversed(judged)}  # the first verdict on a name is on the version it means
    rest = [entry for entry in known.values() if entry.name in taken and entry not in judged]
    return [_other_version(e, taken[e.name]) for e in sorted(rest, key=lambda e: (e.name, e.semver), reverse=True)]


def _other_version(entry: Entry, taken: Entry) -> Verdict:
    if reason := why_not(entry):
        return rejected(entry, reason)
    if entry.deprecated:
        return rejected(entry, f"deprecated: {entry.deprecated}")
    if entry.semver.pre and not taken.semver.pre:
        reason = "a pre-release, taken only by its name"
    else:
        reason = f"{'older' if entry.semver < taken.semver else 'newer'} than {taken.version}"
    return Verdict(entry.id, True, "can be used here", passed_over=reason)


def _newest(entries: list[Entry]) -> list[Entry]:
    """Return one version of each published checkpoint."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if not entry.is_local:
            groups.setdefault(entry.name, []).append(entry)
    return [_newest_of(group) for group in groups.values()]


def _newest_of(versions: list[Entry]) -> Entry:
    """Return the newest that can be used; a deprecated one or a pre-release only when there is no other.

    Of those that cannot be used the newest, to say why.
    """
    return max(
        versions,
        key=lambda entry: (why_not(entry) is None, not entry.deprecated, not entry.semver.pre, entry.semver),
    )


def _unadapted(entries: list[Entry], wanted: CheckpointName) -> UnknownCheckpointError:
    """Return the error of a checkpoint that would be made on this machine."""
    local = sorted({entry.name for entry in entries if entry.is_local})
    near = difflib.get_close_matches(wanted.name, local, n=3, cutoff=0.6)
    why = "nobody adapted it on this machine, or adapting did not rank programs better and kept the base"
    remedy = f"run: tchub adapt {wanted.base}; or use {wanted.base} itself"
    return UnknownCheckpointError(
        f"there is no {wanted.name}: {why}" + (f"; nearest: {', '.join(near)}" if near else ""),
        remedy=f"try {near[0]}; or {remedy}" if near else remedy,
        name=wanted.name,
        nearest=near,
        verdicts=[],
    )


def _unknown(entries: list[Entry], name: str, device: Device | None) -> UnknownCheckpointError:
    names = sorted({entry.name for entry in entries})
    nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    message = f"no checkpoint is called {name}"
    if nearest:
        message += f"; nearest: {', '.join(nearest)}"
    verdicts = [v for v, _ in in_order((judge(entry, device), entry) for entry in _newest(entries))] if device else []
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

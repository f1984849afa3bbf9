"""From a name, a device family or a device to one checkpoint; every other one is passed over with a reason.

For a device the nearest checkpoint is taken; of equally near ones that which was measured on this very device, then on
its family, then nowhere there, and last what ranked no better than chance; of those whose top-1 there is as good as
the best one's, by what so few tasks can tell, that which learnt from the most corpora; then the highest top-1 and
pairwise accuracy measured there, the nearest spec sheet, the highest top-1 on its own held-out networks, the first by
name.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import sqrt
from pathlib import Path
from typing import Any

from ...zoo.devices import Device, distance, known_device, list_devices
from ...zoo.devices.registry import OTHER
from ...zoo.errors import TchubError
from .entry import TRANSFER, CheckpointName, Entry
from .errors import CheckpointNameError, UnknownCheckpointError

CHECKPOINT_FORMAT = 1  # equal to `zoo.models`' own number (a test holds them together); importing that loads torch
_TVM = "apache-tvm"
_CHANCE = 0.5  # the pairwise accuracy of choosing at random
_SHOWN = 3  # verdicts that an error's sentence has room for; its field `verdicts` has all


@dataclass(frozen=True)
class Score:
    """A checkpoint's scores on a device, on programs that it had not seen.

    Attributes:
        here: True for the very device that is asked about, False for one of its family.
    """

    device: str
    here: bool
    pairwise: float | None = None
    top1: float | None = None
    tasks: float | None = None

    @property
    def by_chance(self) -> bool:
        return self.pairwise is not None and self.pairwise <= _CHANCE

    def __str__(self) -> str:
        names = {"top1": "top-1", "pairwise": "pairwise"}
        scores = [f"{text} {value:.2f}" for key, text in names.items() if (value := getattr(self, key)) is not None]
        tasks = "" if self.tasks is None else f" of {self.tasks:g} task{'s' if self.tasks != 1 else ''}"
        return f"measured on {'this device' if self.here else 'its family'} ({self.device}): {', '.join(scores)}{tasks}"


@dataclass(frozen=True)
class Verdict:
    """The judgement of the resolution on one checkpoint.

    Attributes:
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
    measured: Score | None = None
    passed_over: str = ""


@dataclass(frozen=True)
class Resolution:
    """The chosen entry, and the verdict on each candidate, the chosen one first, rejected ones last.

    The candidates are all published checkpoints for a device, those of the family for a family's name, and for a
    checkpoint's name the chosen version with each newer one.

    Attributes:
        warnings: what the user should know about the choice: a deprecated checkpoint.
    """

    entry: Entry
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = ()


def resolve(
    entries: Iterable[Entry],
    name: str | None = None,
    device: Device | None = None,
    stand_ins: Mapping[str, str] | None = None,
) -> Resolution:
    """Choose a checkpoint by name, by family, or the one that fits a device best.

    Args:
        name: `arch-family[+variant][@X.Y.Z]`, without a version the newest that can be used here and is not deprecated;
            or a family or device, for the best checkpoint of that family; or None.
        device: needed without a name.
        stand_ins: a name under which adapting stored nothing -> the checkpoint that stands for it.

    Raises:
        CheckpointNameError: neither a name nor a device, or a malformed name.
        UnknownCheckpointError: no such name or version, it cannot be used here, or none fits.
    """
    entries = list(entries)
    if name is None:
        if device is None:
            message, remedy = "neither a checkpoint nor a device was given", "name one: see `tchub list`"
            raise CheckpointNameError(message, remedy=remedy)
        return _best(_newest(entries), device, f"no checkpoint fits {device.name}")
    plain = name.partition("@")[0]
    if all(entry.name != plain for entry in entries):
        if other := (stand_ins or {}).get(name):
            resolution = _named(entries, other)
            why = "adapted from a corpus" if "+" in other else "adapting ranked no better and kept it"
            return replace(resolution, warnings=(f"{name} is {other}: {why}", *resolution.warnings))
        if named := known_device(name):
            of_family = [entry for entry in _newest(entries) if entry.family == named.family]
            return _best(of_family, named, f"no checkpoint of the family {named.family} can be used")
    return _named(entries, name)


# Can this machine use it at all?


def require_loadable(entry: Entry) -> None:
    """Raise UnknownCheckpointError for a checkpoint that this tchub or the installed TVM cannot use."""
    if objection := _objection(entry):
        reason, remedy = objection
        fields = {key: getattr(entry, key) for key in ("name", "version", "format", "feature_schema", "tvm_range")}
        raise UnknownCheckpointError(f"{entry.id} cannot be used: {reason}", remedy=remedy, **fields)


@cache
def installed_tvm() -> str | None:
    """Return the version of the TVM that is installed, which is not imported for it; None for a build of one's own."""
    try:
        return version(_TVM)
    except PackageNotFoundError:
        return None


def _objection(entry: Entry) -> tuple[str, str] | None:
    """Return why a checkpoint cannot be used, and the remedy."""
    from packaging.specifiers import SpecifierSet

    from ...zoo.features import get_schema

    upgrade = "pip install -U tchub, or choose an older version of the checkpoint"
    if entry.format > CHECKPOINT_FORMAT:
        return f"its format {entry.format} is newer than this tchub's {CHECKPOINT_FORMAT}: upgrade tchub", upgrade
    try:
        schema = get_schema(entry.feature_schema)
    except TchubError:
        return f"it reads features {entry.feature_schema}, which this tchub does not make: upgrade tchub", upgrade
    if schema.version != entry.feature_version:
        wanted = f"version {entry.feature_version} of the features {schema.name}"
        return f"it reads {wanted}, this tchub makes version {schema.version}", upgrade
    tvm = installed_tvm()
    if tvm is None or SpecifierSet(entry.tvm_range).contains(tvm, prereleases=True):
        return None
    reason = f"it scores candidates of TVM {entry.tvm_range}, and TVM {tvm} is installed"
    return reason, f"pip install '{_TVM}{entry.tvm_range}', or choose another version of the checkpoint"


def _why_not(entry: Entry) -> str | None:
    """Return why a checkpoint is out of the question unless it is named, or None."""
    objection = _objection(entry)
    return objection[0] if objection else f"deprecated: {entry.deprecated}" if entry.deprecated else None


# Which one fits a device best?


def _judge(entry: Entry, device: Device) -> Verdict:
    if reason := _why_not(entry):
        return _rejected(entry, reason)
    score = _score_near(entry, device)
    if entry.is_knowledge_base:
        # It knows several devices and is tuned to none: every family of the instruction set is nearer.
        if entry.family != device.kind:
            return _rejected(entry, f"{device.name} is a {device.kind}, it has learnt {entry.family}s")
        known = f"a knowledge base of {entry.family}s ({', '.join(entry.measured_on)})"
        reason = f"{known}, to adapt from; a family's own checkpoint goes before it"
        return Verdict(entry.id, True, reason, OTHER, 0.0, score)
    trained_on = known_device(str(entry.data.get("device"))) or known_device(entry.family)
    if trained_on is None:
        return _rejected(entry, f"no spec sheet of its device family {entry.family} is known")
    gap = distance(device, trained_on)
    if trained_on.kind != device.kind:
        return _rejected(entry, gap.reason)
    return Verdict(entry.id, True, f"{gap.reason}; {score}" if score else gap.reason, gap.rank, gap.gap, score)


def _rejected(entry: Entry, reason: str) -> Verdict:
    return Verdict(entry.id, False, reason, passed_over=reason)


def _score_near(entry: Entry, device: Device) -> Score | None:
    """Return its score on this device, else the best-known one on a device of the family (of most tasks)."""
    rows: dict[str, Mapping[str, Any]] = dict(entry.transfer)
    if not entry.is_knowledge_base:  # its own held-out networks were measured on its corpus's device
        rows[str(entry.data.get("device"))] = entry.metrics
    scores = [
        Score(known.name, known.name == device.name, **{key: row.get(key) for key in TRANSFER})
        for name, row in rows.items()
        if (known := known_device(name)) and known.family == device.family
    ]
    telling = [score for score in scores if score.top1 is not None or score.pairwise is not None]
    return max(telling, key=lambda score: (score.here, score.tasks or 0, score.device), default=None)


def _best(candidates: list[Entry], device: Device, none_fits: str) -> Resolution:
    """Choose the one that fits the device best; each other one has the reason why it was passed over."""

    def group(verdict: Verdict) -> tuple[Any, ...]:
        score = verdict.measured
        measured = 2 if score is None else 3 if score.by_chance else not score.here
        return not verdict.accepted, verdict.rank or 0, measured

    def preference(judged: tuple[Verdict, Entry]) -> tuple[Any, ...]:
        verdict, entry = judged
        score = verdict.measured
        as_good = bool(score and score.top1 and score.top1 >= least[group(verdict)])
        sources = entry.lineage.get("sources")  # of a stranger's index anything
        corpora = -max(1, len(sources)) if as_good and isinstance(sources, Mapping) else -as_good
        accuracy = (-((score and score.top1) or 0.0), -((score and score.pairwise) or 0.0))
        own = -(entry.metrics.get("top1") or 0.0)
        return *group(verdict), not as_good, corpora, *accuracy, verdict.gap or 0.0, own, entry.id

    judged = [(_judge(entry, device), entry) for entry in candidates]
    # Two standard errors of a share of so many tasks, at most.
    least: dict[Any, float] = {}
    for verdict, _ in judged:
        if (score := verdict.measured) and score.top1:
            bound = score.top1 - (1 / sqrt(score.tasks) if score.tasks else 0.0)
            least[group(verdict)] = max(bound, least.get(group(verdict), 0.0))
    ranked = sorted(judged, key=preference)
    verdicts = tuple(_compared(verdict, ranked[0][0]) for verdict, _ in ranked)
    if not ranked or not verdicts[0].accepted:
        lines = [f"{v.id} {'fits' if v.accepted else 'does not'}: {v.reason}" for v in verdicts[:_SHOWN]]
        lines += [f"and {len(verdicts) - _SHOWN} more"] if len(verdicts) > _SHOWN else []
        raise UnknownCheckpointError(
            f"{none_fits} ({'; '.join(lines) or 'no checkpoint is published'})",
            remedy="collect and train one: tchub collect --device local, then tchub train",
            device=device.name,
            verdicts=[asdict(verdict) for verdict in verdicts],
        )
    return Resolution(ranked[0][1], verdicts)


def _compared(verdict: Verdict, chosen: Verdict) -> Verdict:
    """Return a verdict with the reason why the chosen one goes before it."""
    own, best = verdict.measured, chosen.measured
    if verdict is chosen or not verdict.accepted:
        return verdict
    if verdict.rank != chosen.rank:
        reason = f"farther: {verdict.reason}"
    elif own and own.by_chance and not (best and best.by_chance):
        reason = f"no better than chance: {own}"
    elif own or best:
        reason = f"{own or 'not measured on this device or its family'}; {chosen.id} was {best}"
        if own and best and own.here == best.here and (own.top1 or 0.0) > (best.top1 or 0.0):
            reason += ", as good by so few tasks, and learnt from more corpora"
    else:
        reason = f"{verdict.reason}; {chosen.id}: {chosen.reason}"
    return replace(verdict, passed_over=reason)


# Names and versions


def _named(entries: list[Entry], name: str) -> Resolution:
    wanted = _parsed(entries, name)
    versions = [entry for entry in entries if entry.name == wanted.name]
    if not versions:
        raise _unknown(entries, wanted)
    exact = [entry for entry in versions if wanted.version in (None, entry.semver)]
    if not exact:
        known = [str(version) for version in sorted((entry.semver for entry in versions), reverse=True)]
        message, remedy = f"{wanted.name} has no version {wanted.version}", f"use one of: {', '.join(known)}"
        fields = {"name": wanted.name, "version": str(wanted.version), "known": known}
        raise UnknownCheckpointError(message, remedy=remedy, **fields)
    chosen = _newest_of(exact)
    require_loadable(chosen)
    verdict = Verdict(chosen.id, True, "named" if wanted.version else "the newest version that can be used here")
    newer = tuple(_rejected(entry, _why_not(entry) or "") for entry in exact if entry.semver > chosen.semver)
    note = (f"{chosen.id} is deprecated: {chosen.deprecated}",) if chosen.deprecated else ()
    return Resolution(chosen, (verdict, *newer), note)


def _parsed(entries: list[Entry], name: str) -> CheckpointName:
    try:
        return CheckpointName.parse(name)
    except CheckpointNameError as error:
        message = error.message
        if Path(name).is_dir():
            lacks = "" if (Path(name) / "config.json").is_file() else " without a config.json"
            raise CheckpointNameError(f"{message}; it is a folder{lacks}", remedy=error.remedy, name=name) from None
        known = {entry.name for entry in entries}.union(*((d.name, d.family, *d.aliases) for d in list_devices()))
        nearest = difflib.get_close_matches(name.lower(), sorted(known), n=3, cutoff=0.75)
        if not nearest or "@" in name:
            raise
        remedy = f"try {nearest[0]}; {error.remedy}"
        raise CheckpointNameError(f"{message}; nearest: {', '.join(nearest)}", remedy=remedy, name=name) from None


def _newest(entries: list[Entry]) -> list[Entry]:
    """Return one version of each published checkpoint."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if not entry.is_local:
            groups.setdefault(entry.name, []).append(entry)
    return [_newest_of(group) for group in groups.values()]


def _newest_of(versions: list[Entry]) -> Entry:
    """Return the newest that can be used; a deprecated one only when there is no other, and else the newest."""
    return max(versions, key=lambda entry: (_objection(entry) is None, not entry.deprecated, entry.semver))


def _unknown(entries: list[Entry], wanted: CheckpointName) -> UnknownCheckpointError:
    """Return the error of a name that no checkpoint has, with the nearest names."""
    names = sorted({entry.name for entry in entries})
    message, remedy = f"no checkpoint is called {wanted.name}", "`tchub list` shows all"
    unadapted = wanted.variant is not None and wanted.base in names
    if unadapted:
        message = f"there is no {wanted.name}: nobody adapted it on this machine"
        remedy = f"run: tchub adapt {wanted.base}; or use {wanted.base}"
        names = [name for name in names if "+" in name]
    nearest = difflib.get_close_matches(wanted.name, names, n=3, cutoff=0.6)
    if nearest:
        message, remedy = f"{message}; nearest: {', '.join(nearest)}", f"try {nearest[0]}; {'or ' * unadapted}{remedy}"
    return UnknownCheckpointError(message, remedy=remedy, name=wanted.name, nearest=nearest)

"""Does a checkpoint fit a device, what was measured of it there, and which one is taken of those that fit?

The order: the rank of the device distance; then whether it was measured on this very device, on its family, or not
at all (and last what ranked no better than chance there); then top-1 and pairwise accuracy measured there; then the
distance of the spec sheets; then top-1 on its own held-out networks; then the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from ...zoo.devices import Device, distance, get_device
from ...zoo.devices.registry import OTHER, UnknownDeviceError
from ...zoo.errors import TchubError
from .entry import TRANSFER, Entry
from .errors import UnknownCheckpointError

CHECKPOINT_FORMAT = 1  # equal to `zoo.models`' own number (a test holds them together); importing that loads torch
HERE, IN_FAMILY, NOT_MEASURED, BY_CHANCE = range(4)
_TVM = "apache-tvm"
_CHANCE = 0.5  # the pairwise accuracy of choosing at random
_REJECTED = 99


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
        """True where it ranked pairs of programs no better than a coin would."""
        return self.pairwise is not None and self.pairwise <= _CHANCE

    def __str__(self) -> str:
        names = {"top1": "top-1", "pairwise": "pairwise"}
        scores = [f"{text} {value:.2f}" for key, text in names.items() if (value := getattr(self, key)) is not None]
        device = f"{'this device' if self.here else 'its family'} ({self.device})"
        tasks = "" if self.tasks is None else f" of {self.tasks:g} task{'s' if self.tasks != 1 else ''}"
        return f"measured on {device}: {', '.join(scores) or '-'}{tasks}"


@dataclass(frozen=True)
class Verdict:
    """The judgement of the resolution on one checkpoint.

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
    measured: Score | None = None
    passed_over: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)


# Can this machine use it at all?


def why_not(entry: Entry) -> str | None:
    """Return why this tchub cannot use it with the TVM that is installed, or None when it can."""
    objection = _objection(entry)
    return objection[0] if objection else None


def require_loadable(entry: Entry) -> None:
    """Raise UnknownCheckpointError when `why_not` has an answer."""
    if objection := _objection(entry):
        reason, remedy = objection
        fields = {key: getattr(entry, key) for key in ("name", "version", "format", "feature_schema", "tvm_range")}
        raise UnknownCheckpointError(f"{entry.id} cannot be used: {reason}", remedy=remedy, **fields)


@cache
def installed_tvm() -> str | None:
    """Return the version of the TVM that is installed, which is not imported for it; None for no TVM."""
    from importlib.metadata import PackageNotFoundError, version

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
    # Without a TVM there are no candidates to score, and nothing to object to: the files can be looked at.
    if tvm is None or SpecifierSet(entry.tvm_range).contains(tvm, prereleases=True):
        return None
    reason = f"it scores candidates of TVM {entry.tvm_range}, and TVM {tvm} is installed"
    return reason, f"pip install '{_TVM}{entry.tvm_range}', or choose another version of the checkpoint"


# Does it fit a device?


def rejected(entry: Entry, reason: str) -> Verdict:
    """Return the verdict on a checkpoint that is out of the question."""
    return Verdict(entry.id, False, reason, passed_over=reason)


def judge(entry: Entry, device: Device) -> Verdict:
    """Judge whether a checkpoint fits a device."""
    reason = why_not(entry) or (f"deprecated: {entry.deprecated}" if entry.deprecated else None)
    if reason:
        return rejected(entry, reason)
    score = score_near(entry, device)
    if entry.is_knowledge_base:
        # It knows several devices and is tuned to none: every family of the instruction set is nearer.
        if entry.family != device.kind:
            return rejected(entry, f"{device.name} is a {device.kind}, it has learnt {entry.family}s")
        known = f"a knowledge base of {entry.family}s ({', '.join(entry.measured_on)})"
        reason = f"{known}, to adapt from; a family's own checkpoint goes before it"
        return Verdict(entry.id, True, reason, OTHER, 0.0, score)
    trained_on = _device(str(entry.data.get("device"))) or _device(entry.family)
    if trained_on is None:
        return rejected(entry, f"no spec sheet of its device family {entry.family} is known")
    gap = distance(device, trained_on)
    if not gap.compatible:
        return rejected(entry, gap.reason)
    reason = f"{gap.reason}; {score}" if score else gap.reason
    return Verdict(entry.id, True, reason, gap.rank, gap.gap, score)


def score_near(entry: Entry, device: Device) -> Score | None:
    """Return its score on this device, else the best-known one on a device of the family (of most tasks)."""
    rows: dict[str, Mapping[str, Any]] = dict(entry.transfer)
    if not entry.is_knowledge_base:  # its own held-out networks were measured on its corpus's device
        rows[str(entry.data.get("device"))] = entry.metrics
    scores = [
        Score(known.name, known.name == device.name, **{key: row.get(key) for key in TRANSFER})
        for name, row in rows.items()
        if (known := _device(name)) and known.family == device.family
    ]
    telling = [score for score in scores if score.top1 is not None or score.pairwise is not None]
    return max(telling, key=lambda score: (score.here, score.tasks or 0, score.device), default=None)


def _device(name: str) -> Device | None:
    try:
        return get_device(name)
    except UnknownDeviceError:
        return None


# Which one is taken?


class Preference(NamedTuple):
    """The criteria, the most telling first; the smallest is taken."""

    rank: int
    evidence: int
    top1: float
    pairwise: float
    gap: float
    own_top1: float
    id: str


def in_order(judged: Iterable[tuple[Verdict, Entry]]) -> list[tuple[Verdict, Entry]]:
    """Return the chosen one first, every other one with the reason why it was passed over; rejected ones last."""
    ranked = sorted(((_preference(*pair), *pair) for pair in judged), key=lambda item: item[0])
    if not ranked:
        return []
    best, chosen, _ = ranked[0]
    return [
        (verdict if verdict is chosen or not verdict.accepted else _passed_over(key, verdict, best, chosen), entry)
        for key, verdict, entry in ranked
    ]


def _preference(verdict: Verdict, entry: Entry) -> Preference:
    score = verdict.measured
    evidence = NOT_MEASURED if score is None else BY_CHANCE if score.by_chance else HERE if score.here else IN_FAMILY
    return Preference(
        _REJECTED if verdict.rank is None else verdict.rank,
        evidence,
        -((score and score.top1) or 0.0),
        -((score and score.pairwise) or 0.0),
        verdict.gap or 0.0,
        -(entry.metrics.get("top1") or 0.0),
        verdict.id,
    )


def _passed_over(key: Preference, verdict: Verdict, best: Preference, chosen: Verdict) -> Verdict:
    """Return the verdict with the first criterion that decided against it."""
    decided = next(name for name in Preference._fields if getattr(key, name) != getattr(best, name))
    match decided:
        case "rank":
            steps = key.rank - best.rank
            reason = f"{steps} rank{'s' if steps > 1 else ''} farther: {verdict.reason}"
        case "evidence" if key.evidence == BY_CHANCE:
            reason = f"no better than chance: {verdict.measured}"
        case "evidence":
            own = verdict.measured or "not measured on this device or its family"
            reason = f"{own}; {chosen.id} was {chosen.measured}"
        case "top1" | "pairwise":
            reason = f"{verdict.measured}; {chosen.id} has top-1 {-best.top1:.2f}, pairwise {-best.pairwise:.2f}"
        case "gap":
            reason = f"spec sheets {2**key.gap:.2g}x apart, those of {chosen.id} {2**best.gap:.2g}x"
        case "own_top1":
            own = f"top-1 {-key.own_top1:.2f} on its held-out networks"
            reason = f"{own}, {chosen.id} has {-best.own_top1:.2f}"
        case _:
            reason = f"fits as well as {chosen.id}, which is the first by name"
    return replace(verdict, passed_over=reason)

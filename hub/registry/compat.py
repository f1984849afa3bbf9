"""Can this machine use a checkpoint? Judged from its index entry, before a file is fetched."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ...zoo.errors import TchubError
from .entry import Entry
from .errors import IncompatibleCheckpointError

# Equal to `zoo.models`' own number (a test holds them together); importing that one would import torch.
CHECKPOINT_FORMAT = 1
_TVM = "apache-tvm"


class Objection(NamedTuple):
    """Why a checkpoint cannot be used, and what to do about it."""

    reason: str
    remedy: str = "pip install -U tchub, or choose an older version of the checkpoint"


def why_not(entry: Entry) -> str | None:
    """Why this tchub cannot use it with the TVM that is installed, or None when it can."""
    found = _objection(entry)
    return found.reason if found else None


def require_loadable(entry: Entry) -> None:
    """Raise IncompatibleCheckpointError when `why_not` has an answer."""
    found = _objection(entry)
    if found:
        raise IncompatibleCheckpointError(
            f"{entry.id} cannot be used: {found.reason}",
            remedy=found.remedy,
            name=entry.name,
            version=entry.version,
            format=entry.format,
            feature_schema=entry.feature_schema,
            tvm_range=entry.tvm_range,
        )


@cache
def installed_tvm() -> str | None:
    """The version of the TVM that is installed, which is not imported for it; None for no TVM."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(_TVM)
    except PackageNotFoundError:
        return None


def _objection(entry: Entry) -> Objection | None:
    if entry.format > CHECKPOINT_FORMAT:
        newer = f"its format {entry.format} is newer than this tchub's {CHECKPOINT_FORMAT}"
        return Objection(f"{newer}: upgrade tchub")
    return _to_features(entry) or _to_tvm(entry)


def _to_features(entry: Entry) -> Objection | None:
    from ...zoo.features import get_schema

    try:
        schema = get_schema(entry.feature_schema)
    except TchubError:
        return Objection(f"it reads features {entry.feature_schema}, which this tchub does not make: upgrade tchub")
    if schema.version != entry.feature_version:
        wanted = f"version {entry.feature_version} of the features {schema.name}"
        return Objection(f"it reads {wanted}, this tchub makes version {schema.version}")
    return None


def _to_tvm(entry: Entry) -> Objection | None:
    """Without a TVM there are no candidates to score, and nothing to object to: the files can be looked at."""
    from packaging.specifiers import SpecifierSet

    installed = installed_tvm()
    if installed is None or SpecifierSet(entry.tvm_range).contains(installed, prereleases=True):
        return None
    return Objection(
        f"it scores candidates of TVM {entry.tvm_range}, and TVM {installed} is installed",
        f"pip install '{_TVM}{entry.tvm_range}', or choose another version of the checkpoint",
    )

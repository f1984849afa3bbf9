"""Errors between a checkpoint's name and its verified files."""

from typing import Any

from ...zoo.errors import TchubError


class CheckpointNameError(TchubError):
    """A checkpoint name or version that is not of the form `arch-family[+variant][@X.Y.Z]`."""


class UnknownCheckpointError(TchubError):
    """No checkpoint or version of this name, or none that can be used here.

    Fields: `name`, `version`, `nearest` (of an unknown name), `known` (versions), `verdicts` (where none fits).
    """


class IndexFileError(TchubError):
    """A file of the registry that cannot be used: an index, a lock file, an entry, a key. Field: `path`."""


class IntegrityError(TchubError):
    """Files that differ from the index. Fields: `outcome` (see `files.Outcome`), `path`, `expected`, `actual`."""


class SourceError(TchubError):
    """A source cannot give a checkpoint or an index.

    Fields: `source`, and `reason`: `form` (no source is written like this), `insecure`, `offline`, `network`, `token`,
    `gated`, `missing` (no such repository or file), `revision` (no such commit), `content`, or `sources` (none of
    several gave it; the field `tried` has their errors).
    """

    reason: str


class NotInSourceError(SourceError):
    """The source works, but does not hold this checkpoint, repository, commit or file."""

    def __init__(self, message: str, *, reason: str = "missing", **fields: Any) -> None:
        super().__init__(message, reason=reason, **fields)


class UntrustedError(TchubError):
    """An index that the trusted keys do not vouch for.

    Fields: `path`, and `reason`: `keys` (no key is trusted here), `signature`, `rollback`, `expired`, `content` (bytes
    differ from the signed ones), or `changed` (a published version has other files than before).
    """

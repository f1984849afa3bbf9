"""What can go wrong between a checkpoint's name and its verified files."""

from __future__ import annotations

import errno

from ...zoo.errors import TchubError

# What the operating system says to one who may read, but not write.
NO_LEAVE = (errno.EROFS, errno.EACCES, errno.EPERM)


class CheckpointNameError(TchubError):
    """A checkpoint name or version that is not of the form `arch-family[+variant][@X.Y.Z]`."""


class IndexFileError(TchubError):
    """An index (or the record of a stored checkpoint) that cannot be read, or is of a newer format."""


class UnknownCheckpointError(TchubError):
    """No checkpoint has this name. Fields: `name`, `nearest`, `verdicts` (which would fit, or why not)."""


class UnknownVersionError(TchubError):
    """The checkpoint exists, this version of it does not. Fields: `name`, `version`, `known`."""


class IncompatibleCheckpointError(TchubError):
    """This release of tchub cannot load the checkpoint (newer format, unknown feature schema)."""


class NoFittingCheckpointError(TchubError):
    """No published checkpoint fits the device. Field: `verdicts`, one reason for each checkpoint."""


class NotInstalledError(TchubError):
    """The checkpoint is known but its files are not on this machine."""


class IntegrityError(TchubError):
    """Files that are not what the index says. Fields: `outcome` (see `verify.Outcome`), `path`."""


class StoreError(TchubError):
    """The store cannot be written: full, read-only, no permission. Field: `path`. Nothing is half-written."""

    @property
    def read_only(self) -> bool:
        """Whether it is leave that is missing, not room: what is stored can still be read."""
        return self.fields.get("errno") in NO_LEAVE


class ImmutableVersionError(StoreError):
    """A version that is already stored with other content: versions never change."""


class SourceError(TchubError):
    """A place that a checkpoint could come from did not give it. Fields: `source`, `checkpoint`."""


class UnknownSourceError(SourceError):
    """Not `bundled`, `file:///folder`, `https://host/folder` or `hf://org/name`."""


class InsecureSourceError(SourceError):
    """A web address without TLS that is not of this machine. Field: `host`."""


class NotInSourceError(SourceError):
    """The source works, but does not hold this checkpoint, repository or file."""


class RevisionMissingError(NotInSourceError):
    """The repository exists, the pinned commit does not."""


class LockFileError(TchubError):
    """A lock file that cannot be used: malformed, newer, without the name, or at odds with the index. Field: `path`."""


class GatedError(SourceError):
    """The repository wants its terms accepted first."""


class TokenError(SourceError):
    """The Hub refused the access token, or the token may not read this repository."""


class OfflineError(SourceError):
    """Only the network could give it, and the network was ruled out."""


class NetworkError(SourceError):
    """The server could not be reached, or failed."""


class NoSourceError(SourceError):
    """Every source was tried. Field: `tried`, what each of them said."""


class UntrustedError(TchubError):
    """A file that no trusted key vouches for. Fields: `path`, and `key` where one is named."""


class WrongSignatureError(UntrustedError):
    """The file and its signature do not belong together: one of them was changed, or the signature is unreadable."""


class UnknownKeyError(UntrustedError):
    """It is signed, by a key that is not trusted here."""


class ExpiredKeyError(UntrustedError):
    """It is signed by a trusted key outside of the days that the key is for."""


class RevokedKeyError(UntrustedError):
    """It is signed by a key that was taken back."""


class NoTrustedKeyError(UntrustedError):
    """No key is trusted on this machine, so that nothing can be checked."""


class RollbackError(UntrustedError):
    """An older state in place of a newer one. Fields: `path`, `serial`, `known`."""


class ExpiredIndexError(UntrustedError):
    """A signed index after its last day: newer ones may be held back. Field: `expires`."""


class KeyFileError(TchubError):
    """A file of keys that cannot be read, written or unlocked, or that is there already. Field: `path`."""

"""What keeps a checkpoint from being published."""

from __future__ import annotations

from collections.abc import Sequence

from ...zoo.errors import TchubError
from ..registry.entry import Entry


class PublishError(TchubError):
    """A checkpoint was not published. Field: `repo`. Whatever was done before stands; the same command goes on."""


class NotLoggedInError(PublishError):
    """There is no access token."""


class NotAllowedError(PublishError):
    """The token may not write to the repository."""


class PublicRepositoryError(PublishError):
    """Everybody could see what was to be private."""


class OtherCheckpointError(PublishError):
    """The repository is that of another checkpoint, or of another model. Field: `held` (its name, or None)."""


class VersionTakenError(PublishError):
    """This version is out with other bytes; versions never change. Fields: `version`, `files`."""

    @classmethod
    def of(cls, entry: Entry, repo: str, what: str, files: Sequence[str]) -> VersionTakenError:
        """The error of a version that a repository has, as `what`, with other files."""
        return cls(
            f"{repo} {what} with another {', '.join(files)}; versions never change",
            remedy=f"publish it as a new version: --version {entry.semver.next_minor()}",
            repo=repo,
            version=entry.version,
            files=list(files),
        )


class ChangedMeanwhileError(PublishError):
    """Somebody else pushed to the repository at the same time."""

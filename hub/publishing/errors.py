"""What keeps a checkpoint from being published."""

from __future__ import annotations

from ...zoo.errors import TchubError


class PublishError(TchubError):
    """A checkpoint was not published. Field: `repo`. Whatever was done before stands; the same command goes on."""


class NotLoggedInError(PublishError):
    """There is no access token."""


class NotAllowedError(PublishError):
    """The token may not write to the repository."""


class OtherCheckpointError(PublishError):
    """The repository is that of another checkpoint, or of another model. Field: `held` (its name, or None)."""


class VersionTakenError(PublishError):
    """This version is out with other bytes; versions never change. Fields: `version`, `files`."""


class ChangedMeanwhileError(PublishError):
    """Somebody else pushed to the repository at the same time."""

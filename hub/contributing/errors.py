"""What can stop a contribution before it is finished."""

from __future__ import annotations

from ...zoo.errors import TchubError


class MissingFactsError(TchubError):
    """Facts that only a person can give were not given, and there is no terminal to ask at. Field: missing."""


class BadFactError(TchubError):
    """A fact that cannot be: no SPDX licence, an unknown key of contribute.toml. Fields: key, value."""


class NotReadyError(TchubError):
    """This machine cannot measure. Field: checks, the failed ones."""


class NoSpecSheetError(TchubError):
    """The device has no spec sheet in the zoo yet. Field: path, of the template to fill in."""


class ContributionStateError(TchubError):
    """The output folder holds another thing, a newer or damaged state, or is in use. Field: path."""


class NotAgreedError(TchubError):
    """Nobody agreed to publish; the checkpoint is ready. Field: path."""

"""The error of a run's records."""

from __future__ import annotations

from ...zoo.errors import TchubError


class RunStateError(TchubError):
    """Files of an earlier run do not fit this one, or are damaged. Field: path."""

"""What can go wrong while the catalogue is written."""

from __future__ import annotations

from ...zoo.errors import TchubError


class ForeignFolderError(TchubError):
    """The output folder holds something else than an earlier catalogue. Field: `path`."""


class SiteWriteError(TchubError):
    """The output folder takes no more: full, read-only, no folder. Field: `path`."""

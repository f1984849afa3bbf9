"""What can go wrong when sequences become matrices."""

from __future__ import annotations

from ..errors import TchubError


class UnknownSchemaError(TchubError):
    """No feature schema of that name. Fields: `name`, `known`."""

    exit_code = 2


class DeviceKindError(TchubError):
    """A CPU schema was given a GPU, or the other way round. Fields: `schema`, `device`."""

    exit_code = 2

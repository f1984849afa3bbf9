"""What can go wrong when sequences become matrices."""

from __future__ import annotations

from ..errors import TchubError


class UnknownSchemaError(TchubError):
    """No feature schema of that name. Fields: `name`, `known`."""

    exit_code = 2


class DeviceKindError(TchubError):
    """A CPU schema was given a GPU, or the other way round. Fields: `schema`, `device`."""

    exit_code = 2


class StatementShapeError(TchubError):
    """Statement features of another shape than the one that models take."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, remedy="Make them by PerStoreFeature(extract_workload=False), one array a program.")


class FeatureSourceError(TchubError):
    """Primitive sequences given to a schema of statements. Fields: `schema`, `source`."""

    exit_code = 2

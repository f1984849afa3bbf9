"""Primitive sequences and a device -> the matrix that a model was declared to take.

`schema` names the contracts; `rows`, `nest_columns` and `statements` document every column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .schema import SCHEMAS, DeviceKindError, FeatureSchema, get_schema

if TYPE_CHECKING:
    from .skeleton import Skeleton

__all__ = ["SCHEMAS", "DeviceKindError", "FeatureSchema", "Skeleton", "get_schema"]


def __getattr__(name: str) -> Any:
    """`Skeleton`, imported when first used: it needs numpy and the readers of programs, the schemas do not."""
    if name != "Skeleton":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .skeleton import Skeleton

    return Skeleton

"""Primitive sequences and a device -> the matrix that a model was declared to take.

`schema` names the contracts; `rows`, `nest_columns` and `statements` document every column.
"""

from .schema import SCHEMAS, DeviceKindError, FeatureSchema, get_schema

__all__ = ["SCHEMAS", "DeviceKindError", "FeatureSchema", "get_schema"]

"""Primitive sequences and a device -> the matrix that a model was declared to take.

`schema` names the contracts, `rows` documents every column, `encoder` makes it fast.
"""

from .errors import DeviceKindError, UnknownSchemaError
from .schema import SCHEMAS, FeatureSchema, get_schema
from .skeleton import Skeleton

__all__ = ["SCHEMAS", "DeviceKindError", "FeatureSchema", "Skeleton", "UnknownSchemaError", "get_schema"]

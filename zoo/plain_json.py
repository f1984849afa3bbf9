"""Results as JSON that every reader takes: NaN and infinity are Python's own, so they are written as null."""

import json
from dataclasses import asdict, is_dataclass
from math import isfinite
from typing import Any


def plain(value: Any) -> Any:
    """Return the value with null for every float that is no finite number; keys become text, dataclasses objects."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    return value


def json_file(value: Any) -> bytes:
    """Return a JSON file of the value, indented."""
    return (json.dumps(plain(value), indent=2, allow_nan=False) + "\n").encode()

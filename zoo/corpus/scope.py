"""Target strings of all TVM releases, as far as they tell devices apart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

# What names a device inside a target; everything else (libraries, keys, limits) may differ on one device.
_NAMING = ("kind", "model", "mcpu", "arch")
_OPTION = re.compile(r"-{1,2}([\w-]+)[= ]([^\s]+)")


@cache
def device_words(target: str) -> Mapping[str, str]:
    """What a target says of its device: any of kind, model, mcpu, arch.

    Args:
        target: JSON (an object, or a text in quotes) or the command-line form of old releases,
            e.g. `cuda -keys=cuda,gpu -model=t4`.
    """
    try:
        told: Any = json.loads(target)
    except ValueError:
        told = target
    if isinstance(told, Mapping):
        words = {str(key): str(value) for key, value in told.items()}
    else:
        kind, _, options = str(told).strip().partition(" ")
        words = {"kind": kind} | dict(_OPTION.findall(options))
    # `unknown` is what TVM fills in for a model that nobody named.
    return {name: words[name] for name in _NAMING if words.get(name) not in (None, "", "unknown")}


def contradiction(target: str, other: str) -> str | None:
    """The first word in which two targets name different devices; None where they may be one device's."""
    one, two = device_words(target), device_words(other)
    return next((name for name in _NAMING if name in one and name in two and one[name] != two[name]), None)

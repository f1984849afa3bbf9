"""The scope in which latencies compare: what must be equal before programs may share a corpus."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

SCOPE = ("device", "family", "cpu_model", "target")
"""Facts of `corpus.json` that must agree before latencies of two corpora compare."""
CORPUS_SCOPE = (*SCOPE, "tvm_version", "framework", "licence")
"""Facts that must agree before two corpora become one, since `corpus.json` has one of each for all programs."""
# The options of a target that name a device; everything else (libraries, keys, limits) may differ on one device.
_NAMING = ("kind", "model", "mcpu", "arch")
_OPTION = re.compile(r"-{1,2}([\w-]+)[= ]([^\s]+)")


def difference(one: Mapping[str, Any], other: Mapping[str, Any], names: tuple[str, ...] = SCOPE) -> str | None:
    """Return the first fact in which two corpora's `corpus.json` differ, None where their latencies compare."""
    return next((name for name in names if one.get(name) != other.get(name)), None)


def contradiction(target: str, other: str) -> str | None:
    """Return the first option in which two targets of a log name different devices, None where there is none.

    Weaker than `difference`: logs spell one device's target in many ways, and one that names nothing may be of any
    device.

    Args:
        target, other: JSON (an object, or a text in quotes) or the command-line form of old releases,
            e.g. `cuda -keys=cuda,gpu -model=t4`.
    """
    one, two = _device_options(target), _device_options(other)
    return next((name for name in _NAMING if name in one and name in two and one[name] != two[name]), None)


@cache
def _device_options(target: str) -> Mapping[str, str]:
    """Return the options of a target that name its device: any of kind, model, mcpu, arch."""
    try:
        parsed: Any = json.loads(target)
    except ValueError:
        parsed = target
    if isinstance(parsed, Mapping):
        options = {str(key): str(value) for key, value in parsed.items()}
    else:
        kind, _, rest = str(parsed).strip().partition(" ")
        options = {"kind": kind} | dict(_OPTION.findall(rest))
    # `unknown` is what TVM fills in for a model that nobody named.
    return {name: options[name] for name in _NAMING if options.get(name) not in (None, "", "unknown")}

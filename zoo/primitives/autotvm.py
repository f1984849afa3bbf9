"""AutoTVM records as primitive sequences.

AutoTVM's schedules are programs (templates) with knobs; a record holds the knobs' values alone. The effect of the
knobs is written down for the templates of TVM 0.8 to 0.13 that logs are full of; any other template's knobs become
one primitive each, about block 0.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from . import autotvm_templates_cpu as cpu
from . import autotvm_templates_gpu as gpu
from .autotvm_nest import Schedule, knob_error
from .language import NONE, REST, PrimitiveSequence, primitive
from .problem import Problem, problem

_TEMPLATES = cpu.TEMPLATES | gpu.TEMPLATES

AUTOTVM_TEMPLATES = frozenset(_TEMPLATES)
"""The templates whose schedules are known."""


def from_autotvm(template: str, args: Sequence[Any], entity: Sequence[Any]) -> PrimitiveSequence:
    """Return the program that a record names, in plain primitives for a template outside `AUTOTVM_TEMPLATES`.

    Args:
        template: the template's registered name, `input[1]` of a record.
        args: the task's arguments, `input[2]`.
        entity: the knobs `[[name, kind, value], ...]`, `config.entity`.

    Raises:
        TraceFormatError: the arguments are not the template's, or a knob is missing or does not fit the loop
            that it is for (the error's `instruction` is the knob).
    """
    schedule = Schedule(entity)
    if template in _TEMPLATES:
        _TEMPLATES[template](schedule, _problem(template, json.dumps(args)))
    else:
        _plain(schedule, entity)
    return PrimitiveSequence(tuple(schedule.primitives), "autotvm")


@lru_cache(4096)
def _problem(template: str, args: str) -> Problem | None:
    return problem(template, json.loads(args))


def _plain(schedule: Schedule, entity: Sequence[Any]) -> None:
    """Every knob by itself: loops are numbered as if the splits before had been made on one nest."""
    at = 0
    for name, kind, value in entity:
        if kind == "sp" and _integers(value):
            extent = 0 if REST in value else prod(value)
            schedule.primitives.append(primitive("Split", (0, at, extent, *value), ()))
            at += len(value)
        elif kind == "re" and _integers(value):
            schedule.primitives.append(primitive("Reorder", (0, *value), ()))
        elif kind == "an" and isinstance(value, list):
            for loop, what in enumerate(value):
                if what != "none":
                    mark = "Vectorize" if what == "vec" else "Unroll"
                    schedule.primitives.append(primitive(mark, (0, loop, NONE), ()))
        elif kind == "ot" and isinstance(value, int | float | str | None):
            number, text = ((int(value),), ()) if isinstance(value, int) else ((), (str(value),))
            schedule.primitives.append(primitive("Annotate", (0, NONE, *number), (str(name), *text)))
        else:
            raise knob_error("a knob of unknown form", [name, kind, value])


def _integers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)

"""The schedule-primitive language, and its readers. TVM is needed only to read a live trace.

`language` holds the words and what other frameworks' words map to; `metaschedule` reads traces,
`ansor` the steps of auto_scheduler records.
"""

from .ansor import from_ansor_steps
from .errors import TraceFormatError, UnknownInstructionError
from .language import INLINE, KINDS, NONE, REST, ROOT, Primitive, PrimitiveSequence
from .metaschedule import from_trace, from_trace_json

__all__ = [
    "INLINE",
    "KINDS",
    "NONE",
    "REST",
    "ROOT",
    "Primitive",
    "PrimitiveSequence",
    "TraceFormatError",
    "UnknownInstructionError",
    "from_ansor_steps",
    "from_trace",
    "from_trace_json",
]

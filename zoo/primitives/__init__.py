"""The schedule-primitive language, and its readers. TVM is needed only to read a live trace.

`language` defines the kinds and how other frameworks' steps map to them; `metaschedule` reads traces,
`ansor` the steps of auto_scheduler records, `autotvm` the knobs of its templates.
"""

from .ansor import from_ansor_steps
from .autotvm import from_autotvm
from .language import NONE, Primitive, PrimitiveSequence, TraceFormatError
from .metaschedule import from_trace_json, read_trace

__all__ = [
    "NONE",
    "Primitive",
    "PrimitiveSequence",
    "TraceFormatError",
    "from_ansor_steps",
    "from_autotvm",
    "from_trace_json",
    "read_trace",
]

"""Old records as schedules of today's TVM, checked against what the record says, and their statement features."""

from .ansor import Replayed, replay, replay_steps
from .operators import OPERATORS, ReplayError, UnscheduledTask, make_workload, workload
from .structure import verify_structure

__all__ = [
    "OPERATORS",
    "ReplayError",
    "Replayed",
    "UnscheduledTask",
    "make_workload",
    "replay",
    "replay_steps",
    "verify_structure",
    "workload",
]

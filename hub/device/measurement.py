"""Settings of measuring, and one measurement."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from .timing import TimingConfig


@dataclass(frozen=True)
class MeasureConfig:
    """Settings of building and running programs.

    Attributes:
        threads: threads of a program; the target's `num-cores` should say the same.
        build_timeout, run_timeout: seconds after which the worker is killed; only those count in which it had a core.
        timing: repeats and when to stop.
        failure_rate: stop when more than this share of programs failed ...
        failure_minimum: ... after at least so many.
        check_output: compare programs' outputs with those of the task's unscheduled program, where that is known.
        check_seconds: a task whose unscheduled program computes longer than this is not checked.
    """

    threads: int = 1
    build_timeout: float = 20.0
    run_timeout: float = 20.0
    timing: TimingConfig = field(default_factory=TimingConfig)
    failure_rate: float = 0.9
    failure_minimum: int = 16
    check_output: bool = True
    check_seconds: float = 5.0


@dataclass(frozen=True)
class Measurement:
    """Result of one candidate.

    Attributes:
        latencies: seconds a run, one entry a repeat; empty when it failed.
        error: None, `build`, `build_timeout`, `run`, `run_timeout`, `crash` or `wrong_output`.
        message: one line about the error.
        build_seconds, run_seconds: what the measurement cost.
        measured_at: unix time.
        disturbed: whether the machine was still disturbed when it was last measured again.
    """

    latencies: tuple[float, ...] = ()
    error: str | None = None
    message: str | None = None
    build_seconds: float = 0.0
    run_seconds: float = 0.0
    measured_at: float = 0.0
    disturbed: bool = False

    @property
    def latency(self) -> float:
        """Median of the repeats in seconds; NaN when the program failed."""
        return median(self.latencies) if self.latencies else float("nan")

    @property
    def cost_seconds(self) -> float:
        """Seconds of building and running."""
        return self.build_seconds + self.run_seconds


# Failures of the moment: a busy machine, a full memory or disk, a server that does not load what it is sent.
_TRANSIENT = ("build_timeout", "run_timeout", "crash")
_OF_THE_MACHINE = ("OSError", "MemoryError", "CalledProcessError", "No space left", "cannot load the program")


def is_passing(failure: str) -> bool:
    """Return whether a program may do well another time, by how it failed: `KIND: MESSAGE`."""
    text = failure.removeprefix("run: ")  # the form in which the store keeps error and message
    return text.startswith(_TRANSIENT) or any(word in text for word in _OF_THE_MACHINE)

"""What failures tell: of the program or of the machine, and when nearly all programs fail, to stop."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .errors import MeasurementFailureRateError

if TYPE_CHECKING:
    from .measure import MeasureConfig, Measurement


# Failures of the moment: a busy machine, a full memory or disk, a server that does not load what it is sent.
_TRANSIENT = ("build_timeout", "run_timeout", "crash")
_OF_THE_MACHINE = ("OSError", "MemoryError", "CalledProcessError", "No space left", "cannot load the program")


def is_passing(failure: str) -> bool:
    """Whether a program may do well another time, by how it failed: `KIND: MESSAGE`."""
    told = failure.removeprefix("run: ")  # how a journal keeps what it was told as one text
    return told.startswith(_TRANSIENT) or any(word in told for word in _OF_THE_MACHINE)


class FailureWatch:
    """Counts measurements.

    Attributes:
        outcomes: how many ended how: `ok`, or `Measurement.error`.
    """

    def __init__(self, config: MeasureConfig, remedy: str) -> None:
        self._config, self._remedy = config, remedy
        self._messages: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()

    def count(self, measurement: Measurement) -> Measurement:
        """Count a measurement and return it.

        Raises:
            MeasurementFailureRateError: nearly every program failed.
        """
        self.outcomes[measurement.error or "ok"] += 1
        if measurement.error:
            self._messages[f"{measurement.error}: {measurement.message}"] += 1
        total, failed = self.outcomes.total(), self.outcomes.total() - self.outcomes["ok"]
        if total >= self._config.failure_minimum and failed > self._config.failure_rate * total:
            ((message, count),) = self._messages.most_common(1)
            raise MeasurementFailureRateError(
                f"{failed} of {total} programs failed, {count} of them with: {message}",
                remedy=self._remedy,
                failed=failed,
                total=total,
                commonest=message,
            )
        return measurement

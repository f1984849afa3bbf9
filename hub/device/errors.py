"""Errors of choosing a device, preparing it, and measuring on it."""

from collections import Counter
from collections.abc import Sequence

from ...zoo.errors import TchubError

# A run whose programs fail at this rate ends, once there are so many of them.
FAILURE_RATE, FAILURE_MINIMUM = 0.9, 16


class DeviceError(TchubError):
    """A device, target or number of threads that cannot be had, or a machine that cannot compile or start programs."""


class NoServerError(TchubError):
    """No RPC server, or no tracker, to measure on."""


class MeasurementFailureRateError(TchubError):
    """Nearly every program failed: measuring on would waste the budget. Fields: failed, total, commonest."""


def check_failure_rate(failures: Sequence[str], total: int, remedy: str, *, last: bool = False) -> None:
    """Raise MeasurementFailureRateError where nearly all of enough programs failed, or at the end all of a few.

    Args:
        failures: of each failed program the reason, the commonest of which is named.
    """
    rate, least = (1.0, 1) if last else (FAILURE_RATE, FAILURE_MINIMUM)
    if not failures or total < least or len(failures) < rate * total:
        return
    ((commonest, alike),) = Counter(failures).most_common(1)
    raise MeasurementFailureRateError(
        f"{len(failures)} of {total} programs failed, {alike} of them with: {commonest}",
        remedy=remedy,
        failed=len(failures),
        total=total,
        commonest=commonest,
    )

"""What can go wrong when an old record is replayed as a schedule of today's TVM."""

from __future__ import annotations

from ...errors import TchubError


class ReplayError(TchubError):
    """A record that cannot be replayed.

    Fields: `reason`, a word of a small fixed set by which failures are counted (`unknown-framework`,
    `unknown-workload`, `unknown-step`, `wrong-shape`, `refused` where TVM does not allow a step, `different` where
    the replayed loops are not the record's), and `step`, the position of the offending step or None.
    """

    exit_code = 2

    def __init__(self, reason: str, message: str, *, step: int | None = None, remedy: str | None = None) -> None:
        super().__init__(
            message if step is None else f"{message} (step {step})",
            remedy=remedy or "leave the record out: its features cannot be made, its primitives can still be read",
            reason=reason,
            step=step,
        )
        self.reason = reason

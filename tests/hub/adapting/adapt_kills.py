"""Ends of a run that come from outside, at a moment that a test chooses."""

from __future__ import annotations

from tchub.hub.adaptation.settings import AdaptProgress


class KilledError(BaseException):
    """No handler of the product catches it, as none catches SIGKILL."""


class KillAt(AdaptProgress):
    """Ends the run when a phase begins, or after its first step."""

    def __init__(self, phase: str, step: int) -> None:
        self.phase, self.step = phase, step
        self.now, self.steps = "", 0

    def start(self, phase: str, total: int) -> None:
        self.now, self.steps = phase, 0
        self._maybe()

    def advance(self, failed: bool = False) -> None:
        self.steps += 1
        self._maybe()

    def _maybe(self) -> None:
        if (self.now, self.steps) == (self.phase, self.step):
            raise KilledError(self.phase)


class Epochs:
    """Sees each epoch of some trainings, and may end the run after so many of them."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.kill_after = kill_after
        self.seen: list[tuple[str, int]] = []

    def __call__(self, training: str, entry: dict[str, float]) -> None:
        self.seen.append((training, int(entry["epoch"])))
        if len(self.seen) == self.kill_after:
            raise KilledError(training)

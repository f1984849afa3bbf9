"""What the next batch of a task promises: the cost model's scores, set against the latencies that came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Valid programs of a task before its scores count as calibrated, and rounds that the calibration looks back on.
LEAST_PROGRAMS = 4
WINDOW = 4
# Draws of the batch's latencies; the same ones for every task, so that two tasks differ by what they are.
_DRAWS = np.random.default_rng(0).standard_normal((256, 64))


@dataclass(frozen=True)
class Round:
    """One measured batch and what was left in the model's order after it.

    Attributes:
        scores: of the measured programs, as the model gave them before they were measured; higher is faster.
        latencies: of the same in seconds; not finite: failed.
        waiting: scores of the best programs that were left, by the same model at the same time.
    """

    scores: tuple[float, ...]
    latencies: tuple[float, ...]
    waiting: tuple[float, ...]

    def valid(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and log latencies of the programs that ran."""
        scores, latencies = np.array(self.scores), np.array(self.latencies)
        good = np.isfinite(latencies) & np.isfinite(scores)
        return scores[good], np.log(latencies[good])


def expected_gain(rounds: Sequence[Round], best: float) -> float | None:
    """Seconds by which the next batch is expected to beat `best`: E[max(0, best - fastest of the batch)].

    Scores differ in level and scale from round to round (the model learns), so latencies are fitted against scores
    within rounds; the next batch's are told from the last round's, whose left-over programs it will begin with.

    Args:
        rounds: of one task, oldest first.
        best: its lowest latency in seconds, finite.

    Returns:
        None where too little was measured to calibrate on.
    """
    recent = [r.valid() for r in rounds[-WINDOW:]]
    if not recent or len(recent[-1][1]) < 2:  # what waits is told from the last round's own scores
        return None
    recent = [(scores, logs) for scores, logs in recent if len(logs) > 1]
    if not rounds[-1].waiting or sum(len(logs) for _, logs in recent) < LEAST_PROGRAMS:
        return None
    x = np.concatenate([scores - scores.mean() for scores, _ in recent])
    y = np.concatenate([logs - logs.mean() for _, logs in recent])
    slope = min(0.0, float(x @ y) / float(x @ x)) if float(x @ x) > 0 else 0.0
    spread = float(np.sqrt(np.square(y - slope * x).sum() / (len(y) - len(recent))))
    last_scores, last_logs = recent[-1]
    waiting = np.array(rounds[-1].waiting[: _DRAWS.shape[1]])
    expected = last_logs.mean() + slope * (waiting - last_scores.mean())
    fastest = np.exp((expected + spread * _DRAWS[:, : len(waiting)]).min(axis=1))
    return float(np.maximum(0.0, best - fastest).mean())

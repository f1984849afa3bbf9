"""The record of a tuning run: one JSON line a measured program, and the curve drawn from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path

from ...zoo.files import append, drop_torn_line
from .errors import RunStateError


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured program.

    Attributes:
        task: name of the task.
        seconds: tuning time spent when the result came, summed over resumed runs; 0 for an untuned program.
        run_secs: the repeats in seconds; empty on failure.
        latency: their median in seconds; None on failure.
        predicted: the cost model's score before measuring; None where no model was asked.
        error: first line of the error, or None.
        kind: `tuned` for a candidate of the search, `untuned` for the task as extracted, `reused` for a program
            that an earlier run measured.
        cost: seconds spent building and running it.
    """

    task: str
    seconds: float
    run_secs: tuple[float, ...] = ()
    latency: float | None = None
    predicted: float | None = None
    error: str | None = None
    kind: str = "tuned"
    cost: float = 0.0


class TrialLog:
    """Appends trials to a file, each line written before the next program is measured."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials: list[Trial] = _read(path)

    def append(self, trials: Iterable[Trial]) -> None:
        """Write trials and remember them.

        Raises:
            StorageError: they cannot be written.
        """
        batch = list(trials)
        text = "".join(json.dumps(asdict(trial), allow_nan=False) + "\n" for trial in batch)
        # A tuned program's record is on disk already, and its line can be made from it: a wait each is enough.
        append(self.path, text, sync=any(trial.kind != "tuned" for trial in batch))
        self.trials.extend(batch)

    @property
    def tuned(self) -> list[Trial]:
        """The trials that count against the budget."""
        return [trial for trial in self.trials if trial.kind == "tuned"]

    @property
    def seconds(self) -> float:
        """Tuning time spent so far, in seconds."""
        return max((trial.seconds for trial in self.tuned), default=0.0)


def _read(path: Path) -> list[Trial]:
    if not path.exists():
        return []
    drop_torn_line(path)
    trials = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            trials.append(Trial(**{**fields, "run_secs": tuple(fields["run_secs"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise RunStateError(
                f"{path}, line {number}, is not a trial: {error}",
                remedy="choose a new output folder, or remove that line",
                path=str(path),
                line=number,
            ) from error
    return trials


@dataclass(frozen=True)
class CurvePoint:
    """The network's latency, as the sum of its tasks, after one more trial.

    Attributes:
        trial: programs measured so far.
        seconds: tuning time so far.
        latency: sum over tasks of weight * best latency so far, in seconds.
        measured: tasks that have a valid program of their own.
    """

    trial: int
    seconds: float
    latency: float
    measured: int


def curve(trials: Sequence[Trial], weights: Mapping[str, float], untuned: Mapping[str, float]) -> list[CurvePoint]:
    """The tuning curve.

    A task counts with the best program known so far, its untuned one included (which is compiled where nothing
    measured is faster). No point is given while some task has none, which happens only where untuned programs
    were not measured, or failed.

    Args:
        trials: in the order they were measured.
        weights: calls of each task in the network.
        untuned: latency in seconds of tasks as extracted.
    """
    best: dict[str, float] = {}
    for trial in trials:
        if trial.kind == "reused" and trial.latency is not None and trial.task in weights:
            best[trial.task] = min(best.get(trial.task, inf), trial.latency)
    points = []
    for count, trial in enumerate((t for t in trials if t.kind == "tuned"), 1):
        if trial.latency is not None and trial.task in weights:
            best[trial.task] = min(best.get(trial.task, inf), trial.latency)
        known = (w * min(best.get(task, inf), untuned.get(task, inf)) for task, w in weights.items())
        total = sum(known)
        if isfinite(total):
            points.append(CurvePoint(count, trial.seconds, total, len(best)))
    return points


def latency_of(run_secs: Sequence[float]) -> float | None:
    """Median of the repeats in seconds; None when there is none or one is no time at all."""
    values = sorted(float(x) for x in run_secs)
    if not values or not all(isfinite(x) and x > 0 for x in values):
        return None
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2

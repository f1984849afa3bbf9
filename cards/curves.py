"""What metrics.json says of the ranking in more than single scores: top-k, calibration, failures, tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .fields import (
    read_number,
    read_numbers,
    read_object,
    read_objects,
    read_required_number,
    read_text,
    read_whole,
    wrong,
)


@dataclass(frozen=True)
class TopK:
    """Scores of the best of the k programs ranked highest; `mean_` ones weigh all tasks alike."""

    k: int
    model: float
    random: float | None = None
    mean_model: float | None = None
    mean_random: float | None = None


@dataclass(frozen=True)
class Tenth:
    """The programs of one tenth of the predicted places within their tasks.

    Attributes:
        least, most: the places, 1 being the program that is ranked first.
        mean, stdev: of the measured label, lowest latency of the task / latency.
        perfect: the mean of the same tenth, had the model ranked all rightly.
    """

    least: float
    most: float
    mean: float
    stdev: float
    perfect: float | None = None
    programs: int | None = None


@dataclass(frozen=True)
class Part:
    """Scores of one task, or the mean over the tasks of one operator.

    Attributes:
        words: what a task computes; corpus, programs: of a task; tasks: of an operator.
    """

    operator: str
    words: str | None = None
    corpus: str | None = None
    tasks: int | None = None
    programs: int | None = None
    top1: float | None = None
    pairwise: float | None = None


@dataclass(frozen=True)
class Curves:
    """How the checkpoint ranks the programs that its scores are of.

    Attributes:
        predicted, measured: of a sample of programs: place within the task by score, in (0, 1), and label.
        worst: the tasks of the lowest pairwise accuracy; operators: all, those of many tasks first.
    """

    tasks: int | None = None
    programs: int | None = None
    top_k: tuple[TopK, ...] = ()
    predicted: tuple[float, ...] = ()
    measured: tuple[float, ...] = ()
    calibration: tuple[Tenth, ...] = ()
    worst: tuple[Part, ...] = ()
    operators: tuple[Part, ...] = ()

    @property
    def rises(self) -> int:
        """How many tenths have a higher mean label than the tenth before."""
        means = [tenth.mean for tenth in self.calibration]
        return sum(after > before for before, after in pairwise(means))


@dataclass(frozen=True)
class Tuning:
    """One network tuned with the checkpoint: latency in milliseconds after seconds of tuning.

    Attributes:
        ours, rival: [(seconds, ms)] with the checkpoint, and with the system called `rival_name`.
        command: that measured it.
    """

    network: str
    device: str | None
    trials: int | None
    ours: tuple[tuple[float, float], ...]
    rival: tuple[tuple[float, float], ...] = ()
    rival_name: str | None = None
    command: str | None = None


def read_curves(metrics: Mapping[str, Any]) -> Curves | None:
    """The object `curves`; None without one.

    Raises:
        CardError: a field has the wrong type.
    """
    raw = read_object(metrics, "curves")
    if not raw:
        return None
    scatter, failures = read_object(raw, "scatter"), read_object(raw, "failures")
    predicted, measured = read_numbers(scatter, "predicted"), read_numbers(scatter, "measured")
    if len(predicted) != len(measured):
        raise wrong("measured", "as long as predicted")
    return Curves(
        read_whole(raw, "tasks"),
        read_whole(raw, "programs"),
        tuple(_top(row) for row in read_objects(raw, "top_k")),
        predicted,
        measured,
        tuple(_tenth(row) for row in read_objects(raw, "calibration")),
        tuple(_part(row) for row in read_objects(failures, "tasks")),
        tuple(_part(row) for row in read_objects(failures, "operators")),
    )


def read_tuning(metrics: Mapping[str, Any]) -> tuple[Tuning, ...]:
    """The list `tuning`, () without one; raises CardError for fields of a wrong type."""
    return tuple(_tuning(row) for row in read_objects(metrics, "tuning"))


def _top(row: Mapping[str, Any]) -> TopK:
    k = read_whole(row, "k")
    if k is None or k < 1:
        raise wrong("k", "a whole number above 0")
    others = {key: read_number(row, key) for key in ("random", "mean_model", "mean_random")}
    return TopK(k, read_required_number(row, "model"), **others)


def _tenth(row: Mapping[str, Any]) -> Tenth:
    needed = {key: read_required_number(row, key) for key in ("least", "most", "mean", "stdev")}
    return Tenth(**needed, perfect=read_number(row, "perfect"), programs=read_whole(row, "programs"))


def _part(row: Mapping[str, Any]) -> Part:
    return Part(
        read_text(row, "operator") or "other",
        read_text(row, "words"),
        read_text(row, "corpus"),
        read_whole(row, "tasks"),
        read_whole(row, "programs"),
        read_number(row, "top1"),
        read_number(row, "pairwise"),
    )


def _tuning(row: Mapping[str, Any]) -> Tuning:
    network = read_text(row, "network")
    if network is None:
        raise wrong("tuning", "a list of rows that each name a network")
    rival, ours = read_object(row, "rival"), _line(row)
    if not ours:
        raise wrong("seconds", "a list of numbers")
    return Tuning(
        network,
        read_text(row, "device"),
        read_whole(row, "trials"),
        ours,
        _line(rival),
        read_text(rival, "name"),
        read_text(row, "command"),
    )


def _line(row: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    seconds, latency = read_numbers(row, "seconds"), read_numbers(row, "ms")
    if len(seconds) != len(latency):
        raise wrong("ms", "as long as seconds")
    return tuple(zip(seconds, latency, strict=True))

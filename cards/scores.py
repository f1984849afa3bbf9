"""Scores: one line of a card's tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import CardError
from .fields import read_number, read_text, read_whole, wrong

SCORES = ("top1", "top5", "pairwise", "mean_top1", "mean_top5")
TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "pairwise": "pairwise accuracy",
    "mean_top1": "mean top-1",
    "mean_top5": "mean top-5",
}
BASELINES = {
    "random": "random choice",
    "xgboost": "XGBoost",
    "tenset-mlp": "TenSet-MLP",
    "base": "the checkpoint that it was adapted from",
    "ten_percent": "same architecture, trained on a random 10% of the data (mean of 3 seeds)",
}


@dataclass(frozen=True)
class Scores:
    """One line of a table of scores; a number that was not measured is None.

    Attributes:
        key: its name in metrics.json.
        label: its name for people.
        spread: score -> standard deviation over seeds, where the file has one.
    """

    key: str
    label: str
    top1: float | None = None
    top5: float | None = None
    pairwise: float | None = None
    mean_top1: float | None = None
    mean_top5: float | None = None
    tasks: int | None = None
    programs: int | None = None
    spread: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, key: str, label: str, line: Mapping[str, Any]) -> Scores:
        """From an object whose scores are numbers, or objects of `mean` and `stdev`."""
        means, spread = {}, {}
        for name in SCORES:
            value = line.get(name)
            told = value if isinstance(value, Mapping) else {"mean": value}
            try:
                means[name], deviation = read_number(told, "mean"), read_number(told, "stdev")
            except CardError as error:
                raise wrong(name, "a number") from error
            if deviation is not None:
                spread[name] = deviation
        counts = {name: read_whole(line, name) for name in ("tasks", "programs")}
        return cls(key, read_text(line, "label") or label, **means, **counts, spread=spread)

    def ahead_of(self, other: Scores) -> dict[str, tuple[float, float]]:
        """The scores that are higher here: name -> (here, there)."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in SCORES}
        return {name: (a, b) for name, (a, b) in pairs.items() if a is not None and b is not None and a > b}

"""Whether a base that has learnt a device ranks some programs worse than before: measured, and told from chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...models import CostModel
from ...training import RankingDataset
from ..errors import LabelError
from ..guard import compare

# Programs of a task at most that are asked: their pairs are the square of it, and more would hardly narrow it.
MOST_PROGRAMS = 64


@dataclass(frozen=True)
class Change:
    """What learning a device changed in the order that a base gives some programs.

    Attributes:
        before, after: pairwise accuracy on them; 0.5 is a coin's (`rank_agreement` is twice as much, less one).
        interval: 90% bounds of after - before, found as the guard finds its own.
    """

    before: float
    after: float
    interval: tuple[float, float]

    @property
    def fell(self) -> bool:
        """Whether the base ranks them worse, beyond doubt."""
        return self.interval[1] < 0

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.before:.3f} before it and {self.after:.3f} after it (90% interval of the change "
            f"{low:+.3f} to {high:+.3f})"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {"before": self.before, "after": self.after, "interval": list(self.interval)}


def measure_change(before: CostModel, after: CostModel, data: RankingDataset, seed: int = 0) -> Change | None:
    """Compare two states of a base on programs that it has not learnt.

    Args:
        before, after: models that read these features.
        data: measured programs; `MOST_PROGRAMS` of a task, drawn at random, are asked.
        seed: of that choice, and of the bootstrap over few tasks.

    Returns:
        None where no two programs of a task differ by more than the noise: they tell nothing.
    """
    rng = np.random.default_rng([seed, 11])
    asked = data.take(np.sort(np.concatenate([rng.permutation(members)[:MOST_PROGRAMS] for members in data.members])))
    was, now = (model.score(asked.features) for model in (before, after))
    try:
        found = compare(was, now, asked.latency, asked.group, seed=seed)
    except LabelError:
        return None
    return Change(found.base, found.adapted, found.interval)

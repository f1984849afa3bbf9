"""`ClassTrust`: how far a checkpoint's scores hold on one operator class, as its config and its card say."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

# What the lower bound of an accuracy must exceed, a little more than chance; the one-sided normal quantile of that
# bound (95%); and what is known before any task is judged: accuracies spread so much, as if so many tasks had shown it.
LEAST_TRUSTED = 0.54
_QUANTILE, _SPREAD, _PRIOR = 1.64, 0.15, 4
# Tasks that were learnt judge too, together as so many at most: by cross-validation over tasks that do not test. Having
# been learnt is worth so much accuracy, and so is having been judged on the programs of the same framework.
_LEARNT_TASKS, _LEARNT_WORTH = 5, 0.1


@dataclass(frozen=True)
class ClassTrust:
    """How far a checkpoint's scores hold on the programs of one operator class.

    Attributes:
        tasks, programs: learnt from.
        judged: tasks that were not learnt, and that judged; pairwise: mean accuracy on these.
        least: lower bound of the accuracy, with 95% confidence; None where there is no task at all.
    """

    tasks: int = 0
    programs: int = 0
    judged: int = 0
    pairwise: float | None = None
    least: float | None = None

    @property
    def trusted(self) -> bool:
        """Return whether programs of the class are ranked better than by chance."""
        return self.least is not None and self.least > LEAST_TRUSTED

    @property
    def extends(self) -> bool:
        """Return whether programs are ranked so well that those of a class never judged in their framework may be."""
        return self.least is not None and self.least > LEAST_TRUSTED + _LEARNT_WORTH

    @classmethod
    def of(cls, judged: Sequence[float], learnt: Sequence[float] = (), programs: int = 0) -> Self:
        """Return the trust that pairwise accuracies of tasks allow: those that judge, and those learnt."""
        mean = round(fmean(judged), 4) if judged else None
        values, least = [*judged, *(accuracy - _LEARNT_WORTH for accuracy in learnt)], None
        weights = [1.0] * len(judged) + [min(1.0, _LEARNT_TASKS / len(learnt)) for _ in learnt]
        if count := sum(weights):
            level = fmean(values, weights)
            squares = sum(w * (v - level) ** 2 for v, w in zip(values, weights, strict=True)) + _PRIOR * _SPREAD**2
            error = (squares / (count - 1 + _PRIOR) / count) ** 0.5
            least = round(level - _QUANTILE * error, 4)
        return cls(len(learnt), programs, len(judged), mean, least)


def class_trust(tasks: Iterable[tuple[str, str, float, int]]) -> dict[str, ClassTrust]:
    """Return the trust of each `framework/class`, with `*` for any of either.

    Args:
        tasks: framework, operator class, pairwise accuracy, and programs learnt of each task; 0 of one that judges.
    """
    groups: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for framework, operator, accuracy, programs in tasks:
        for key in (f"{framework}/{operator}", f"*/{operator}", f"{framework}/*"):
            groups[key].append((accuracy, programs))
    return {
        key: ClassTrust.of([a for a, n in own if not n], [a for a, n in own if n], sum(n for _, n in own))
        for key, own in sorted(groups.items())
    }

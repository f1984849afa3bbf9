"""How a tuning run spends its trials."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..search.task_search import SearchSettings


@dataclass(frozen=True)
class SessionSettings:
    """How a tuning run spends its trials.

    Attributes:
        trials: programs to measure in all.
        batch: programs of a task in one round at most; None: as `scheduler.batch_size` says.
        seed: of the searches.
        search: which search, and how far it looks.
        untuned: also measure each task as extracted, once, outside the budget and its clock.
        failure_floor: programs before the failure rate counts.
        failure_rate: share of failed programs at which the run stops.
        early_stop: end the run when one more round of any task is expected to gain less than this share of the
            network's latency; 0: spend all trials.
        reuse: begin with what earlier runs on this machine measured, where a history is given.
    """

    trials: int = 128
    batch: int | None = None
    seed: int = 0
    search: SearchSettings = field(default_factory=SearchSettings)
    untuned: bool = True
    failure_floor: int = 16
    failure_rate: float = 0.9
    early_stop: float = 0.0
    reuse: bool = True

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

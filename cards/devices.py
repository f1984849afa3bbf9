"""What metrics.json of a knowledge base says of each device that it has learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .fields import read_number, read_object, read_objects, read_required
from .scores import Scores

# A checkpoint of one of these has learnt several devices of a kind; all others are of a device family.
KINDS = {"cpu": "CPUs", "gpu": "GPUs"}


@dataclass(frozen=True)
class LearntDevice:
    """One device, in the order of learning.

    Attributes:
        gate: mean gate of its distillation; None for the first device.
        column: scores of the column that learnt it; then: of the base right after it; now: of the base as it is;
            None where they were not measured.
    """

    corpus: str
    device: str
    gate: float | None = None
    column: Scores | None = None
    then: Scores | None = None
    now: Scores | None = None

    @property
    def forgotten(self) -> float | None:
        """Pairwise accuracy lost since it was learnt; below 0 where later devices helped."""
        then, now = self.then and self.then.pairwise, self.now and self.now.pairwise
        return None if then is None or now is None else then - now


def read_devices(metrics: Mapping[str, Any]) -> tuple[LearntDevice, ...]:
    """The list `devices`, () without one; raises CardError for fields of a wrong type."""
    return tuple(_read(row) for row in read_objects(metrics, "devices"))


def _read(row: Mapping[str, Any]) -> LearntDevice:
    told = {key: read_object(row, key) for key in ("column", "learnt", "now")}
    column, then, now = (Scores.read(key, key, line) if line else None for key, line in told.items())
    return LearntDevice(
        read_required(row, "corpus"), read_required(row, "device"), read_number(row, "gate"), column, then, now
    )

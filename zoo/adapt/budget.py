"""How much may be measured: a share of the pool, a number of programs, a time, or as much as pays (`auto`)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from .errors import AdaptError

_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FORM = re.compile(r"(?P<value>[+-]?(\d+(\.\d*)?|\.\d+))\s*(?P<unit>%|[a-z]*)", re.IGNORECASE)
_REMEDY = "write a share of the pool (10%), a number of programs (200), a time (90s, 15m, 1h) or auto"
# A budget that stops itself stops here at the latest: at the share of a pool, and the labels of a task, beyond which
# few-shot curves are flat.
AUTO_SHARE, AUTO_LABELS = 0.5, 32


@dataclass(frozen=True)
class Budget:
    """A budget of measurements.

    Attributes:
        kind: `share` (of the pool, in (0, 1]), `programs` (a count), `seconds` (of building and running) or `auto`
            (rounds, until one more is not worth its time: `stopping`).
        value: the amount, positive; of `auto` the largest share of the pool.
    """

    kind: Literal["share", "programs", "seconds", "auto"]
    value: float
    text: str

    def programs(self, pool_size: int) -> int | None:
        """Return how many programs of a pool may be measured; at least one, at most all. None for a time.

        A share is rounded to the nearest count. Of `auto` it is the most that it measures.
        """
        if self.kind == "seconds":
            return None
        count = self.value if self.kind == "programs" else self.value * pool_size
        return min(pool_size, max(1, math.floor(count + 0.5)))

    def text_for(self, pool_size: int) -> str:
        """Return the text, and the number of programs where a pool has fewer."""
        if self.kind == "programs" and self.value > pool_size:
            return f"{self} (the whole pool: {pool_size})"
        return str(self)

    @property
    def seconds(self) -> float:
        """Seconds that may be spent on measuring; infinite for a count or a share."""
        return self.value if self.kind == "seconds" else math.inf

    def __str__(self) -> str:
        return self.text


def parse_budget(text: str | int | Budget) -> Budget:
    """Read `10%`, `200`, `90s`, `15m`, `1h` or `auto`.

    Raises:
        AdaptError: not one of the forms, zero, negative, over 100%, or a fraction of a program.
    """
    if isinstance(text, Budget):
        return text
    shown = str(text).strip()
    if shown.lower() == "auto":
        return Budget("auto", AUTO_SHARE, "auto")
    match = _FORM.fullmatch(shown)
    if match is None or isinstance(text, bool):
        raise AdaptError(f"unknown budget {shown!r}", remedy=_REMEDY, budget=shown)
    value, unit = float(match["value"]), match["unit"].lower()
    if value <= 0:
        raise AdaptError(f"a budget of {shown} allows no measurement", remedy=_REMEDY, budget=shown)
    if unit == "%":
        if value > 100:
            raise AdaptError(
                f"{shown} is more than the whole pool", remedy="100% measures every candidate", budget=shown
            )
        return Budget("share", value / 100, shown)
    if unit in _UNITS:
        return Budget("seconds", value * _UNITS[unit], shown)
    if unit or not value.is_integer():
        raise AdaptError(f"unknown budget {shown!r}", remedy=_REMEDY, budget=shown)
    return Budget("programs", value, shown)

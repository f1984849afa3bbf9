"""What a sampler picked, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .pool import Pool


@dataclass(frozen=True)
class Reason:
    """Why a program was picked.

    Attributes:
        index: its place in the pool.
        op: operator type.
        round: the round that picked it.
        diversity, uncertainty: what the sampler means by them (of `rdu` d_s, equation 1, and u_s, equations 2
            and 3); total: what it ranked the program by. NaN where it did not ask.
    """

    index: int
    op: str
    round: int
    diversity: float = math.nan
    uncertainty: float = math.nan
    total: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """JSON form; unknown numbers are None."""
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(self).items()}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Reason:
        """Of the JSON form; KeyError, TypeError or ValueError where it is none."""
        known = {k: math.nan if row[k] is None else float(row[k]) for k in ("diversity", "uncertainty", "total")}
        return cls(int(row["index"]), str(row["op"]), int(row["round"]), **known)


@dataclass(frozen=True)
class Selection:
    """What a sampler picked, in the order of picking.

    Attributes:
        indices: (k,) int64 places in the pool, all different.
        reasons: one for each index.
    """

    indices: np.ndarray
    reasons: tuple[Reason, ...]

    @classmethod
    def of(cls, pool: Pool, indices: np.ndarray, round: int, **numbers: np.ndarray) -> Selection:
        """Picks with their reasons.

        Args:
            indices: (k,) places in the pool.
            round: that picked them.
            numbers: `diversity`, `uncertainty` and `total` of each pick, (k,), as far as there are any.
        """
        rows: Iterable[tuple[float, ...]] = zip(*(n.tolist() for n in numbers.values()), strict=True)
        rows = rows if numbers else ((),) * len(indices)
        reasons = tuple(
            Reason(index, pool.op(index), round, **dict(zip(numbers, row, strict=True)))
            for index, row in zip(indices.tolist(), rows, strict=True)
        )
        return cls(indices.astype(np.int64), reasons)

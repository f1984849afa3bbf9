"""The least that an adaptation must measure, refused as early as it is known that a budget does not reach for it."""

from __future__ import annotations

import math

from ...zoo.adapt.budget import Budget
from ...zoo.adapt.errors import BudgetError

# Four programs to judge by, and two for each of the four batches of the default three rounds.
MIN_PROGRAMS = 12


def check_budget(budget: Budget) -> None:
    """Raise BudgetError where the count that was written is too small, whatever the pool."""
    if budget.kind == "programs":
        check_count(budget, math.floor(budget.value))


def check_count(budget: Budget, count: int, candidates: str = "") -> None:
    """Raise BudgetError where the programs that a budget comes to are too few.

    Args:
        budget: as it was written.
        count: programs that it comes to, or the most that it can come to.
        candidates: of how many, in words; empty: not known yet.
    """
    if count >= MIN_PROGRAMS:
        return
    comes_to = f"{budget} is {count} of {candidates}" if candidates else f"{count} programs is too small"
    raise BudgetError(
        f"a budget of {comes_to}; adapting needs {MIN_PROGRAMS}: some to learn from, some to judge by",
        remedy=f"give --budget {MIN_PROGRAMS} or more" + (", or enlarge the pool with --pool" if candidates else ""),
        programs=count,
        least=MIN_PROGRAMS,
    )

"""Words of the benchmarks' documents."""

from __future__ import annotations

from collections.abc import Sequence


def listed(names: Sequence[object], every: Sequence[object] = (), kind: str = "") -> str:
    """Names as a sentence has them: `a, b and c`; all of `every`, if there are some, as `every` and their kind."""
    if len(names) > 1 and set(names) == set(every):
        return f"every {kind}"
    told = [str(name) for name in names]
    return " and ".join(filter(None, (", ".join(told[:-1]), *told[-1:])))

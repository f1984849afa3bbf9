"""What the page shows of the settings of adapting: every value that was tried, beside the one that was chosen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

# A gain is called one where it is so many standard errors above none.
CLEAR = 2.0


def choices(job: Mapping[str, Any]) -> dict[str, Any]:
    """A table a part: pairwise accuracy (top-1) of what is, and what each other value gains over it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in job["details"]["rows"]:
        told = {"setting": row["setting"].replace("_", " ") or "as it is", "instead of": "", "value": ""}
        if row["setting"]:
            told |= {"instead of": _value(row["default"]), "value": _value(row["value"])}
        cells = {_heading(row, labels): _cell(scores) for labels, scores in row["scores"].items()}
        if cells:
            found.setdefault(row["part"][:1].upper() + row["part"][1:], []).append(told | cells)
    return found


def _heading(row: Row, labels: str) -> str:
    return f"{labels} labels" if row["protocol"] == "in-task" else "pairwise (top-1)"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(scores: Row) -> str:
    pairwise, top1 = scores["pairwise"], scores["mean_top1"]
    if "gain" not in pairwise:
        return f"{pairwise['mean']:.3f} ({top1['mean']:.3f})"
    error = "" if pairwise["error"] is None else f" ± {pairwise['error']:.3f}"
    return f"{pairwise['gain']:+.3f}{error} ({top1['gain']:+.3f})"


def lost_choices(job: Mapping[str, Any]) -> Iterator[str]:
    """Values that rank better than the default, for some number of labels, beyond two standard errors."""
    for row in job["details"]["rows"]:
        if row["setting"] and (better := _better(row)):
            value = f"{row['setting'].replace('_', ' ')} {_value(row['value'])} instead of {_value(row['default'])}"
            yield f"{row['part']}, {value}, ranks better than the default: {'; '.join(better)}."


def _better(row: Row) -> Sequence[str]:
    return [
        f"{_cell(scores)} with {_heading(row, labels)}" if row["protocol"] == "in-task" else _cell(scores)
        for labels, scores in row["scores"].items()
        if scores["pairwise"]["error"] is not None and scores["pairwise"]["gain"] > CLEAR * scores["pairwise"]["error"]
    ]

"""Markdown tables of figures, by the shape of what a benchmark wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Longer tables stay in the JSON.
MOST_ROWS = 60


def tables(key: str, value: Any) -> Iterator[str]:
    """Tables of a value by its shape; nothing for what is no table, or too long to read."""
    title = key.replace("_", " ")
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        yield from _rows(title, value)
    elif isinstance(value, dict):
        inner = {k: v for k, v in value.items() if isinstance(v, dict) and not _is_cell(v)}
        lists = {k: v for k, v in value.items() if isinstance(v, list)}
        flat = {k: v for k, v in value.items() if _is_cell(v)}
        if flat:
            yield from (f"**{title}**", "") if title else ()
            yield from table(("figure", "value"), [(k.replace("_", " "), cell(v)) for k, v in flat.items()])
        if inner:
            yield from _rows(title, [{"of": name.replace("_", " ")} | row for name, row in inner.items()])
        for name, rows in lists.items():
            yield from tables(f"{title}: {name}", rows)
    elif _is_cell(value):
        yield from (f"{title}: {cell(value)}", "")


def _rows(title: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    told = [(name, value) for row in rows for name, value in row.items() if _is_cell(value)]
    names = [
        name for name in dict.fromkeys(name for name, _ in told) if any(v is not None for n, v in told if n == name)
    ]
    if len(names) < 2 or len(rows) > MOST_ROWS:
        return
    yield from (f"**{title}**", "") if title else ()
    cells = [tuple(cell(row[name]) if name in row and _is_cell(row[name]) else "" for name in names) for row in rows]
    yield from table(tuple(name.replace("_", " ") for name in names), cells)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of one table, figures to the right; none without rows."""
    if not rows:
        return
    right = [all(_numeric(row[i]) for row in rows) for i in range(len(head))]
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---:" if r else "---" for r in right) + " |"
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def _numeric(text: str) -> bool:
    return text in ("", "yes", "no") or text.strip("*")[0].isdigit() or text.strip("*")[0] == "-"


def _is_spread(value: Any) -> bool:
    return isinstance(value, dict) and {"median", "least", "largest"} <= set(value)


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool) or _is_spread(value)


def cell(value: Any) -> str:
    """A figure to three digits; the median of seeds with the least and the largest."""
    if _is_spread(value):
        alone = value["least"] == value["largest"]
        return cell(value["median"]) + ("" if alone else f" ({cell(value['least'])} to {cell(value['largest'])})")
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")

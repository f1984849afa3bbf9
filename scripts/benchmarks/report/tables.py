"""Markdown tables of figures: from rows and columns, or by the shape of what a benchmark wrote."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

# Longer tables stay in the JSON.
MOST_ROWS = 60
Row = Mapping[str, Any]


def pick(rows: Iterable[Row], columns: Mapping[str, str | Callable[[Row], Any]]) -> list[dict[str, Any]]:
    """Return a table's rows: columns by their titles, each a path of keys (`a.b`) or a function of the row."""

    def value(row: Row, key: str | Callable[[Row], Any]) -> Any:
        return at(row, key) if isinstance(key, str) else key(row)

    return [{title: value(row, key) for title, key in columns.items()} for row in rows]


def at(row: Any, path: str) -> Any:
    """Return what lies under a path of keys; None where one of them is missing."""
    for key in path.split("."):
        row = (row or {}).get(key)
    return row


def tables(key: str, value: Any) -> Iterator[str]:
    """Tables of a value by its shape; nothing for what is no table, or too long to read."""
    title = key.replace("_", " ")
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        yield from _rows(title, value)
    elif isinstance(value, dict):
        inner = {k: v for k, v in value.items() if isinstance(v, dict)}
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


def _rows(title: str, rows: Sequence[Row]) -> Iterator[str]:
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None and _is_cell(value))
    if len(names) < 2 or len(rows) > MOST_ROWS:
        return
    yield from (f"**{title}**", "") if title else ()
    cells = [[cell(row[name]) if name in row and _is_cell(row[name]) else "" for name in names] for row in rows]
    yield from table([name.replace("_", " ") for name in names], cells)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], left: int | None = None) -> Iterator[str]:
    """Yield the lines of one table; none without rows.

    Args:
        left: columns that are aligned to the left, the first ones; None: those that hold other than figures.
    """
    if not rows:
        return
    right = [all(_numeric(row[i]) for row in rows) if left is None else i >= left for i in range(len(head))]
    for line in (head, ["---:" if r else "---" for r in right], *rows):
        yield "| " + " | ".join(map(str, line)) + " |"
    yield ""


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    environment.globals |= {
        "table": lambda head, rows, left=None: "\n".join(table(head, rows, left)).rstrip(),
        "cell": cell,
        "measured_on": measured_on,
        "seeds_of": seeds_of,
    }
    return environment


def render(name: str, **facts: Any) -> str:
    """Return Markdown from a template; it may use `table`, `cell`, `measured_on` and `seeds_of`."""
    return _environment().get_template(f"{name}.md.j2").render(**facts).rstrip() + "\n"


def _numeric(text: str) -> bool:
    return text in ("", "yes", "no") or text.strip("*")[0].isdigit() or text.strip("*")[0] == "-"


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def cell(value: Any) -> str:
    """A figure to three digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|").replace("\n", " ")


def measured_on(job: Row) -> str:
    """The machine that a benchmark ran on."""
    facts = job["machine"]
    return f"{facts['device']} ({facts['cpu_model']}, {facts['cores']} cores)"


def seeds_of(job: Row) -> str:
    """The seeds of a benchmark, as text."""
    return ", ".join(map(str, job["seeds"]))

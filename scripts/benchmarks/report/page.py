"""Write docs/benchmarks.md, the table of docs/scale.md and the README's picture: no figure is typed by hand.

All come from docs/benchmarks/*.json.

python -m scripts.benchmarks.report           # rewrite them
python -m scripts.benchmarks.report --check   # fail when one is out of date

What was not run has no section, and is named on stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import FOLDER, ROOT
from scripts.benchmarks.report.picture import draw, fingerprint, is_current
from scripts.benchmarks.report.scale import fill
from scripts.benchmarks.report.sections import SECTIONS, Section
from scripts.benchmarks.report.tables import cell, table, tables

PAGE, SCALE = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "scale.md"
PICTURE = FOLDER / "speed.svg"


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Every benchmark of the page that was run."""
    files = {section.name: folder / f"{section.name}.json" for section in SECTIONS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/benchmarks.md."""
    lines = [
        "# Benchmarks",
        "Written by `python -m scripts.benchmarks.report` from [docs/benchmarks](benchmarks), where every figure is.",
        "Each benchmark runs tchub and what it is compared with on one machine in one go.",
        "",
    ]
    if "tuning" in found:
        lines += [f"![{picture_words(found)}](benchmarks/{PICTURE.name})", ""]
    if told := list(losses(found)):
        lines += ["## Where tchub loses or misses its goal", *(f"- {line}" for line in told), ""]
    for section in SECTIONS:
        if section.name in found:
            lines += _section(section, found[section.name])
    return "\n".join(lines).rstrip() + "\n"


def picture_words(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What the picture shows, for those who do not see it."""
    networks = sorted({run["network"] for run in found["tuning"]["details"]["runs"]})
    return f"Latency against tuning time, stock and tchub, of {', '.join(networks)}; tchub's gains over stock"


def _section(section: Section, job: Mapping[str, Any]) -> Iterator[str]:
    facts = job["machine"]
    seeds = f"seeds {', '.join(map(str, job['seeds']))}, " if job["seeds"] else ""
    yield from (f"## {section.title}", section.words, "")
    yield (
        f"Measured on {facts['device']} ({facts['cpu_model']}, {facts['cores']} cores), {job['date']}, "
        f"{seeds}by `{job['command']}`."
    )
    yield ""
    if section.goals:
        rows = [_goal(job["summary"], *goal) for goal in section.goals]
        yield from table(("figure", "goal", "found", ""), [row for row in rows if row])
    told = {key.removesuffix("<") for key, *_ in section.goals}
    if section.shape:
        shown = section.shape(job)
    else:
        yield from tables("", {key: value for key, value in job["summary"].items() if key not in told})
        shown = {key: value for key, value in job["details"].items() if key not in section.hidden}
    for key, value in shown.items():
        yield from tables(key, value)
    if left := job["details"].get("not_done"):
        yield from (f"Not run: {', '.join(left)}.", "")


def _goal(summary: Mapping[str, Any], key: str, bound: float, words: str) -> tuple[str, ...] | None:
    at_most, name = key.endswith("<"), key.removesuffix("<")
    value = summary.get(name)
    if value is None:
        return None
    sign = "at most" if at_most else "at least"
    return words, f"{sign} {cell(bound)}", f"**{cell(value)}**", "met" if _met(value, bound, at_most) else "missed"


def _met(value: float, bound: float, at_most: bool) -> bool:
    return value <= bound if at_most else value >= bound


def losses(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Goals that were missed, networks where stock or PyTorch is faster, and rows of which stock does more."""
    for section in SECTIONS:
        summary = found[section.name]["summary"] if section.name in found else {}
        for key, bound, words in section.goals:
            at_most, name = key.endswith("<"), key.removesuffix("<")
            value = summary.get(name)
            if value is not None and not _met(value, bound, at_most):
                aim = f"{'at most' if at_most else 'at least'} {cell(bound)}"
                yield f"{section.title}: {words} is {cell(value)}; the goal is {aim}."
        if section.name in found:
            yield from section.lost(found[section.name])


def _write(path: Path, same: Callable[[], bool], make: Callable[[], str], check: bool) -> bool:
    """Write what is out of date, or say so; returns whether it was."""
    if same():
        return False
    if check:
        click.echo(f"{path.relative_to(ROOT)} is out of date: run python -m scripts.benchmarks.report", err=True)
    else:
        path.write_text(make())
    return True


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when something would change.")
def main(check: bool) -> None:
    """Write docs/benchmarks.md, docs/scale.md's table and docs/benchmarks/speed.svg."""
    found = load(FOLDER)
    for section in SECTIONS:
        if section.name not in found:
            click.echo(f"not run yet: {section.name}", err=True)
    text = page(found)
    stale = _write(PAGE, lambda: PAGE.is_file() and PAGE.read_text() == text, lambda: text, check)
    scale = fill(SCALE.read_text(), found)
    stale |= _write(SCALE, lambda: SCALE.read_text() == scale, lambda: scale, check)
    if "tuning" in found:
        mark = fingerprint(found)
        stale |= _write(PICTURE, lambda: is_current(PICTURE, mark), lambda: draw(found), check)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()

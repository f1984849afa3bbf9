"""Write every figure that a document quotes, from docs/benchmarks/*.json, the checkpoints of the wheel and the index.

None is typed by hand.

python -m scripts.benchmarks.report           # rewrite
python -m scripts.benchmarks.report --check   # exit 1 when something is out of date
"""

import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import FOLDER, ROOT
from scripts.benchmarks.report import adaptation, shapes
from scripts.benchmarks.report.blocks import with_blocks
from scripts.benchmarks.report.leaderboard import leaderboard_markdown, shipped
from scripts.benchmarks.report.picture import TITLE, picture
from scripts.benchmarks.report.tables import Row, cell, measured_on, seeds_of, table, tables

SECTIONS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("sections.toml").read_text())
# The tables to show, instead of everything that the file holds; and sentences on where something else is ahead.
SHOWN: dict[str, tuple[Callable[[Row], Mapping[str, Any]] | None, Callable[[Row], Iterable[str]]]] = {
    **dict.fromkeys([name for name in SECTIONS if name.startswith("rivals")], (shapes.rivals, shapes.lost_rivals)),
    "packaged": (shapes.rivals, shapes.lost_packaged),
    **dict.fromkeys(("tuning", "tuning_intel"), (shapes.tuning, shapes.lost_tuning)),
    "measure": (None, shapes.lost_measure),
    "predict": (shapes.predict, shapes.lost_predict),
    "sampling": (adaptation.sampling, adaptation.lost_sampling),
    "transfer": (adaptation.transfer, adaptation.lost_transfer),
    "coverage": (lambda _: {}, shapes.lost_coverage),
    "fuzz": (shapes.fuzz, lambda _: ()),
    "startup": (shapes.startup, shapes.lost_startup),
    "search": (shapes.search, lambda _: ()),
    "spaces": (shapes.spaces, shapes.lost_spaces),
}
_GENERIC = None, lambda _: ()


def page(results: Mapping[str, Row]) -> str:
    """Return docs/benchmarks.md."""
    lines = [
        "# Benchmarks",
        "Written by `python -m scripts.benchmarks.report` from [docs/benchmarks](benchmarks), where every figure is.",
        "Each benchmark runs tchub and what it is compared with on one machine in one go.",
        "",
        f"![{TITLE}](benchmarks/speed.svg)",
        "",
        "## Where tchub loses or misses its goal",
    ]
    lines += [f"- {line}" for name in SECTIONS for line in losses(name, results[name])]
    for name in SECTIONS:
        lines += ["", *_section(name, results[name])]
        while not lines[-1]:
            lines.pop()
    return "\n".join(lines) + "\n"


def _goals(name: str, summary: Row) -> Iterator[tuple[str, str, str, bool]]:
    """What a figure is, its bound and value as text, and whether it is within the bound."""
    for key, sign, bound, text in SECTIONS[name].get("goals", ()):
        if (value := summary.get(key)) is not None:
            yield text, f"{sign} {cell(bound)}", cell(value), value <= bound if sign == "at most" else value >= bound


def losses(name: str, job: Row) -> Iterator[str]:
    """Goals that a benchmark missed, and rows of which something else does more."""
    for text, aim, value, met in _goals(name, job["summary"]):
        if not met:
            yield f"{SECTIONS[name]['title']}: {text} is {value}; the goal is {aim}."
    yield from SHOWN.get(name, _GENERIC)[1](job)


def _section(name: str, job: Row) -> Iterator[str]:
    section = SECTIONS[name]
    seeds = f"seeds {seeds_of(job)}, " if job["seeds"] else ""
    yield from (f"## {section['title']}", section["text"], "")
    yield f"Measured on {measured_on(job)}, {job['date']}, {seeds}by `{job['command']}`."
    yield ""
    rows = [
        (text, aim, f"**{value}**", "met" if met else "missed")
        for text, aim, value, met in _goals(name, job["summary"])
    ]
    yield from table(("figure", "goal", "found", ""), rows)
    shape, _ = SHOWN.get(name, _GENERIC)
    if shape:
        shown = shape(job)
    else:
        above = {key for key, *_ in section.get("goals", ())}
        yield from tables("", {key: value for key, value in job["summary"].items() if key not in above})
        shown = {key: value for key, value in job["details"].items() if key not in section.get("hidden", ())}
    for key, value in shown.items():
        yield from tables(key, value)
    if left := job["details"].get("not_done"):
        yield f"Not run: {', '.join(left)}."


def documents() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every document that quotes figures."""
    results = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    yield ROOT / "docs/benchmarks.md", page(results)
    rows = results["baselines"]["details"]["rows"]
    yield ROOT / "docs/leaderboard.md", leaderboard_markdown(list(shipped()), rows)
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        if (text := path.read_text()) != (new := with_blocks(text, results)):
            yield path, new
    plot = picture(results)
    if not plot.is_current(FOLDER / plot.file):
        yield FOLDER / plot.file, plot.to_svg()


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when something would change.")
def main(check: bool) -> None:
    """Write docs/benchmarks.md, docs/leaderboard.md, the marked blocks of README and docs, and the README's picture."""
    stale = [(path, text) for path, text in documents() if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        if check:
            click.echo(f"{path.relative_to(ROOT)} is out of date: run python -m scripts.benchmarks.report", err=True)
        else:
            path.write_text(text)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()

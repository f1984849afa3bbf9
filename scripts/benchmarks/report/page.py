"""docs/benchmarks.md: where tchub loses, then a section a benchmark. What was not run has no section."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.benchmarks.report.sections import SECTIONS, Section
from scripts.benchmarks.report.tables import cell, table, tables


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """Every benchmark of the page that was run."""
    files = {section.name: folder / f"{section.name}.json" for section in SECTIONS}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/benchmarks.md."""
    lines = [
        "# Benchmarks",
        "Written by `python -m scripts.benchmarks.report` from [docs/benchmarks](benchmarks), where every figure is.",
        "Each benchmark runs tchub and what it is compared with on one machine in one go.",
        "",
    ]
    if "tuning" in results:
        lines += [f"![{picture_words(results)}](benchmarks/speed.svg)", ""]
    if losing := list(losses(results)):
        lines += ["## Where tchub loses or misses its goal", *(f"- {line}" for line in losing), ""]
    for section in SECTIONS:
        if section.name in results:
            lines += _section(section, results[section.name])
    return "\n".join(lines).rstrip() + "\n"


def picture_words(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What the picture shows, for those who do not see it."""
    networks = sorted({run["network"] for run in results["tuning"]["details"]["runs"]})
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
    goals = {key.removesuffix("<") for key, *_ in section.goals}
    if section.shape:
        shown = section.shape(job)
    else:
        yield from tables("", {key: value for key, value in job["summary"].items() if key not in goals})
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


def losses(results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Goals that were missed, networks where stock or PyTorch is faster, and rows of which stock does more."""
    for section in SECTIONS:
        summary = results[section.name]["summary"] if section.name in results else {}
        for key, bound, words in section.goals:
            at_most, name = key.endswith("<"), key.removesuffix("<")
            value = summary.get(name)
            if value is not None and not _met(value, bound, at_most):
                aim = f"{'at most' if at_most else 'at least'} {cell(bound)}"
                yield f"{section.title}: {words} is {cell(value)}; the goal is {aim}."
        if section.name in results:
            yield from section.lost(results[section.name])

"""The table of docs/scale.md: what was measured of each engine, and what that comes to at a thousand devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from scripts.benchmarks.report.tables import cell, table

DEVICES = 1000
_MARKS = "<!-- scale -->", "<!-- /scale -->"


def rows(found: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Engine, figure, and what it means; from the benchmarks `scale` and `corpus`."""
    told = found["scale"]["summary"]
    run, build = told["run_seconds"], told["build_seconds"]
    demand = DEVICES / run
    an_hour = 3600 * demand
    yield (
        "a device",
        f"a program in {cell(run)} s",
        f"{cell(demand)} programs a second, {cell(an_hour / 1e6)} million an hour",
    )
    yield "builders", f"a program in {cell(build)} s of one core", f"{cell(demand * build)} cores build without a break"
    yield (
        "uploads",
        f"{cell(told['library_kib'])} KiB a program; {cell(told['tracker_upload_mib_per_second'])} MiB/s to one server",
        f"{cell(demand * told['library_kib'] / 1024)} MiB/s leave the builders",
    )
    asked = told["tracker_questions_per_second"]
    yield (
        "RPC tracker, one process",
        f"{cell(asked)} questions a second; a server is back and open again in {cell(told['session_ms'])} ms",
        f"one question a program would serve {cell(asked * run)} devices; a session is for many programs",
    )
    writes = told["journal_writes_per_second"]
    yield (
        "journal, one file",
        f"{cell(writes)} measurements a second",
        f"serves {cell(writes * run)} devices: {cell(demand / writes)} files, a tuner or shard each",
    )
    merged = told["merge_programs_per_second"]
    yield (
        "`tchub corpus merge`",
        f"{cell(merged)} programs a second",
        f"an hour's programs in {_clock(an_hour / merged)}",
    )
    if "corpus" in found:
        learnt = found["corpus"]["summary"]["train_programs_per_second"]
        alone = an_hour / learnt
        yield (
            "training, one process of one thread",
            f"{cell(learnt)} programs a second (TCL)",
            f"an epoch of an hour's programs in {_clock(alone)}; with 8 processes {_clock(alone / 8)} at best",
        )


def _clock(seconds: float) -> str:
    return (
        f"{cell(seconds)} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def fill(text: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """The document with its table rewritten; as it is where nothing was measured."""
    if "scale" not in found:
        return text
    head = ("engine", "measured here", f"with {DEVICES:,} devices")
    job = found["scale"]
    facts = job["machine"]
    where = f"Measured on {facts['device']} ({facts['cpu_model']}, {facts['cores']} cores), {job['date']}, "
    where += f"by `{job['command']}`"
    where += "; training by `python -m scripts.benchmarks corpus`." if "corpus" in found else "."
    body = "\n".join([*table(head, list(rows(found))), where])
    start, end = map(re.escape, _MARKS)
    return re.sub(f"({start}\n).*?({end})", lambda mark: f"{mark[1]}{body}\n{mark[2]}", text, flags=re.DOTALL)

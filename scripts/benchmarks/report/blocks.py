"""The marked blocks of README.md and docs/*.md: tables between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scripts.benchmarks.common import FOLDER, ROOT
from scripts.benchmarks.report.tables import cell, table


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _ranking(job: dict[str, Any]) -> list[str]:
    names = {
        "model": "**TCL (`tcl-epyc`)**",
        "xgboost": "XGBoost on PerStoreFeature (stock features and model)",
        "ten_percent": "TCL from 10% random data (mean of 3 seeds)",
        "random": "random choice",
    }
    results = job["details"]["evaluation"]["results"]
    rows = [_row("ranks held-out networks by", "top-1", "top-5", "pairwise"), _row("---", "---:", "---:", "---:")]
    return rows + [
        _row(title, *(f"{results[name][metric]:.3f}" for metric in ("top1", "top5", "pairwise")))
        for name, title in names.items()
        if name in results
    ]


def _tuning(job: dict[str, Any]) -> list[str]:
    head = ("network", "trials", "seed", "untuned", "stock XGBoost model", "**tchub**", "PyTorch eager")
    rows = [_row(*head), _row("---", *["---:"] * (len(head) - 1))]
    for item in job["details"]["tuning"]:
        ms = {name: _milliseconds(value) for name, value in item["latency_ms"].items()}
        rows.append(
            _row(
                item["network"], item["trials"], item["seed"], ms["untuned"], ms["stock"], f"**{ms['tuned']}**",
                ms.get("pytorch", ""),
            )
        )  # fmt: skip
    return rows


def _main_job() -> str:
    job = json.loads((FOLDER / "main_job.json").read_text())
    facts, evaluation = job["machine"], job["details"]["evaluation"]
    where = (
        f"Measured on {facts['device']} ({facts['cpu_model']}, {facts['cores']} cores, programs on one thread), "
        f"{evaluation['tasks']} tasks and {evaluation['programs']} programs of the five held-out networks, "
        f"corpus `{evaluation['corpus']}`, seeds {', '.join(map(str, job['seeds']))}, by `{job['command']}`."
    )
    return "\n".join([*_ranking(job), "", *_tuning(job), "", where])


def _speed() -> str:
    """Tuning against stock MetaSchedule: what each needed, and the networks' latencies end to end; see bench_tuning."""
    from tchub.zoo.corpus import HELD_OUT

    job = json.loads((FOLDER / "tuning.json").read_text())
    facts, details = job["machine"], job["details"]
    timed: dict[str, dict[str, float]] = {}
    for row in details["latency"]:
        timed.setdefault(row["network"], row["median_ms"])  # of the first seed
    head = ("network", "stock's latency after", "tchub has it after", "PyTorch", "torch.compile", "stock", "**tchub**")
    rows = [_row(*head), _row("---", *["---:"] * (len(head) - 1))]
    compared = {item["network"]: item for item in details["tables"]["tilenet"]}
    for network, ms in timed.items():
        end_to_end = [_ms(ms.get(name)) for name in ("pytorch", "torch.compile", "stock")]
        rows.append(_row(network, *_needed(compared.get(network)), *end_to_end, f"**{_ms(ms.get('tilenet'))}**"))
    model = ", ".join(dict.fromkeys(run["facts"]["model"] for run in details["runs"] if run["system"] == "tilenet"))
    learnt = ", ".join(name for name in timed if name not in HELD_OUT)
    known = f" (and of {learnt}; the others are held out)" if learnt else ""
    spent = "".join(_spent(details, item) for item in compared.values())
    where = (
        "Stock: MetaSchedule with its own builder, runner, search and model, in rounds of 16 programs (its 64 would "
        f"leave most tasks untuned). Both may measure 16 programs a task, batch 1, float32{spent}.\n\n"
        f"tchub: `{model}`, not adapted, which learnt programs of other networks on "
        f"{_learnt_on(model, facts['device'])}{known}. The last four columns are of the whole network, "
        f"compiled from the best programs. {facts['cpu_model']}, {facts['cores']} cores, programs on one thread; "
        f"seeds {', '.join(map(str, job['seeds']))}; by `{job['command']}`. More, and where tchub loses: "
        "[the benchmarks](docs/benchmarks.md)."
    )
    return "\n".join([*rows, "", where])


def _learnt_on(model: str, here: str) -> str:
    """The device of a checkpoint, beside the one that a benchmark ran on."""
    from tchub.hub.registry import Index

    entries = Index.read(ROOT / "hub/registry/index.json").entries
    device = next(entry.data["device"] for entry in entries if entry.name == model.partition("@")[0])
    return "this same device" if device == here else f"another device of its family, `{device}`"


def _spent(details: dict[str, Any], item: dict[str, Any]) -> str:
    """What both measured in the end, and how their latencies compare where they measured as much."""
    stock, ours = (
        statistics.median(
            run["trials"] for run in details["runs"] if (run["network"], run["system"]) == (item["network"], system)
        )
        for system in ("stock", "tilenet")
    )
    equal = item["latency_ratio_equal_trials"]["median"]
    return (
        f"; on {item['network']} stock ended at {stock:.0f} and tchub at {ours:.0f}, and after as many programs "
        f"stock's latency is {equal:.2f} times tchub's"
    )


def _needed(item: dict[str, Any] | None) -> tuple[str, str]:
    """What stock and tchub needed until each had the latency that stock ends with."""
    if item is None:
        return "not run", "-"
    needed = f"{item['seconds_to_stock']['median']:.0f} s, {item['trials_to_stock']['median']:.0f} programs"
    reached = item["reached"] == len(item["seeds"])
    return f"{item['stock_seconds']['median']:.0f} s", needed if reached else "never"


def _ms(value: float | None) -> str:
    return "-" if value is None else _milliseconds(value)


def _milliseconds(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _coverage() -> str:
    """Which networks tune as a user brings them, by family, and why the others do not; see bench_coverage."""
    job = json.loads((FOLDER / "coverage.json").read_text())
    summary = job["summary"]
    cells = [f"{family} {passed}/{tried}" for family, (passed, tried) in summary["passed_by_family"].items()]
    table = [_row("family, tuned/tried", *[""] * 3), _row(*["---"] * 4)]
    table += [_row(*(cells[i : i + 4] + [""] * 4)[:4]) for i in range(0, len(cells), 4)]
    refused = "; ".join(f"{name}: {error}" for name, error in summary["not_passed"].items())
    where = (
        f"{summary['passed']} of {summary['networks']} small networks, as a user brings them, in one shared "
        f"home, 8 trials each, output compared with the original's; by `{job['command']}`."
        + (f" Not: {refused}." if refused else "")
        + (f" {len(summary['not_run'])} more of the list were not run." if summary["not_run"] else "")
    )
    return "\n".join([*table, "", where])


_COLUMNS = {"tilenet": "TileNet", "tcl": "TCL", "tenset-mlp": "TenSet-MLP", "atformer": "ATFormer"}


def _zoo() -> str:
    """A row a device family, a column an architecture: the pairwise accuracy of the newest version, with its card."""
    from tchub.hub.registry import Index

    entries = sorted(Index.read(ROOT / "hub/registry/index.json").entries, key=lambda e: (e.family, e.semver))
    families: dict[str, dict[str, Any]] = {}
    for entry in entries:
        families.setdefault(entry.family, {})[entry.arch.removesuffix("-kb")] = entry
    rows = [_row("device family", "its own device", *_COLUMNS.values()), _row("---", "---", *["---:"] * len(_COLUMNS))]
    for family, listed in families.items():
        kind = " (knowledge base)" if any(entry.arch.endswith("-kb") for entry in listed.values()) else ""
        origin = next(iter(listed.values())).origin or "-"
        rows.append(_row(f"`{family}`{kind}", origin, *(_linked(listed.get(arch)) for arch in _COLUMNS)))
    return "\n".join(rows)


def _linked(entry: Any) -> str:
    """The pairwise accuracy of a checkpoint, linked to its card."""
    if entry is None:
        return ""
    value = entry.metrics.get("pairwise")
    return f"[{'-' if value is None else format(value, '.3f')}](cards/{entry.name}.md)"


def _architectures() -> str:
    """Every architecture with its size on the features that it usually reads."""
    from tchub.zoo.features import get_schema
    from tchub.zoo.models import create, get_architecture, list_architectures

    head = ("architecture", "reads", "features", "parameters", "float32", "described in")
    rows = [_row(*head), _row("---", "---", "---", "---:", "---:", "---")]
    for name in list_architectures():
        known = get_architecture(name)
        schema = get_schema(known.schemas[0])
        count = create(name, width=schema.width, hardware=schema.hardware).parameter_count()
        size = ("as grown", "-") if not count else (f"{count:,}", f"{count * 4 / 2**20:.2f} MiB")
        rows.append(_row(f"`{name}`", schema.source, f"`{schema.name}`", *size, known.paper.removeprefix("none: ")))
    return "\n".join(rows)


DEVICES = 1000


def _scale_rows(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Engine, figure, and what it means; from the benchmarks `scale` and `corpus`."""
    told = results["scale"]["summary"]
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
        "`tchub corpus import`",
        f"{cell(merged)} programs a second",
        f"an hour's programs in {_clock(an_hour / merged)}",
    )
    if "corpus" in results:
        learnt = results["corpus"]["summary"]["train_programs_per_second"]
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


def _scale(results: Mapping[str, Mapping[str, Any]]) -> str:
    """What was measured of each engine, and what that comes to at a thousand devices."""
    head = ("engine", "measured here", f"with {DEVICES:,} devices")
    job = results["scale"]
    facts = job["machine"]
    where = f"Measured on {facts['device']} ({facts['cpu_model']}, {facts['cores']} cores), {job['date']}, "
    where += f"by `{job['command']}`"
    where += "; training by `python -m scripts.benchmarks corpus`." if "corpus" in results else "."
    return "\n".join([*table(head, list(_scale_rows(results))), where])


BLOCKS: dict[str, Callable[[Mapping[str, Mapping[str, Any]]], str]] = {
    "speed": lambda _: _speed(),
    "coverage": lambda _: _coverage(),
    "main-job": lambda _: _main_job(),
    "zoo": lambda _: _zoo(),
    "architectures": lambda _: _architectures(),
    "scale": _scale,
}


def render(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a document with every marked block rewritten."""
    for name, make in BLOCKS.items():
        if f"<!-- {name} -->" in text:
            pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
            body = make(results)
            text = pattern.sub(lambda match, body=body: match[1] + body + "\n" + match[2], text)
    return text

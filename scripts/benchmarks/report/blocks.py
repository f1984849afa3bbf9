"""The marked blocks of README.md and docs/*.md: tables between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scripts.benchmarks.common import ROOT
from scripts.benchmarks.report.shapes import rival_row
from scripts.benchmarks.report.tables import cell, measured_on, seeds_of, table
from scripts.benchmarks.tuning import OURS, REFERENCE, SYSTEMS

Results = Mapping[str, Mapping[str, Any]]


def main_job(results: Results) -> Iterator[str]:
    """How `tcl-epyc` ranks beside the baselines, and what tuning with it gives."""
    names = {
        "model": "**TCL (`tcl-epyc`)**",
        "statements": "XGBoost on PerStoreFeature (stock features and model)",
        "ten_percent": "TCL from 10% random data (mean of 3 seeds)",
        "random": "random choice",
    }
    job = results["main_job"]
    evaluation, tuned = job["details"]["evaluation"], job["details"]["tuning"]
    scores = {title: evaluation["results"][name] for name, title in names.items() if name in evaluation["results"]}
    yield from table(
        ("ranks held-out networks by", "top-1", "top-5", "pairwise"),
        [(title, *(f"{row[key]:.3f}" for key in ("top1", "top5", "pairwise"))) for title, row in scores.items()],
    )
    rows = []
    for row in tuned:
        ms = row["latency_ms"]
        times = (_ms(ms["untuned"]), _ms(ms["stock"]), f"**{_ms(ms['tuned'])}**", _ms(ms.get("pytorch")))
        rows.append((row["network"], row["trials"], row["seed"], *times))
    head = ("network", "trials", "seed", "untuned", "stock XGBoost model", "**tchub**", "PyTorch eager")
    yield from table(head, rows, 1)
    yield (
        f"Measured on {measured_on(job, ', programs on one thread')}, {evaluation['tasks']} tasks and "
        f"{evaluation['programs']} programs of the five held-out networks, corpus `{evaluation['corpus']}`, "
        f"seeds {seeds_of(job)}, by `{job['command']}`."
    )


# Ratios of a network by their columns.
_NEEDED = {
    **{"trials_ratio": "fewer trials", "trials_ratio_near": "to 5%", "time_ratio": "less time"},
    **{"time_ratio_near": "to 5%", "latency_ratio_equal_trials": "latency at equal trials"},
}


def speed(results: Results) -> Iterator[str]:
    """A model from nothing beside tchub's own choice: what each needs, and the networks' latencies."""
    from tchub.zoo.corpus import HELD_OUT

    job = results["tuning"]
    facts, details = job["machine"], job["details"]
    known = {(row["network"], row["system"]): row for row in details["table"]}
    networks = list(dict.fromkeys(row["network"] for row in details["table"]))
    rows = []
    for network in networks:
        theirs, ours = (known.get((network, system), {}) for system in (REFERENCE, OURS))
        ratios = (cell(ours.get(key)) for key in _NEEDED)
        times = (_ms(theirs.get("network_ms")), f"**{_ms(ours.get('network_ms'))}**")
        rows.append((network, _seconds(theirs), _seconds(ours), *ratios, *times))
    seconds = ("seconds, XGBoost", "seconds, tchub")
    head = ("network", *seconds, *_NEEDED.values(), "XGBoost", "**tchub**")
    yield from table(head, rows, 1)
    model = ", ".join(dict.fromkeys(run["model"] for run in details["runs"] if run["system"] == OURS))
    unseen = ", ".join(network for network in networks if network in HELD_OUT)
    unseen = f", none of them of {unseen}" if unseen else ""
    yield (
        f"Both tune by `tchub tune` with {details['runs'][0]['trials']} trials, batch 1, float32, and differ in "
        "`--checkpoint` alone: `stock`, MetaSchedule's XGBoost model from nothing, in MetaSchedule's search, and "
        f"`{model}` in tchub's, not adapted, which learnt programs of {_learnt_on(model, facts['device'])}{unseen}. "
        "*Fewer trials* and *less time*: what XGBoost needs until its final sum of the tasks' latencies (*to 5%*: "
        "until that plus 5%) over what tchub needs for the same; *latency*: XGBoost's sum over tchub's. The last two "
        f"columns are of the whole network, compiled. {facts['cpu_model']}, {facts['cores']} cores, programs on one "
        f"thread, seeds {seeds_of(job)}, by `{job['command']}`.{_same_search(details['systems'])} More, and where "
        "tchub loses: [the benchmarks](benchmarks.md)."
    )


def rivals(results: Results) -> Iterator[str]:
    """Tuned networks beside the runtimes that a user would install instead."""
    job, rows = results["rivals"], results["rivals"]["details"]["rivals"]
    facts, single = job["machine"], [rival_row(row) for row in rows if row["threads"] == 1 and not row["target"]]
    if single:
        cells = [[cell(value) for value in row.values()] for row in single]
        head = ["ms, 1 thread", *list(single[0])[1:]]
        yield from table(head, [[*row[:5], f"**{row[5]}**", *row[6:]] for row in cells], 1)
    several = _ratios([row for row in rows if row["threads"] > 1])
    all_cores = f" With all {facts['cores']} cores the last column is: {several}." if several else ""
    avx2 = _ratios([row for row in rows if row["target"]])
    all_cores += f" With tchub's programs limited to AVX2, PyTorch and OpenVINO too: {avx2}." if avx2 else ""
    model = ", ".join(dict.fromkeys(row["model"] for row in job["details"]["rivals"]))
    yield (
        f"Tuned from nothing with `{model}`; batch 1, float32, outputs checked, one process, systems in turn; the last "
        f"column is the best other runtime's latency over tchub's. {facts['cpu_model']}, {facts['cores']} cores, seed "
        f"{seeds_of(job)}, by `{job['command']}`.{all_cores} Where tchub loses: [the benchmarks](docs/benchmarks.md)."
    )


def _ratios(rows: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{row['network']} {cell(rival_row(row)['best other / tchub'])}" for row in rows)


def _entries() -> list[Any]:
    from tchub.hub.registry import Index

    return sorted(Index.read(ROOT / "hub/registry/index.json").entries, key=lambda e: (e.family, e.semver))


def _learnt_on(model: str, here: str) -> str:
    """The device of a checkpoint, beside the one that a benchmark ran on."""
    entry = next(entry for entry in _entries() if entry.name == model.partition("@")[0])
    device, known = entry.data["device"], entry.transfer.get(here, {}).get("learnt")
    return "this same device" if known or device == here else f"another device of its family, `{device}`"


def _seconds(row: Mapping[str, Any]) -> str:
    """Seconds of tuning; a dash where the system did not run."""
    return f"{row['seconds']:.0f}" if row else "-"


def _same_search(systems: Sequence[Mapping[str, Any]]) -> str:
    """Say what the model alone gives, in the search that XGBoost has too, where that was measured."""
    row = next((row for row in systems if row["system"] == f"{OURS}/metaschedule"), None)
    if row is None:
        return ""
    trials, time = cell(row["trials_ratio"]), cell(row["time_ratio"])
    return (
        f" {SYSTEMS[OURS]} in XGBoost's search: XGBoost needs {trials} times as many trials and {time} times as long."
    )


def _ms(value: float | None) -> str:
    """Three digits, and all of those before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def coverage(results: Results) -> Iterator[str]:
    """Which networks tune as a user brings them, by family, and why the others do not."""
    job = results["coverage"]
    summary = job["summary"]
    cells = [f"{family} {passed}/{tried}" for family, (passed, tried) in summary["passed_by_family"].items()]
    rows = [(cells[i : i + 4] + [""] * 4)[:4] for i in range(0, len(cells), 4)]
    yield from table(("family, tuned/tried", "", "", ""), rows, 4)
    refused = "; ".join(f"{name}: {error}" for name, error in summary["not_passed"].items())
    yield (
        f"{summary['passed']} of {summary['networks']} small networks, as a user brings them, many in one "
        f"home, 8 trials each, output compared with the original's; by `{job['command']}`."
        + (f" Not: {refused}." if refused else "")
        + (f" {len(summary['not_run'])} more of the list were not run." if summary["not_run"] else "")
    )


_COLUMNS = {"tilenet": "TileNet", "tcl": "TCL", "tenset-mlp": "TenSet-MLP", "atformer": "ATFormer"}


def zoo(_: Results) -> Iterator[str]:
    """A row a device family, a column an architecture: the pairwise accuracy of the newest version, with its card."""
    families: dict[str, dict[str, Any]] = {}
    for entry in _entries():
        families.setdefault(entry.family, {})[entry.arch.removesuffix("-kb")] = entry
    rows = []
    for family, listed in families.items():
        kind = " (knowledge base)" if any(entry.arch.endswith("-kb") for entry in listed.values()) else ""
        origin = next(iter(listed.values())).origin or "-"
        rows.append((f"`{family}`{kind}", origin, *(_linked(listed.get(arch)) for arch in _COLUMNS)))
    yield from table(("device family", "its own device", *_COLUMNS.values()), rows, 2)


def _linked(entry: Any) -> str:
    """The pairwise accuracy of a checkpoint, linked to its card."""
    if entry is None:
        return ""
    value = entry.metrics.get("pairwise")
    return f"[{'-' if value is None else format(value, '.3f')}](cards/{entry.name}.md)"


def architectures(_: Results) -> Iterator[str]:
    """Every architecture with its size on the features that it usually reads."""
    from tchub.zoo.features import get_schema
    from tchub.zoo.models import create, get_architecture, list_architectures

    rows = []
    for name in list_architectures():
        known = get_architecture(name)
        schema = get_schema(known.schemas[0])
        count = create(name, width=schema.width, hardware=schema.hardware).parameter_count()
        size = ("as grown", "-") if not count else (f"{count:,}", f"{count * 4 / 2**20:.2f} MiB")
        paper = known.paper.removeprefix("none: ")
        rows.append((f"`{name}`", schema.source, f"`{schema.name}`", *size, paper))
    yield from table(("architecture", "reads", "features", "parameters", "float32", "described in"), rows)


BLOCKS: dict[str, Callable[[Results], Iterator[str]]] = {
    "rivals": rivals,
    "speed": speed,
    "coverage": coverage,
    "main-job": main_job,
    "zoo": zoo,
    "architectures": architectures,
}


def render(text: str, results: Results) -> str:
    """Return a document with every marked block rewritten."""
    for name, block in BLOCKS.items():
        if f"<!-- {name} -->" in text:
            body = "\n".join(block(results)).rstrip()
            marked = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
            text = marked.sub(lambda match, body=body: match[1] + body + match[2], text)
    return text

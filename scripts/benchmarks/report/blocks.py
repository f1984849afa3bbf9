"""The marked blocks of README.md and docs/*.md: tables between `<!-- NAME -->` and `<!-- /NAME -->`."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scripts.benchmarks.common import ROOT
from scripts.benchmarks.report.shapes import rival_row
from scripts.benchmarks.report.tables import cell, render, table
from scripts.benchmarks.rivals import AVX2
from scripts.benchmarks.tuning import OURS, REFERENCE, SYSTEMS

Results = Mapping[str, Mapping[str, Any]]


# Ratios of a network by their columns.
_NEEDED = {
    **{"trials_ratio": "fewer trials", "trials_ratio_near": "to 5%", "time_ratio": "less time"},
    **{"time_ratio_near": "to 5%", "latency_ratio_equal_trials": "latency at equal trials"},
}


def speed(results: Results) -> str:
    """A model from nothing beside tchub's own choice: what each needs, and the networks' latencies."""
    from tchub.zoo.corpus import HELD_OUT

    job, details = results["tuning"], results["tuning"]["details"]
    known = {(row["network"], row["system"]): row for row in details["table"]}
    networks = list(dict.fromkeys(row["network"] for row in details["table"]))
    rows = []
    for network in networks:
        both = [known.get((network, system), {}) for system in (REFERENCE, OURS)]
        seconds = (f"{row['seconds']:.0f}" if row else "-" for row in both)
        times = [row.get("network_ms") for row in both]
        shown = [f"**{_ms(one)}**" if one == min(filter(None, times)) else _ms(one) for one in times]
        rows.append((network, *seconds, *(cell(both[1].get(key)) for key in _NEEDED), *shown))
    model = ", ".join(dict.fromkeys(run["model"] for run in details["runs"] if run["system"] == OURS))
    # What the model alone gives, in the search that XGBoost has too, where that was measured.
    same_search = next((row for row in details["systems"] if row["system"] == f"{OURS}/metaschedule"), None)
    entry = next(entry for entry in _entries() if entry.name == model.partition("@")[0])
    here, device = job["machine"]["device"], entry.data["device"]
    known_here = device == here or entry.transfer.get(here, {}).get("learnt")
    return render(
        "speed",
        job=job,
        rows=rows,
        ratios=list(_NEEDED.values()),
        trials=details["runs"][0]["trials"],
        model=model,
        learnt_on="this same device" if known_here else f"another device of its family, `{device}`",
        unseen=", ".join(network for network in networks if network in HELD_OUT),
        same_search=same_search,
        ours=SYSTEMS[OURS],
    )


def rivals(results: Results) -> str:
    """Return tuned networks beside the runtimes that a user would install instead, with the ratios of each machine."""
    names = "rivals", "rivals_intel", "rivals_amx", "rivals_bfloat16", "rivals_int8"
    job, intel, amx, halved, whole = (results[name] for name in names)
    rows, on_intel, on_amx, in_half, in_bytes = (one["details"]["rivals"] for one in (job, intel, amx, halved, whole))
    single = [rival_row(row) for row in rows if row["threads"] == 1 and not row["target"]]
    ratios = {
        "gain, EPYC": _ratios(rows, 1),
        "EPYC, 2 cores": _ratios(rows, 2),
        "EPYC, AVX2": _ratios(rows, 1, AVX2),
        "Xeon": _ratios(on_intel, 1),
        "Xeon, 2 cores": _ratios(on_intel, 2),
        "Xeon, AMX": _ratios(on_amx, 1),
        "bfloat16": _ratios(in_half, 1),
        "int8": _ratios(in_bytes, 1),
    }
    ratios = {title: one for title, one in ratios.items() if one}  # of what was measured
    titles = ("PyTorch", "torch.compile", "ONNX Runtime", "OpenVINO", "tchub")
    cells = [
        [
            row["network"],
            *(cell(row[title]) for title in titles),
            *(cell(one.get(row["network"])) for one in ratios.values()),
        ]
        for row in single
    ]
    return render(
        "rivals",
        job=job,
        intel=intel,
        amx=amx,
        halved=halved,
        whole=whole,
        head=["ms", *titles, *ratios],
        rows=[[*row[:5], f"**{row[5]}**", *row[6:]] for row in cells],
        trials=rows[0]["trials"],
        longest=max(row["tuning_seconds"] for row in (*rows, *on_intel, *on_amx, *in_half, *in_bytes)),
        model="` and `".join(dict.fromkeys(row["model"] for row in rows)),
        model_intel=", ".join(dict.fromkeys(row["model"] for row in on_intel)),
    )


def _ratios(rows: Sequence[Mapping[str, Any]], threads: int, target: str | None = None) -> dict[str, float]:
    """Return the best other runtime's latency over tchub's, by network."""
    which = [row for row in rows if (row["threads"], row["target"]) == (threads, target)]
    return {row["network"]: rival_row(row)["best other / tchub"] for row in which}


def _entries() -> list[Any]:
    from tchub.hub.registry import Index

    return sorted(Index.read(ROOT / "hub/registry/index.json").entries, key=lambda e: (e.family, e.semver))


def _ms(value: float | None) -> str:
    """Three digits, and all of those before the point."""
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def coverage(results: Results) -> str:
    """Which networks tune as a user brings them, by family, and why the others do not."""
    job, summary = results["coverage"], results["coverage"]["summary"]
    cells = [f"{family} {passed}/{tried}" for family, (passed, tried) in summary["passed_by_family"].items()]
    rows = [(cells[i : i + 5] + [""] * 5)[:5] for i in range(0, len(cells), 5)]
    refused = "; ".join(f"{name}: {error}" for name, error in summary["not_passed"].items())
    files, packaged = results["packaged"]["details"], results["packaged"]["summary"]
    names = {row["network"] for row in (*files["rivals"], *files["refused"])}
    facts = {"files": len(names), "tuned_files": len(names) - packaged["not_tuned"], "packaged": packaged}
    return render("coverage", job=job, summary=summary, rows=rows, refused=refused, **facts)


_COLUMNS = {
    "tilenet": "TileNet",
    "tcl": "TCL",
    "tenset-mlp": "TenSet-MLP",
    "atformer": "ATFormer",
    "fasor": "Fasor",
}


def zoo(_: Results) -> str:
    """A row a device family, a column an architecture: the pairwise accuracy of the newest version, with its card."""
    families: dict[str, dict[str, Any]] = {}
    for entry in _entries():
        families.setdefault(entry.family, {})[entry.arch.removesuffix("-kb")] = entry
    rows = []
    for family, listed in families.items():
        kind = " (knowledge base)" if any(entry.arch.endswith("-kb") for entry in listed.values()) else ""
        origin = next(iter(listed.values())).origin or "-"
        rows.append((f"`{family}`{kind}", origin, *(_linked(listed.get(arch)) for arch in _COLUMNS)))
    return "\n".join(table(("device family", "its own device", *_COLUMNS.values()), rows, 2))


def zoo_corpora(results: Results) -> str:
    """What every corpus of the zoo holds, and where its log is from."""
    corpora: Any = results["corpora"]
    titles = [name for name in corpora[0] if name not in ("broken", "source")]
    rows = [[row[name] for name in titles] for row in corpora]
    sources = [(row["corpus"], row["source"]) for row in corpora if row["source"]]
    return render("zoo-corpora", titles=titles, rows=rows, sources=sources)


def _linked(entry: Any) -> str:
    """The pairwise accuracy of a checkpoint, linked to its card."""
    if entry is None:
        return ""
    value = entry.metrics.get("pairwise")
    return f"[{'-' if value is None else format(value, '.3f')}](cards/{entry.name}.md)"


def architectures(_: Results) -> str:
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
    return "\n".join(table(("architecture", "reads", "features", "parameters", "float32", "described in"), rows))


BLOCKS: dict[str, Callable[[Results], str]] = {
    "rivals": rivals,
    "speed": speed,
    "coverage": coverage,
    "zoo": zoo,
    "zoo-corpora": zoo_corpora,
    "architectures": architectures,
}


def with_blocks(text: str, results: Results) -> str:
    """Return a document with every marked block rewritten."""
    for name, block in BLOCKS.items():
        if f"<!-- {name} -->" in text:
            body = block(results).rstrip()
            marked = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
            text = marked.sub(lambda match, body=body: match[1] + body + match[2], text)
    return text

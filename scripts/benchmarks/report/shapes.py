"""What the page shows of the larger benchmarks' details, as tables that can be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scripts.benchmarks.tuning.runs import OURS

Details = Mapping[str, Any]

_SYSTEM = ("time_ratio", "trials_ratio", "wall_ratio", "latency_ratio_equal_trials", "latency_ratio_at_stock_wall")
_NETWORK = ("stock_final_ms", "final_ms", "stock_seconds", "seconds_to_stock", "trials_to_stock")
_RATIOS = ("time_ratio", "trials_ratio", "latency_ratio_equal_trials")
_RIVALS = {"pytorch": "PyTorch eager", "torch.compile": "torch.compile"}


def tuning(job: Mapping[str, Any]) -> dict[str, Any]:
    """Each system, each network of tchub's, latencies end to end, and the seconds of every run of the first seed."""
    summary, details = job["summary"].get("systems", {}), job["details"]
    found: dict[str, Any] = {
        "Against stock, geometric means over networks": [
            {"system": details["systems"][name]} | {key: row.get(key) for key in (*_SYSTEM, "reached", "runs")}
            for name, row in summary.items()
        ]
    }
    for name, rows in details["tables"].items():
        shown = [{k: row.get(k) for k in ("network", *_NETWORK, *_RATIOS, "reached")} for row in rows]
        found[f"{details['systems'][name]}, each network"] = shown
    found["End to end, ms"] = [
        {"network": row["network"], "seed": row["seed"]} | {_title(n): ms for n, ms in row["median_ms"].items()}
        for row in details["latency"]
    ]
    found["Seconds, first seed"] = [_seconds(run) for run in _first_seed(details["runs"])]
    return found


def _title(name: str) -> str:
    return _RIVALS.get(name, name)


def _first_seed(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    least = min((run["seed"] for run in runs), default=0)
    return [run for run in runs if run["seed"] == least]


def _seconds(run: Mapping[str, Any]) -> dict[str, Any]:
    phases, adaptation = run.get("phases") or {}, run.get("adaptation") or {}
    told = {"network": run["network"], "system": run["system"], "trials": run.get("trials")}
    told |= {"tuning": (run.get("seconds") or {}).get("tuning")}
    return told | {n: phases.get(n) for n in ("search", "model", "measure")} | {"adaptation": adaptation.get("seconds")}


def predict(job: Mapping[str, Any]) -> dict[str, Any]:
    """Microseconds a candidate, by target, task and batch; the forward pass in its forms."""
    details = job["details"]
    found: dict[str, Any] = {
        f"{target}: microseconds a candidate": [
            _scoring(task, size, subjects) for task, subjects in tasks.items() for size in subjects["stock"]
        ]
        for target, tasks in details["tasks"].items()
    }
    return found | {"Forward pass alone": details["forward"]}


def _scoring(task: str, size: str, subjects: Mapping[str, Any]) -> dict[str, Any]:
    stock, ours = subjects["stock"][size], subjects["tilenet"][size]
    others = {"TCL": "tcl", "TenSet-MLP": "tenset-mlp", "TileNet from decisions": "tilenet-decisions"}
    told = {"task": task, "batch": int(size), "stock": stock["us"], "TileNet": ours["us"]}
    told |= {"its features": ours.get("features_us"), "its forward": ours.get("forward_us")}
    told |= {title: subjects[n][size]["us"] for title, n in others.items() if size in subjects.get(n, {})}
    return told | {"stock / TileNet": stock["us"] / ours["us"]}


# Where tchub loses -----------------------------------------------------------------------------------


def lost_tuning(job: Mapping[str, Any]) -> Iterator[str]:
    """Networks on which stock or PyTorch is ahead."""
    details = job["details"]
    for row in details["tables"].get(OURS, ()):
        for key, words in (
            ("latency_ratio_equal_trials", "code at equal trials"),
            ("time_ratio", "time to stock's final latency"),
        ):
            value = row[key]["median"]
            if value < 1:
                yield f"{row['network']}: stock is better in {words} ({value:.3g} times, median of its seeds)."
    for row in details["latency"]:
        times = row["median_ms"]
        for rival, words in _RIVALS.items():
            if OURS in times and rival in times and times[OURS] > times[rival]:
                told = f"{times[OURS]:.3g} ms against {times[rival]:.3g} ms"
                yield f"{row['network']}, seed {row['seed']}: slower than {words}, {told}."


def lost_measure(job: Mapping[str, Any]) -> Iterator[str]:
    """Tasks whose programs stock measures faster."""
    for condition in ("idle", "busy"):
        for name, row in job["details"].get(condition, {}).items():
            if row["rate_ratio"] < 1:
                yield f"{name}, {condition}: stock measures more programs a second ({row['rate_ratio']:.3g} times)."


def lost_predict(job: Mapping[str, Any]) -> Iterator[str]:
    """Tasks that stock scores faster."""
    for target, tasks in job["details"]["tasks"].items():
        for task, subjects in tasks.items():
            for size, row in subjects["stock"].items():
                if row["us"] < subjects["tilenet"][size]["us"]:
                    yield f"{target}, {task}, batches of {size}: stock scores faster."

"""What the page shows of the larger benchmarks' details, as tables that can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from scripts.benchmarks.local.runs import SCRATCH
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


def coverage(job: Mapping[str, Any]) -> dict[str, Any]:
    """A row a network; differences are in units of what the output check allows."""
    return {
        "by network": [
            {
                "network": row["name"],
                "family": row.get("family", ""),
                "brought as": row.get("brought", ""),
                "tasks": row.get("tasks"),
                "result": row["status"].replace("_", " "),
                "output": row.get("output_check", {}).get("tuned", {}).get("verdict", ""),
                "difference": row.get("output_check", {}).get("tuned", {}).get("worst"),
            }
            for row in job["details"]["networks"]
        ]
    }


def lost_coverage(job: Mapping[str, Any]) -> Iterator[str]:
    """Networks that do not tune."""
    for name, error in job["summary"]["not_passed"].items():
        yield f"{name} does not tune: {error}."


def fuzz(job: Mapping[str, Any]) -> dict[str, Any]:
    """A row a target; the kinds of refusal, the commonest first."""
    return {
        "by target": [
            {
                "target": row["target"],
                "inputs": row["inputs"],
                "taken": row["accepted"],
                "refused as": ", ".join(f"{kind} ({count:,})" for kind, count in row["refused"].items()),
                "crashes": len(row["crashes"]),
                "hangs": len(row["hangs"]),
                "slowest ms": row["slowest_ms"],
            }
            for row in job["details"]["targets"]
        ]
    }


def startup(job: Mapping[str, Any]) -> dict[str, Any]:
    """A row a command."""
    return {
        "by command": [
            {
                "command": f"`{name}`",
                "ms": row["median_ms"],
                "quartiles": "{:g} to {:g}".format(*row["quartiles_ms"]),
                "above Python alone": row["above_python_ms"],
                "modules": row["modules"],
                "imports torch or TVM": bool({"torch", "tvm"} & set(row["heavy_modules"])),
            }
            for name, row in job["details"]["commands"].items()
        ]
    }


def lost_startup(job: Mapping[str, Any]) -> Iterator[str]:
    """Commands of tchub that are not faster than the Hub's help."""
    commands = job["details"]["commands"]
    for name, row in commands.items():
        if name.startswith("tchub") and row["median_ms"] >= commands["hf --help"]["median_ms"]:
            yield f"`{name}` takes {row['median_ms']:g} ms, `hf --help` {commands['hf --help']['median_ms']:g} ms."


Row = Mapping[str, Any]

# A gain is called one where it is so many standard errors above none.
CLEAR = 2.0


def choices(job: Mapping[str, Any]) -> dict[str, Any]:
    """A table a part: pairwise accuracy (top-1) of what is, and what each other value gains over it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in job["details"]["rows"]:
        told = {"setting": row["setting"].replace("_", " ") or "as it is", "instead of": "", "value": ""}
        if row["setting"]:
            told |= {"instead of": _value(row["default"]), "value": _value(row["value"])}
        cells = {_heading(row, labels): _cell(scores) for labels, scores in row["scores"].items()}
        if cells:
            found.setdefault(row["part"][:1].upper() + row["part"][1:], []).append(told | cells)
    return found


def _heading(row: Row, labels: str) -> str:
    return f"{labels} labels" if row["protocol"] == "in-task" else "pairwise (top-1)"


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(scores: Row) -> str:
    pairwise, top1 = scores["pairwise"], scores["mean_top1"]
    if "gain" not in pairwise:
        return f"{pairwise['mean']:.3f} ({top1['mean']:.3f})"
    error = "" if pairwise["error"] is None else f" ± {pairwise['error']:.3f}"
    return f"{pairwise['gain']:+.3f}{error} ({top1['gain']:+.3f})"


def lost_choices(job: Mapping[str, Any]) -> Iterator[str]:
    """Values that rank better than the default, for some number of labels, beyond two standard errors."""
    for row in job["details"]["rows"]:
        if row["setting"] and (better := _better(row)):
            value = f"{row['setting'].replace('_', ' ')} {_value(row['value'])} instead of {_value(row['default'])}"
            yield f"{row['part']}, {value}, ranks better than the default: {'; '.join(better)}."


def _better(row: Row) -> Sequence[str]:
    return [
        f"{_cell(scores)} with {_heading(row, labels)}" if row["protocol"] == "in-task" else _cell(scores)
        for labels, scores in row["scores"].items()
        if scores["pairwise"]["error"] is not None and scores["pairwise"]["gain"] > CLEAR * scores["pairwise"]["error"]
    ]


_SECONDS = ("measuring_seconds", "learning_seconds", "tuning_seconds")
_FACTS = ("target", "source", "seed", "programs", "failed")
_ACCURACY = {"zero_shot_before": "pairwise, no label", "before": "before", "after": "after"}
_OUTCOME = {"method": "method", "decision": "decision", "tuned_ms": "tuned ms", "untuned_ms": "untuned ms"}
_SAME = ("network", "target", "seed")
# Means over seeds, of scores on further programs.
_FURTHER = {
    "further_start_pairwise": "source, no label",
    "further_start_given_pairwise": "source, labels as context",
    "further_decided_given_pairwise": "decided on, labels as context",
    "further_start_given_mean_top1": "source, top-1",
    "further_decided_given_mean_top1": "decided on, top-1",
}
_JUDGED = ("further_start_given_pairwise", "further_decided_given_pairwise")


def local(job: Mapping[str, Any]) -> dict[str, Any]:
    """Two tables for each network, then what the targets and sources are."""
    details = job["details"]
    rows = details.get("rows", ())
    found: dict[str, Any] = {}
    for network in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == network]
        found[f"{network}: adapted, then tuned"] = [_told(row) for row in own]
        found[f"{network}: on further programs"] = list(_further(own))
    for name in ("targets", "sources"):
        found[name.capitalize()] = [{"name": key, "what it is": words} for key, words in details.get(name, {}).items()]
    return {title: table for title, table in found.items() if table}


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run's cells; of what a run does not have there is none."""
    told: dict[str, Any] = {name: row[name] for name in _FACTS if name in row}
    told |= {name.replace("_", " "): round(row[name], 1) for name in _SECONDS if row.get(name) is not None}
    told |= {words: row[name] for name, words in _ACCURACY.items() if name in row}
    if {"before", "after", "level", "gain_low", "gain_high"} <= set(row):
        between = f"{row['gain_low']:+.3f} to {row['gain_high']:+.3f}"
        told[f"gain, {row['level']:.0%} interval"] = f"{row['after'] - row['before']:+.3f} ({between})"
    return told | {words: row[name] for name, words in _OUTCOME.items() if name in row}


def _further(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each target and source, and the mean over targets; pairwise accuracy where nothing else is said."""
    judged = [row for row in rows if set(_FURTHER) <= set(row)]
    targets = dict.fromkeys(row["target"] for row in judged)
    for source in dict.fromkeys(row["source"] for row in judged):
        own = [row for row in judged if row["source"] == source]
        for target, those in [(t, [row for row in own if row["target"] == t]) for t in targets] + [("mean", own)]:
            if those:
                told = {words: round(fmean(row[name] for row in those), 3) for name, words in _FURTHER.items()}
                runs = {"runs": len(those), "adapted": sum(row["decision"] == "adapted" for row in those)}
                yield {"source": source, "target": target} | runs | told


def lost_local(job: Mapping[str, Any]) -> Iterator[str]:
    """Sources that adapting left worse, and networks that a model without pretraining tunes to a lower latency."""
    yield from _left_worse(job["details"].get("rows", ()))
    rows = [row for row in job["details"].get("rows", ()) if row.get("tuned_ms")]
    scratch = {_key(row): row["tuned_ms"] for row in rows if row["source"] == SCRATCH}
    for row in rows:
        least = scratch.get(_key(row))
        if least is not None and least < row["tuned_ms"]:
            place = f"{row['network']} on {row['target']}, seed {row['seed']}"
            told = f"{row['tuned_ms']:.3g} ms against {least:.3g} ms"
            yield f"{place}: tuned slower from {row['source']} than without pretraining, {told}."


def _left_worse(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Sources of which the guard stored models that rank further programs worse in the mean, and how many do."""
    by_source: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if {*_JUDGED, "decision"} <= set(row) and row["decision"] == "adapted":
            by_source.setdefault(row["source"], []).append((row[_JUDGED[0]], row[_JUDGED[1]]))
    for source, pairs in by_source.items():
        before, after = map(fmean, zip(*pairs, strict=True))
        if after < before:
            worse = sum(late < early for early, late in pairs)
            told = f"{after:.3f} against {before:.3f}; {worse} of {len(pairs)} adapted models are worse"
            yield f"Adapting on one machine, from {source}: pairwise accuracy on further programs fell, {told}."


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _SAME)

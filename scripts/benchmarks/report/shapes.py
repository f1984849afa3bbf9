"""What the page shows of the details of tuning, scoring, measuring, coverage, fuzzing, start-up and local targets."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

from scripts.benchmarks.report.tables import Row, cell, pick
from scripts.benchmarks.rivals import best_rival
from scripts.benchmarks.tuning import EARLY, RANDOM, REFERENCE, SYSTEMS

_NAMES = {
    **{"trials": "trials_ratio", "time": "time_ratio"},
    **{"trials to 5%": "trials_ratio_near", "time to 5%": "time_ratio_near"},
    **{f"latency at {trials} trials": f"latency_ratio_{trials}_trials" for trials in EARLY},
    **{"latency at equal trials": "latency_ratio_equal_trials", "whole network": "network_ratio"},
}


def tuning(job: Row) -> dict[str, Any]:
    """Each system over all networks, over those that no CPU's checkpoint has learnt, and by network; its seconds."""
    details = job["details"]
    title = {"system": lambda row: SYSTEMS[row["system"]]}
    means = title | {"networks": "networks", "reached": lambda row: f"{row['reached']} of {row['compared']}"} | _NAMES
    each = {"network": "network"} | title
    ends = {"trials spent": "spent", "seconds": "seconds", "sum of tasks ms": "sum_of_tasks_ms"}
    phases = {name: f"phases.{name}" for name in ("search", "model", "measure")}
    return {
        f"Against {SYSTEMS[REFERENCE]}, geometric means over networks": pick(details["systems"], means),
        "The same, networks that no checkpoint of a CPU has learnt from": pick(details["systems_held_out"], means),
        "Each network": pick(details["table"], each | ends | {"network ms": "network_ms"} | _NAMES),
        "Seconds": pick(details["runs"], each | {"seed": "seed", "tuning": "seconds"} | phases),
    }


def predict(job: Row) -> dict[str, Any]:
    """Microseconds a candidate, by target, task and batch."""
    return {
        f"{target}: microseconds a candidate": [
            _scoring(task, size, subjects) for task, subjects in tasks.items() for size in subjects["stock"]
        ]
        for target, tasks in job["details"]["tasks"].items()
    }


def _scoring(task: str, size: str, subjects: Row) -> dict[str, Any]:
    stock, ours = subjects["stock"][size], subjects["tilenet"][size]
    others = {"TCL": "tcl", "TenSet-MLP": "tenset-mlp", "TileNet from decisions": "tilenet-decisions"}
    row = {"task": task, "batch": int(size), "stock": stock["us"], "TileNet": ours["us"]}
    row |= {"its features": ours.get("features_us"), "its forward": ours.get("forward_us")}
    row |= {title: subjects[n][size]["us"] for title, n in others.items() if size in subjects.get(n, {})}
    return row | {"stock / TileNet": stock["us"] / ours["us"]}


def fuzz(job: Row) -> dict[str, Any]:
    """A row a target; the kinds of refusal, the commonest first."""
    columns = {
        "target": "target",
        "inputs": "inputs",
        "taken": "accepted",
        "refused as": lambda row: ", ".join(f"{kind} ({count:,})" for kind, count in row["refused"].items()),
        "crashes": lambda row: len(row["crashes"]),
        "hangs": lambda row: len(row["hangs"]),
        "slowest ms": "slowest_ms",
    }
    return {"by target": pick(job["details"]["targets"], columns)}


def startup(job: Row) -> dict[str, Any]:
    """A row a command."""
    columns = {
        "command": lambda row: f"`{row['name']}`",
        "ms": "median_ms",
        "quartiles": lambda row: "{:g} to {:g}".format(*row["quartiles_ms"]),
        "above Python alone": "above_python_ms",
        "modules": "modules",
        "imports torch or TVM": lambda row: bool({"torch", "tvm"} & set(row["heavy_modules"])),
    }
    commands = job["details"]["commands"]
    return {"by command": pick([{"name": name} | row for name, row in commands.items()], columns)}


# Where tchub loses -----------------------------------------------------------------------------------


def rivals(job: Row) -> dict[str, Any]:
    """Each network with its latencies, a table for each number of threads and target of tchub's programs."""
    shown: dict[str, Any] = {}
    for row in job["details"]["rivals"]:
        title = f"Milliseconds, threads: {row['threads']}"
        title += f", tchub's programs for {row['target']}" if row["target"] else ""
        shown.setdefault(title, []).append(rival_row(row) | {"at peak": row["at_peak"]})
    return shown


def rival_row(row: Row) -> dict[str, Any]:
    """Return a network's latencies in milliseconds, and the best other runtime's over tchub's."""
    titles = {"PyTorch": "pytorch", "torch.compile": "torch.compile", "ONNX Runtime": "onnxruntime"}
    titles |= {"OpenVINO": "openvino", "tchub": "tuned"}
    cells = {"network": row["network"]} | {title: row["ms"].get(name) for title, name in titles.items()}
    cells |= {"trials": row["trials"], "tuning s": round(row["tuning_seconds"])}
    return cells | {"best other / tchub": best_rival(row)[1] / row["ms"]["tuned"]}


def lost_rivals(job: Row) -> Iterator[str]:
    """Networks on which another runtime is ahead."""
    for row in job["details"]["rivals"]:
        name, best = best_rival(row)
        if best < row["ms"]["tuned"]:
            count = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
            count += f", programs for {row['target']}" if row["target"] else ""
            count += "" if job["benchmark"] == "rivals" else f" of {job['machine']['device']}"
            yield f"{row['network']}, {count}: slower than {name}, {row['ms']['tuned']:.3g} ms against {best:.3g} ms."


def lost_packaged(job: Row) -> Iterator[str]:
    """Networks on which another runtime is ahead, and those that do not tune."""
    yield from lost_rivals(job)
    refused = {row["network"]: row for row in job["details"]["refused"]}
    yield from (f"{name} ({row['package']}) is not tuned: {row['reason']}" for name, row in refused.items())


def lost_tuning(job: Row) -> Iterator[str]:
    """Networks on which a model from nothing is ahead of a checkpoint."""
    reference, where = SYSTEMS[REFERENCE], "" if job["benchmark"] == "tuning" else f" on {job['machine']['device']}"
    for row in job["details"]["table"]:
        if row["system"] in (REFERENCE, RANDOM) or not row["compared"]:
            continue
        behind = [f"{name} {cell(row[key])}" for name, key in _NAMES.items() if (row[key] or 1.0) < 1]
        if row["reached"] < row["compared"]:
            behind.insert(0, "never has its final latency")
        if behind:
            yield f"{row['network']}, {SYSTEMS[row['system']]} against {reference}{where}: {', '.join(behind)}."


def lost_measure(job: Row) -> Iterator[str]:
    """Tasks whose programs stock measures faster."""
    for name, row in job["details"]["idle"].items():
        if row["rate_ratio"] < 1:
            yield f"{name}: stock measures more programs a second ({row['rate_ratio']:.3g} times)."


def lost_predict(job: Row) -> Iterator[str]:
    """Tasks that stock scores faster."""
    for target, tasks in job["details"]["tasks"].items():
        for task, subjects in tasks.items():
            for size, row in subjects["stock"].items():
                if row["us"] < subjects["tilenet"][size]["us"]:
                    yield f"{target}, {task}, batches of {size}: stock scores faster."


def lost_coverage(job: Row) -> Iterator[str]:
    """Networks that do not tune."""
    for name, error in job["summary"]["not_passed"].items():
        yield f"{name} does not tune: {error}."


def lost_startup(job: Row) -> Iterator[str]:
    """Commands of tchub that are not faster than the Hub's help."""
    commands = job["details"]["commands"]
    for name, row in commands.items():
        if name.startswith("tchub") and row["median_ms"] >= commands["hf --help"]["median_ms"]:
            yield f"`{name}` takes {row['median_ms']:g} ms, `hf --help` {commands['hf --help']['median_ms']:g} ms."


def search(job: Row) -> dict[str, Any]:
    """Schedules of similar tasks beside the search without, and networks tuned without measuring."""
    details = job["details"]
    shown = {"Means over the networks": _intervals(details["live"]), "Each session": details["live_networks"]}
    return shown | {"Without measuring": details["fast"]}


def spaces(job: Row) -> dict[str, Any]:
    """A row a system."""
    return {"": _intervals(job["details"]["systems"])}


def lost_spaces(job: Row) -> Iterator[str]:
    """Parts of Fasor that need as many measurements as the search that `tune` has, or more."""
    rows = {row["system"]: row["measurements_ratio"]["mean"] for row in job["details"]["systems"] if len(row) > 1}
    own = rows.get("today + database", 0.0)
    for name in ("+ subspace", "+ few-shot", "dqn"):
        if rows.get(name, inf) <= own:
            yield f"Search on measured spaces: {name} saves no measurements ({cell(rows[name])}, without {cell(own)})."


def _intervals(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows with their 95% intervals in one cell each; one seed has none."""

    def text(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return cell(value["mean"]) + ("" if value["half"] is None else f" ± {cell(value['half'])}")

    return [{name: text(value) for name, value in row.items()} for row in rows]

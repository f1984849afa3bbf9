"""What the page shows of the hub's own benchmarks: networks that tune, what the fuzzer fed, how long commands take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


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

"""What every benchmark script shares: machine facts, the file in docs/benchmarks, and the `--json` output."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "benchmarks"
# Figures of docs/benchmarks that were measured before an architecture's recipe changed are of these.
_RECIPES = {"tilenet": "tilenet-sheets"}
_INLINE_DEPTH, _INLINE_WIDTH = 3, 100
_PACKAGES = ("tchub", "apache-tvm", "torch", "xgboost-cpu", "numpy")


def recipe_of(arch: str) -> str:
    """The recipe that the figures of an architecture were measured with, so that a command gives them again."""
    return _RECIPES.get(arch, arch)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    result = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or "unknown"


def machine_facts() -> dict[str, Any]:
    """CPU, cores, memory, versions and load: what a figure depends on."""
    import psutil
    from tchub.hub.device.detect import detect_local

    local = detect_local()
    return {
        "device": local.device.name,
        "cpu_model": local.cpu_model,
        "mcpu": local.mcpu,
        "cores": local.cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "load_at_start": round(os.getloadavg()[0], 2),
        "commit": _commit(),
    }


def repeatable(name: str, arguments: list[str]) -> str:
    """Return the command that makes a benchmark's figures again: without `--minutes`, which only cuts a run short."""
    given = list(arguments)
    while "--minutes" in given:
        at = given.index("--minutes")
        del given[at : at + 2]
    module = ["scripts." + name] if name in ("fuzz", "kills") else ["scripts.benchmarks", name]
    return shlex.join(["python", "-m", *module, *given])


def as_text(value: Any, depth: int = 0) -> str:
    """Return JSON with numbers of seven digits and a line for each row: small, and readable in a difference."""
    if isinstance(value, float):
        return json.dumps(float(f"{value:.7g}"))
    if isinstance(value, Mapping):
        items = [f"{json.dumps(str(key))}: {as_text(item, depth + 1)}" for key, item in value.items()]
        opening, closing = "{}"
    elif isinstance(value, list | tuple):
        items = [as_text(item, depth + 1) for item in value]
        opening, closing = "[]"
    else:
        return json.dumps(value)
    text = ", ".join(items)
    if depth > _INLINE_DEPTH or len(text) < _INLINE_WIDTH:
        return f"{opening}{text}{closing}"
    return opening + ",".join(f"\n{' ' * (depth + 1)}{item}" for item in items) + f"\n{' ' * depth}{closing}"


def finish(
    name: str, summary: Mapping[str, Any], details: Mapping[str, Any], seeds: list[int], as_json: bool, started: float
) -> None:
    """Write `docs/benchmarks/<name>.json` and print the summary.

    Args:
        summary: the figures that the README and the cards quote.
        details: everything that they were computed from.
        started: `time.time()` at the start.
    """
    document = {
        "benchmark": name,
        "command": repeatable(name, sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
        "seconds": round(time.time() - started, 1),
        "seeds": seeds,
        "machine": machine_facts(),
        "summary": dict(summary),
        "details": dict(details),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.json"
    partial = path.with_suffix(".tmp")
    partial.write_text(as_text(document) + "\n")
    os.replace(partial, path)
    if as_json:
        click.echo(json.dumps(document, indent=2))
        return
    width = max(map(len, summary), default=0)
    for key, value in summary.items():
        click.echo(f"{key:<{width}}  {value:.4g}" if isinstance(value, float) else f"{key:<{width}}  {value}")
    click.echo(f"written to {path.relative_to(ROOT)}", err=True)


def listed(names: Sequence[object], every: Sequence[object] = (), kind: str = "") -> str:
    """Names as a sentence has them: `a, b and c`; all of `every`, if there are some, as `every` and their kind."""
    if len(names) > 1 and set(names) == set(every):
        return f"every {kind}"
    told = [str(name) for name in names]
    return " and ".join(filter(None, (", ".join(told[:-1]), *told[-1:])))


def monotone(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The nearest curve that never falls (least squares), at the same places.

    Where a noisy curve first has a score is early by chance; a curve that never falls has no such luck.

    Args:
        points: (effort, score), the least effort first.
    """
    from sklearn.isotonic import isotonic_regression

    if not points:
        return []
    fitted = isotonic_regression([score for _, score in points])
    return [(effort, float(score)) for (effort, _), score in zip(points, fitted, strict=True)]

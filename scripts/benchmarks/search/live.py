"""The searches on this machine: sessions of `tchub tune` with the wheel's schedules and without, and `--mode fast`.

A session is of the same network, checkpoint, seed and number of trials, each in a process, a folder and a home of its
own, so that no earlier run helps.
"""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch

CHECKPOINT, THREADS = "tilenet-epyc", 1
TODAY, DATABASE = "today", "today + database"

# Of each live system: whether it begins with the wheel's schedules, and the settings of its search.
LIVE: dict[str, tuple[bool, dict[str, Any]]] = {
    TODAY: (False, {}),
    DATABASE: (True, {}),
    "dqn + database": (True, {"engine": "dqn"}),
    "dqn + database, no roofline": (True, {"engine": "dqn", "roofline": False}),
}


def tuned(network: str, work: Path, **options: Any) -> Any:
    """Return the result of tuning a network from nothing."""
    os.environ["TCHUB_HOME"] = str(work / "home")
    for folder in (work / "home", work / "network"):
        shutil.rmtree(folder, ignore_errors=True)
    from tchub import hub

    return hub.tune(network, checkpoint=CHECKPOINT, threads=THREADS, out=work / "network", **options)


def tune_tasks(network: str, system: str, seed: int, trials: int, work: Path) -> dict[str, Any]:
    """Return the sum of the tasks' latencies in seconds before and after each trial; infinite before all have one."""
    from tchub.hub.search.schedules import ScheduleDatabase

    with_schedules, search = LIVE[system]
    none = patch.object(ScheduleDatabase, "pretuned", lambda *_: ScheduleDatabase(()))
    with nullcontext() if with_schedules else none:
        options = {"seed": seed, "trials": trials, "reuse": False, "untuned": False}
        run = tuned(network, work, **options, search=search_settings(**search)).report["runs"]["tuned"]
    known = {point["trial"]: point["latency"] for point in run["curve"]}
    facts = {"tasks": len(run["tasks"]), "model": run["model"], "seconds": run["tuning_seconds"]}
    return facts | {"phases": run["phases"], "curve": [known.get(count, inf) for count in range(run["trials"] + 1)]}


def search_settings(engine: str = "auto", roofline: bool = True) -> Any:
    """Return the settings of a live search."""
    from tchub.hub.search.settings import DecisionSettings, DQNSettings, SearchSettings

    dqn = DQNSettings(roofline=roofline) if engine == "dqn" else None
    return SearchSettings(engine=engine, decisions=DecisionSettings(dqn=dqn))


def tune_fast(network: str, per_task: int, work: Path, engine: str | None = None) -> dict[str, Any]:
    """Return latencies of the whole network in ms, compiled without measuring and after a search, and the seconds.

    Args:
        engine: compile without measuring alone, with this engine.
    """
    row: dict[str, Any] = {}
    runs: dict[str, dict[str, Any]] = {"fast": {"mode": "fast"}, "search": {"reuse": False}}
    if engine is not None:
        runs = {engine: {"mode": "fast", "search": search_settings(engine)}}
    for name, options in runs.items():
        if name == "search":
            options["trials"] = row["trials"] = per_task * row["tasks"]
        start = monotonic()
        result = tuned(network, work, **options)
        row |= {f"{name}_seconds": monotonic() - start, f"{name}_ms": 1e3 * result.latency["tuned"]}
        row |= {"tasks": len(result.report["runs"]["tuned"]["tasks"]), "pytorch_ms": 1e3 * result.latency["pytorch"]}
    return row

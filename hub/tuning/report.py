"""The report of a tuning run: `report.json` for programs, `report.html` (one file, no network) for people."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...zoo.files import write_files
from ...zoo.plain_json import plain
from ..networks.transform.fused_attention import AttentionShape
from ..networks.transform.fused_depthwise import DepthwiseShape
from ..networks.transform.winograd import ConvShape
from ..networks.tuned import TunedNetwork, load_tuned
from ..search.scheduler import TaskProgress
from .progress import SessionView, curve
from .report_page import render

if TYPE_CHECKING:
    from ..device.detect import LocalDevice
    from ..networks.tasks import TuningTask
    from ..records.store import MeasuredProgram
    from ..search.choice import AlternativeChoice
    from ..search.cost_model import ModelChoice

FORMAT = 1
# Programs of a task before the order of its scores says something.
MIN_CORRELATED = 4


@dataclass(frozen=True)
class TuneResult:
    """The result of `tune`.

    Attributes:
        report: as `report.json` has it.
        folder: with the library, large weights beside it, `network.json`, `records.sqlite` with every measured program,
            the same as a MetaSchedule database, `report.json` and `report.html`.
    """

    report: dict[str, Any]
    folder: Path
    library: Path

    @property
    def latency(self) -> dict[str, float]:
        """Return the median end-to-end latency in seconds by system: untuned, tuned, pytorch, and stock where compared.

        Without pytorch for a remote device, and empty where `report["latency_note"]` says why.
        """
        return {name: facts["median"] for name, facts in self.report["latency"].items()}

    def load(self) -> TunedNetwork:
        """Return the tuned network, to be called as the original; see `load_tuned`."""
        return load_tuned(self.folder)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return self.report


@dataclass
class SessionOutcome:
    """One session, done or stopped.

    Attributes:
        label: `tuned` or `stock`.
        model: what guided it.
        database: MetaSchedule's, with its programs.
        folder: of its store.
        choice: between the ways to compute its operators.
        seconds: wall time of this process.
        chosen: MetaSchedule's database of programs to compile that were not measured; None: the fastest of `database`.
    """

    label: str
    model: ModelChoice
    view: SessionView
    database: Any
    folder: Path
    choice: AlternativeChoice
    seconds: float = 0.0
    chosen: Any = None


def make_report(
    facts: dict[str, Any], outcomes: Sequence[SessionOutcome], local: LocalDevice, status: str, started: float
) -> dict[str, Any]:
    """Return the report as JSON-serialisable data; latencies in seconds.

    Args:
        facts: network, target, threads, settings.
        status: `done` or `interrupted`.
        started: unix time.
    """
    return {
        "format": FORMAT,
        "status": status,
        **facts,
        "notes": [*facts.get("notes", ()), *(note for outcome in outcomes for note in outcome.view.notes)],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "machine": {
            "cpu_model": local.cpu_model,
            "device": local.device.name,
            "family": local.family,
            "mcpu": local.mcpu,
            "cores": local.cores,
            "system": platform.platform(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("tchub", "apache-tvm", "torch")},
        },
        "runs": {outcome.label: _run(outcome) for outcome in outcomes},
    }


def _run(outcome: SessionOutcome) -> dict[str, Any]:
    view, chosen = outcome.view, outcome.choice.chosen()
    tuned = view.tuned
    weights = outcome.choice.weights({})  # of the network as it is
    untuned = sum(weight * view.untuned.get(task, float("nan")) for task, weight in weights.items() if weight)
    return {
        "model": outcome.model.name,
        "update": outcome.model.update,
        "reasons": list(outcome.model.reasons),
        "trials": len(tuned),
        "trials_asked": view.trials,
        "failed": sum(program.failure is not None for program in tuned),
        "unread": view.unread,
        # Programs that earlier runs had measured, where the session looks for them.
        "reused": view.reused,
        "batch": view.batch,
        # Convolutions by Winograd's algorithm, and several operators by one function each, by their shapes.
        "winograd": [asdict(shape) for shape in sorted(s for s in chosen if isinstance(s, ConvShape))],
        "fused_attention": [asdict(shape) for shape in sorted(s for s in chosen if isinstance(s, AttentionShape))],
        "fused_depthwise": [asdict(shape) for shape in sorted(s for s in chosen if isinstance(s, DepthwiseShape))],
        "tuning_seconds": view.clock,
        "wall_seconds": outcome.seconds,
        "phases": dict(view.phases),
        "sum_of_tasks": _finite(view.latency()),
        "sum_of_tasks_untuned": _finite(untuned),
        "prediction": agreement(tuned),
        "curve": curve(view.programs, outcome.choice.weights, view.untuned),
        "tasks": [_task(t, p, view) for t, p in zip(view.tasks, view.progress, strict=True)],
        "programs": [
            {
                "task": program.task_id,
                "seconds": program.clock,
                "latency": _finite(program.latency),
                "predicted": program.predicted,
                "error": program.failure,
            }
            for program in tuned
        ],
    }


def _task(task: TuningTask, progress: TaskProgress, view: SessionView) -> dict[str, Any]:
    mine = [program for program in view.tuned if program.task_id == task.task_id]
    return {
        "id": task.task_id,
        "name": task.name,
        "op": task.op,
        "weight": task.weight,
        "flops": task.flops,
        "one_program": progress.fixed,
        "exhausted": progress.exhausted,
        "trials": len(mine),
        "failed": sum(program.failure is not None for program in mine),
        "untuned": view.untuned.get(task.task_id),
        "kept_untuned": task.task_id in view.better_untuned(),
        "best": _finite(progress.best),
        "spearman": spearman(mine),
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def _scored(programs: Sequence[MeasuredProgram]) -> list[tuple[float, float]]:
    return [(p.predicted, p.latency) for p in programs if p.predicted is not None and isfinite(p.latency)]


def spearman(programs: Sequence[MeasuredProgram]) -> float | None:
    """Return the rank correlation of scores with speed, in [-1, 1]; None for fewer than 4 programs, or all alike."""
    pairs = _scored(programs)
    if len(pairs) < MIN_CORRELATED:
        return None
    scores, latencies = zip(*pairs, strict=True)
    if len(set(scores)) == 1 or len(set(latencies)) == 1:
        return None
    from scipy.stats import spearmanr  # which takes a second to import

    return -float(spearmanr(scores, latencies)[0])  # pyright: ignore[reportArgumentType]


def agreement(programs: Sequence[MeasuredProgram]) -> dict[str, Any]:
    """Return how well scores and measurements agree: pairwise accuracy, and the median rank correlation of a task.

    These programs are the search's picks, alike and all thought good, so that agreement is lower here than
    on a test set of random programs.
    """
    groups = [[p for p in programs if p.task_id == task] for task in {p.task_id for p in programs}]
    correlations = [value for group in groups if (value := spearman(group)) is not None]
    right = total = 0
    for group in groups:
        for (score, latency), (other_score, other_latency) in combinations(_scored(group), 2):
            if latency != other_latency and score != other_score:
                total += 1
                right += (score > other_score) == (latency < other_latency)
    return {
        "pairs": total,
        "pairwise_accuracy": right / total if total else None,
        "median_spearman": float(np.median(correlations)) if correlations else None,
        "tasks": len(correlations),
    }


def write_report(report: dict[str, Any], folder: Path) -> None:
    """Write `report.json` and `report.html`, each atomically."""
    text = json.dumps(plain(report), indent=1, allow_nan=False)
    write_files(folder, {"report.json": text.encode(), "report.html": render(report, folder).encode()})

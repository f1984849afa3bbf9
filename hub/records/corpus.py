"""Measured programs of the store as a corpus."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tvm

from ...zoo.corpus import Corpus, Program, Task, merge_corpus
from ...zoo.corpus.tir import computation_of_module
from ..device.detect import LocalDevice
from ..device.timing import TimingConfig
from ..networks.tasks import TuningTask
from .store import MeasuredProgram

LICENCE = "Apache-2.0"


def as_program(program: MeasuredProgram, facts: Mapping[str, Any]) -> Program:
    """Return a program of a corpus, whose `facts` are `device`, `cpu_model`, `target` and `tvm_version`."""
    measurement = program.measurement
    return Program(
        task_id=program.task_id,
        key=program.key,
        trace=program.trace,
        strategy=program.strategy,
        latencies=measurement.latencies,
        latency=measurement.latency,
        device=facts["device"],
        target=json.dumps(facts["target"], sort_keys=True),
        error=measurement.error,
        error_message=measurement.message,
        cpu_model=facts["cpu_model"],
        tvm_version=facts["tvm_version"],
        measured_at=measurement.measured_at or math.nan,  # 0 in the store, where nothing was run
        cost_seconds=measurement.cost_seconds or math.nan,
    )


def export_corpus(
    programs: Iterable[MeasuredProgram],
    tasks: Sequence[TuningTask],
    device: LocalDevice,
    folder: Path,
    *,
    command: str,
    timing: TimingConfig,
    licence: str = LICENCE,
) -> Corpus:
    """Add the programs of these tasks to the corpus folder."""
    known = {task.task_id: task for task in tasks}
    facts = {"device": device.device.name, "cpu_model": device.cpu_model, "target": device.target}
    facts |= {"tvm_version": str(tvm.__version__)}
    new = [as_program(program, facts) for program in programs if program.task_id in known]
    used = {program.task_id for program in new}
    rows = [
        Task(
            t.task_id,
            t.name,
            t.op,
            t.flops,
            workload=str(tvm.ir.save_json(t.mod)),
            computation=computation_of_module(t.mod),
            networks=tuple(sorted(t.networks.items())),
        )
        for t in tasks
        if t.task_id in used
    ]
    meta = facts | {
        # The spec sheet with what was measured here: a model's hardware row is that of the machine, not of the part.
        "device_sheet": device.device.to_dict(),
        "family": device.family,
        "threads": device.cores,
        "command": command,
        "licence": licence,
        "notes": "measured by tchub with forked workers, random inputs; latency is the median of the repeats",
        "timing": asdict(timing),
    }
    return merge_corpus(folder, meta, rows, new)

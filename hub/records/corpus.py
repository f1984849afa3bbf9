"""Measured programs of the store as a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import tvm

from ...zoo.corpus import Corpus, Program, Task, merge_corpus
from ...zoo.corpus.tir import computation_of_module
from ..device.detect import LocalDevice
from ..device.timing import TimingConfig
from ..networks.tasks import TuningTask
from .store import MeasuredProgram

LICENCE = "Apache-2.0"


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
    version = str(tvm.__version__)
    known = {task.task_id: task for task in tasks}
    target = json.dumps(device.target, sort_keys=True)
    new = [
        Program(
            task_id=program.task_id,
            key=program.key,
            trace=program.trace,
            strategy=program.strategy,
            latencies=program.measurement.latencies,
            latency=program.measurement.latency,
            device=device.device.name,
            target=target,
            error=program.measurement.error,
            error_message=program.measurement.message,
            cpu_model=device.cpu_model,
            tvm_version=version,
            measured_at=program.measurement.measured_at,
            cost_seconds=program.measurement.cost_seconds,
        )
        for program in programs
        if program.task_id in known
    ]
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
    meta = {
        "device": device.device.name,
        # The spec sheet with what was measured here: a model's hardware row is that of the machine, not of the part.
        "device_sheet": device.device.to_dict(),
        "family": device.family,
        "cpu_model": device.cpu_model,
        "target": device.target,
        "threads": device.cores,
        "tvm_version": version,
        "command": command,
        "licence": licence,
        "notes": "measured by tchub with forked workers, random inputs; latency is the median of the repeats",
        "timing": asdict(timing),
    }
    return merge_corpus(folder, meta, rows, new)

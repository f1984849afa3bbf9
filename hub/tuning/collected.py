"""What a journal holds, as a corpus: records of programs, tasks with their computations, and facts of the device."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...zoo.corpus import Corpus, Program, Task, merge_corpus
from ...zoo.corpus.tir import computation_of_module
from ..device.detect import LocalDevice
from ..device.measure import MeasureConfig
from ..records.journal import Entry, Journal

if TYPE_CHECKING:
    from ..networks.tasks import TuningTask

LICENCE = "Apache-2.0"


def to_program(entry: Entry, device: LocalDevice, tvm_version: str) -> Program:
    """A journal entry as a corpus record."""
    measured = entry.measurement
    return Program(
        task_id=entry.task_id,
        key=entry.key,
        trace=entry.trace,
        strategy=entry.strategy,
        latencies=measured.latencies,
        latency=measured.latency,
        device=device.device.name,
        target=json.dumps(device.target, sort_keys=True),
        error=measured.error,
        error_message=measured.message,
        cpu_model=device.cpu_model,
        tvm_version=tvm_version,
        measured_at=measured.measured_at,
        cost_seconds=measured.cost_seconds,
    )


def export(
    journal: Journal,
    tasks: Sequence[TuningTask],
    device: LocalDevice,
    folder: Path,
    *,
    command: str,
    licence: str = LICENCE,
) -> Corpus:
    """Add the journal's programs of these tasks to the corpus folder; the journal stays as it is."""
    import tvm

    version = str(tvm.__version__)
    known = {task.task_id: task for task in tasks}
    programs = [to_program(e, device, version) for e in journal.entries() if e.task_id in known]
    used = {program.task_id for program in programs}
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
        "timing": asdict(MeasureConfig().timing),
    }
    return merge_corpus(folder, meta, rows, programs)

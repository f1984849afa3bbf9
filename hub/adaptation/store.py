"""The end of an adaptation: the corpus of what was measured, the stored checkpoint, and the result."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...cards import METRICS_FORMAT
from ...zoo.corpus import Program, Task, merge_corpus
from ...zoo.models import Checkpoint
from ...zoo.plain_json import json_file
from .card import data_licence, learnt_corpora, lineage_of, local_card
from .first import first_sampler
from .job import AdaptJob
from .measure import PoolMeasuring
from .name import adapted_name
from .pool import CandidatePool
from .result import AdaptResult, Pick, TaskCount
from .seen import LEARNT, PoolPrograms, corpus_marks, learnt_marks
from .settings import Clock, Outcome


def finish(
    job: AdaptJob, folder: Path, programs: PoolPrograms, measuring: PoolMeasuring, outcome: Outcome, clock: Clock
) -> AdaptResult:
    """Write the corpus, store the model if it is better, and tell it all."""
    pool = programs.pool
    with clock("store"):
        corpus = _write_corpus(job, folder / f"corpus-{job.scope_id}", pool, measuring)
        counts = _counts(pool, measuring, outcome)
        base = outcome.start.base
        name, version, path = base.entry.name, None, None
        if outcome.judgement.guard.decision == "adapted":
            name, version, path = _store(job, outcome, counts, _learnt(job, programs, outcome))
    return AdaptResult(
        base=base.entry.id,
        base_reasons=base.reasons,
        asked=base.asked,
        workload=job.workload,
        device=job.local.device.name,
        target=job.local.target,
        threads=job.threads,
        method=job.settings.method,
        sampler=job.settings.sampler.name,
        first_sampler=first_sampler(job.settings.sampler).name,
        rounds=job.settings.rounds,
        seed=job.settings.seed,
        sources=job.sources.names,
        start=outcome.start.reason,
        learning=_learning(outcome),
        curve=outcome.curve,
        stop=outcome.stop,
        budget=job.settings.budget.text_for(len(pool)),
        pool_size=len(pool),
        measured=counts["programs"],
        failed=counts["failed"],
        reused=measuring.reused,
        tasks=_task_counts(pool, measuring, outcome),
        skipped=pool.skipped,
        picks=_picks(pool, measuring, outcome),
        seconds=clock.seconds,
        measuring_seconds=measuring.seconds,
        before=outcome.judgement.before,
        after=outcome.judgement.after,
        zero_shot=outcome.judgement.zero_shot,
        context=outcome.judgement.context,
        guard=outcome.judgement.guard,
        name=name,
        version=version,
        path=path,
        journal=folder / "journal.sqlite",
        corpus=corpus,
    )


def _learning(outcome: Outcome) -> dict[str, Any]:
    made = outcome.adapted
    return {
        "method": made.method,
        "strength": made.strength,
        "cross_validated_gain": made.learnt_gain,
        "reason": made.reason,
        "tried": [tried.as_dict() for tried in made.tried],
        "training": made.facts,
    }


def _counts(pool: CandidatePool, measuring: PoolMeasuring, outcome: Outcome) -> dict[str, int]:
    return {
        "pool": len(pool),
        "programs": len(measuring.results),
        "learn": len(outcome.reasons),
        "hold_out": len(outcome.hold_out),
        "failed": sum(result.error is not None for result in measuring.results.values()),
        "tasks": len({pool.entries[index].task for index in measuring.results}),
    }


def _learnt(job: AdaptJob, programs: PoolPrograms, outcome: Outcome) -> list[str]:
    """Marks of what the model learnt of this device: here, in its start, and of corpora of the same device."""
    marks = programs.marks(reason.index for reason in outcome.reasons)
    before = [learnt_marks(base.checkpoint.config) for base in outcome.start.made_of]
    corpora = [corpus for corpus in learnt_corpora(job, outcome) if corpus.meta["device"] == programs.device]
    return sorted(marks.union(*before, *map(corpus_marks, corpora)))


def _store(job: AdaptJob, outcome: Outcome, counts: dict[str, int], learnt: list[str]) -> tuple[str, str, Path]:
    base, judgement = outcome.start.base, outcome.judgement
    name = adapted_name(base.entry.name, job.variant)
    lineage = lineage_of(job, outcome, counts)
    licences = {"weights_licence": lineage["weights_licence"], "data_licence": data_licence(job, outcome)}
    data = {"device": job.local.device.name, "programs": counts["programs"], "tasks": counts["tasks"]}
    model = outcome.adapted.model

    def save(folder: Path, version: str) -> None:
        config = replace(
            base.checkpoint.config,
            name=name,
            version=version,
            arch=model.arch,
            model=model.config.as_dict(),
            family=job.local.family,
            device=job.local.device.to_dict(),
            lineage=lineage,
            training={
                "few_shot": job.settings.fine_tune.as_dict(),
                "parameters": model.parameter_count(),
                "corpus": data | {"licence": licences["data_licence"], "threads": job.threads},
                LEARNT: learnt,
            },
            tvm=job.tools.tvm_version(),
        )
        Checkpoint(config, model, job.local.device).save(folder)
        metrics = {
            "format": METRICS_FORMAT,
            "split": "measured hold-out",
            "results": {"model": judgement.after, "base": judgement.before},
            "guard": judgement.guard.as_dict(),
        }
        (folder / "metrics.json").write_bytes(json_file(metrics))
        card = local_card(lineage | licences | {"name": name, "version": version}, judgement)
        (folder / "README.md").write_text(card, encoding="utf-8")

    entry, path = job.tools.register(name, save, base.entry, data=data, **licences)
    return name, entry.version, path


def _write_corpus(job: AdaptJob, path: Path, pool: CandidatePool, measuring: PoolMeasuring) -> Path:
    """Everything measured, as a corpus that `tchub train` can read."""
    target = json.dumps(job.local.target, sort_keys=True)
    meta = {
        "device": job.local.device.name,
        "family": job.local.family,
        "cpu_model": job.local.cpu_model,
        "target": job.local.target,
        "threads": job.threads,
        "tvm_version": job.tools.tvm_version(),
        "licence": "unpublished",
        "command": f"tchub adapt {job.sources.bases[0].entry.id} --workload {job.workload}",
        "notes": "programs measured while adapting a checkpoint",
    }
    used = {pool.entries[index].task for index in measuring.results}
    tasks = [
        Task(
            t.task_id,
            t.name,
            t.op,
            t.flops,
            workload=job.tools.workload_text(t),
            computation=job.tools.computation(t),
            networks=tuple(sorted(t.networks.items())),
        )
        for number, t in enumerate(pool.tasks)
        if number in used
    ]
    programs = [
        Program(
            task_id=pool.tasks[entry.task].task_id,
            key=entry.key,
            trace=entry.trace,
            strategy=entry.strategy,
            latencies=result.latencies,
            latency=result.latency,
            device=job.local.device.name,
            target=target,
            error=result.error,
            error_message=result.message,
            cpu_model=job.local.cpu_model,
            tvm_version=job.tools.tvm_version(),
            measured_at=result.measured_at,
            cost_seconds=result.cost_seconds,
        )
        for index, result in measuring.results.items()
        for entry in [pool.entries[index]]
    ]
    return merge_corpus(path, meta, tasks, programs).path


def _picks(pool: CandidatePool, measuring: PoolMeasuring, outcome: Outcome) -> tuple[Pick, ...]:
    """What judges, then what was learnt from in the order of picking."""
    reasons = {reason.index: reason for reason in outcome.reasons}
    picks = []
    for index in (*outcome.hold_out, *reasons):
        entry, reason, result = pool.entries[index], reasons.get(index), measuring.results[index]
        task = pool.tasks[entry.task]
        why = dict.fromkeys(("round", "diversity", "uncertainty", "total"))
        if reason is not None:
            why = {key: value for key, value in reason.as_dict().items() if key in why}
        latency = None if math.isnan(result.latency) else result.latency
        part = "hold-out" if reason is None else "learn"
        picks.append(
            Pick(task.task_id, task.name, task.op, entry.key, part, **why, latency=latency, error=result.error)
        )
    return tuple(picks)


def _task_counts(pool: CandidatePool, measuring: PoolMeasuring, outcome: Outcome) -> tuple[TaskCount, ...]:
    group = pool.group
    sizes = np.bincount(group, minlength=len(pool.tasks))
    learn = Counter(int(group[reason.index]) for reason in outcome.reasons)
    held = Counter(int(group[index]) for index in outcome.hold_out)
    failed = Counter(int(group[i]) for i, result in measuring.results.items() if result.error is not None)
    return tuple(
        TaskCount(task.task_id, task.name, task.op, int(sizes[i]), learn[i], held[i], failed[i])
        for i, task in enumerate(pool.tasks)
    )

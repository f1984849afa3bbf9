"""The steps of one run of the local benchmark: where the model starts, adapting, tuning; and the judge of all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.common import kept, note, read_json


@dataclass(frozen=True)
class LocalTarget:
    """A target of this machine: `level` is LLVM's, None for all that the CPU has; `other` is what the source has."""

    text: str
    level: str | None
    threads: int
    other: str


TARGETS = {
    "full-1": LocalTarget("all instructions, 1 thread", None, 1, "v2-1"),
    "v2-1": LocalTarget("x86-64-v2 (128-bit vectors), 1 thread", "x86-64-v2", 1, "full-1"),
    "full-2": LocalTarget("all instructions, 2 threads", None, 2, "full-1"),
}
# In the order of running: `other` learns what `epyc` measured for another target.
OWN, SCRATCH, OTHER = "epyc", "none", "other"
SOURCES = {
    OWN: "tilenet-epyc, learnt from programs of an EPYC Turin with all its instructions",
    SCRATCH: "no pretraining: a random TileNet",
    "xeon": "tilenet-xeon, learnt from AutoTVM's programs of another x86 CPU",
    OTHER: "tilenet-epyc, which learns besides what was measured for another of these targets (with all methods)",
}
CHECKPOINTS = {OWN: "tilenet-epyc", "xeon": "tilenet-xeon", OTHER: "tilenet-epyc"}
ARCHITECTURE = "tilenet"


# Programs a task to learn from, on the average (a quarter of them more are held out); those that tuning measures;
# candidates of a task; what picks among them and what learns.
SETTINGS: dict[str, Any] = {"labels": 8, "trials": 64, "pool": 64, "sampler": "rdu+", "method": "few-shot"}
# Further programs a task, which judge start and result.
JUDGING = 24


@dataclass(frozen=True)
class LocalRun:
    """One network, target, source and seed; `work`: folder of all runs."""

    work: Path
    network: str
    target: str
    source: str
    seed: int

    @property
    def at(self) -> LocalTarget:
        return TARGETS[self.target]

    @property
    def folder(self) -> Path:
        return self.work / self.network / "-".join(map(str, (self.target, self.source, self.seed, *SETTINGS.values())))

    @property
    def pool_folder(self) -> Path:
        """The candidates of its network and target, whatever the source."""
        return self.work / self.network / f"pool-{self.target}-{self.seed}-{SETTINGS['pool']}"

    @property
    def label(self) -> str:
        return f"{self.network}, {self.target}, from {self.source}, seed {self.seed}"

    def row(self) -> dict[str, Any] | None:
        """What it came to; None while it is not done."""
        path = self.folder / "row.json"
        return read_json(path) if path.is_file() else None


# What is neither measuring nor learning.
_PREPARING = ("prepare", "tasks", "candidates", "features", "store")
# Far from the start is where a random model has to go.
_FROM_NOTHING = {"learning_rate": 1e-3, "head_learning_rate": 1e-3, "anchor": 0.0, "update": "all"}
_SECONDS_PER_SYSTEM = 6.0


def do_run(run: LocalRun) -> dict[str, Any]:
    """Adapt, tune, and keep the row. A step that was cut short is done anew: its clock cannot be taken up."""
    adapted = kept(run.folder / "adapted.json", lambda: _adapt(run))
    row = {name: getattr(run, name) for name in ("network", "target", "source", "seed")} | adapted
    row |= {name: SETTINGS[name] for name in ("labels", "sampler", "method")}
    return kept(run.folder / "row.json", lambda: row | {"tune": _tune(run, adapted["checkpoint"], adapted["update"])})


def _adapt(run: LocalRun) -> dict[str, Any]:
    from tchub import hub
    from tchub.hub.adaptation.config import AdaptConfig
    from tchub.hub.device.device_choice import parse_target
    from tchub.zoo.adapt.fine_tune import FineTuneConfig

    taught, folder = corpora(run), _fresh(run.folder / "adapt")
    start = str(_random_start(run)) if run.source == SCRATCH else CHECKPOINTS[run.source]
    run.pool_folder.mkdir(parents=True, exist_ok=True)
    # All sources of a network and target pick among the same candidates.
    (folder / "pool").symlink_to(run.pool_folder.resolve(), target_is_directory=True)
    config = AdaptConfig(
        target=parse_target(run.at.level),
        budget=f"{min(100.0, 125.0 * SETTINGS['labels'] / SETTINGS['pool']):g}%",  # a fifth of it is held out
        sampler=SETTINGS["sampler"],
        method="auto" if taught else SETTINGS["method"],
        sources=taught,
        seed=run.seed,
        out=folder,
        per_task=SETTINGS["pool"],
        threads=run.at.threads,
        fine_tune=FineTuneConfig(**_FROM_NOTHING) if run.source == SCRATCH else None,
    )
    result = hub.adapt(start, run.network, config=config)
    return {
        "start": start,
        "checkpoint": f"{result.name}@{result.version}" if result.version else start,
        "corpus": str(result.measurements.corpus),
        "update": result.update,
        "adapt": _adapt_facts(result),
    }


def _tune(run: LocalRun, checkpoint: str, update: str) -> dict[str, Any]:
    """Tunes as the command that `tchub adapt` prints at its end would."""
    from tchub import hub
    from tchub.hub.device.device_choice import parse_target

    tuned = hub.tune(
        run.network,
        checkpoint=checkpoint,
        trials=SETTINGS["trials"],
        out=_fresh(run.folder / "tune"),
        target=parse_target(run.at.level),
        threads=run.at.threads,
        seed=run.seed,
        update=update,
        reuse=False,  # what other sources measured is theirs
    )
    facts = {name: tuned.report["runs"]["tuned"][name] for name in ("trials", "failed", "tuning_seconds", "update")}
    libraries = {name: library["path"] for name, library in tuned.report["libraries"].items()}
    return facts | {"libraries": libraries}


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)  # links in it go, what they point at stays
    folder.mkdir(parents=True)
    return folder


def corpora(run: LocalRun) -> tuple[str, ...]:
    """What a run learns besides its own labels: of the source `other`, what was measured for another target."""
    if run.source != OTHER:
        return ()
    before = replace(run, target=run.at.other, source=OWN)
    row = before.row()
    if row is None:
        raise RuntimeError(f"{run.label}: {OWN} on {run.at.other} is not done")
    return (str(before.folder / "adapt" / Path(row["corpus"]).name),)


def _random_start(run: LocalRun) -> Path:
    """A model of the same architecture with random weights; what it knows of features is their mean and scale."""
    import torch
    from tchub.hub.api import choose_checkpoint
    from tchub.zoo.models import create

    folder = run.work / "random" / f"{ARCHITECTURE}-{run.seed}"
    if (folder / "config.json").is_file():
        return folder
    checkpoint = choose_checkpoint(CHECKPOINTS[OWN]).checkpoint
    torch.manual_seed(run.seed)
    model = create(ARCHITECTURE, **checkpoint.config.model)
    model.load_state_dict({name: value.clone() for name, value in checkpoint.model.named_buffers()}, strict=False)
    replace(checkpoint, model=model.eval()).save(folder)
    return folder


def _adapt_facts(result: Any) -> dict[str, Any]:
    judgement, measurements, seconds = result.judgement, result.measurements, result.seconds
    guard, alone = judgement.guard, judgement.zero_shot or {"before": judgement.before, "after": judgement.after}
    measuring = seconds.get("measure", 0.0)
    return {
        "tasks": len(result.tasks),
        "pool": measurements.pool_size,
        "programs": measurements.measured,
        "failed": measurements.failed,
        "measuring_seconds": measuring,
        "learning_seconds": sum(seconds.values()) - measuring - sum(seconds.get(name, 0.0) for name in _PREPARING),
        "seconds": seconds,
        "learning": result.learning,
        "zero_shot_before": alone["before"]["pairwise"],
        "zero_shot_after": alone["after"]["pairwise"],
        "before": guard.base,
        "after": guard.adapted,
        "gain": guard.gain,
        "interval": list(guard.interval),
        "level": guard.level,
        "held_out": guard.programs,
        "pairs": guard.pairs,
        "decision": guard.decision,
    }


def judge(runs: Sequence[LocalRun]) -> dict[str, Any]:
    """Seconds of the network of every run of one network, target and seed, and untuned: all take turns.

    Each run's own latency was measured at another time; here one process runs all libraries again.
    """
    folder = runs[0].folder
    sources = "-".join(run.source for run in runs)
    return kept(folder.parent / f"judged-{folder.name}-{sources}.json", lambda: _judge(runs))


def _judge(runs: Sequence[LocalRun]) -> dict[str, Any]:
    from tchub.hub.networks.latency import compare
    from tchub.hub.networks.workloads import load_network

    note(f"judge: {', '.join(run.label for run in runs)}")
    first, rows = runs[0], [row for run in runs if (row := run.row())]
    libraries = {"untuned": Path(rows[0]["tune"]["libraries"]["untuned"])}
    libraries |= {row["source"]: Path(row["tune"]["libraries"]["tuned"]) for row in rows}
    seconds = _SECONDS_PER_SYSTEM * (len(libraries) + 1)
    compared = compare(load_network(first.network), libraries, threads=first.at.threads, max_seconds=seconds)
    return {
        "network": first.network,
        "target": first.target,
        "seed": first.seed,
        "sources": [run.source for run in runs],
        "latency": {name: latency.as_dict() for name, latency in compared.latencies.items()},
        "wrong_output": [name for name, check in compared.checks.items() if not check.ok],
        "errors": compared.errors,
    }


SCORES = ("pairwise", "mean_top1")
# Far from the seeds of the runs, whose candidates are other ones.
_SEED = 1000


def further(run: LocalRun) -> dict[str, dict[str, float]]:
    """Scores of the start and of what the guard decided on, without labels and with those learnt from as context.

    None of the programs that judge has been measured by the run. A checkpoint that takes no context has the same scores
    in both cases.
    """
    return kept(run.folder / f"further-{JUDGING}.json", lambda: _scored(run))


def _scored(run: LocalRun) -> dict[str, dict[str, float]]:
    from tchub.hub.api import choose_checkpoint
    from tchub.zoo.corpus import Corpus

    adapted = read_json(run.folder / "adapted.json")
    judging, learnt = Corpus.open(_measure(run)), Corpus.open(adapted["corpus"])
    starts = {"start": adapted["start"], "decided": adapted["checkpoint"]}
    return {name: _scores(choose_checkpoint(start).checkpoint, judging, learnt) for name, start in starts.items()}


def _measure(run: LocalRun) -> str:
    """The corpus of further programs; what is there is not measured again."""
    from tchub import hub
    from tchub.hub.device.device_choice import parse_target

    target = parse_target(run.at.level)
    out = run.work / run.network / f"further-{run.target}-{run.seed}-{JUDGING}"
    count = JUDGING * read_json(run.folder / "adapted.json")["adapt"]["tasks"]
    return hub.collect(run.network, count, out, target=target, threads=run.at.threads, seed=_SEED + run.seed).path


def _scores(checkpoint: Any, judging: Any, learnt: Any) -> dict[str, float]:
    from tchub.zoo.features import get_schema
    from tchub.zoo.training import evaluate_scores
    from tchub.zoo.training.evaluation import informed_scores
    from tchub.zoo.training.programs import Share, read_programs

    schema = get_schema(checkpoint.config.feature_schema)
    measured = frozenset((program.task_id, program.key) for program in learnt.iter_programs())
    ids = sorted(set(judging.tasks) & set(learnt.tasks))
    held, _ = read_programs(judging, ids, schema, share=Share(without=measured), device=checkpoint.device)
    known, _ = read_programs(learnt, ids, schema, device=checkpoint.device)
    if held is None or known is None:
        raise RuntimeError(f"{judging.path} and {learnt.path} share no task with programs to compare")
    # Tasks of both are numbered as those that judge.
    number = {task: n for n, task in enumerate(held.task_ids)}
    shared = np.flatnonzero([known.task_ids[n] in number for n in known.group])
    known = replace(
        known.take(shared),
        group=np.array([number[known.task_ids[n]] for n in known.group[shared]], dtype=np.int64),
        task_ids=held.task_ids,
        task_weights=held.task_weights,
    )
    figures = {"programs": float(len(held))}
    given = informed_scores(checkpoint.model, held.features, held.group, known)
    for prefix, scores in (("", checkpoint.model.score(held.features)), ("given_", given)):
        metrics = evaluate_scores(scores, held.latency, held.group, held.task_weights)
        figures |= {prefix + name: metrics[name] for name in SCORES}
    return figures

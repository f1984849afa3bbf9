"""Every model on every corpus, and what carries over from one device to another.

    python -m scripts.zoo.build import --data DIR && python -m scripts.zoo.build train
    python -m scripts.benchmarks models --json

The zoo's own trainings are read; what they do not answer (training on one device and judging on another, few labels
of the very task) is trained here. Each result is kept under `runs/zoo/bench`, so that a run that was killed goes on.
"""

from __future__ import annotations

import statistics
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.common import CLOCK, Clock, Document, benchmark, kept, note, read_json
from scripts.benchmarks.predict.subjects import clock as seconds_of
from scripts.benchmarks.transfer.case import task_tree_scores
from scripts.zoo.plan import LABELS, RUNS, Job, jobs, open_corpus, read_plan, statement_store
from scripts.zoo.publish import SCORES, WHEEL, random_scores, spread

# Figures of docs/benchmarks that were measured before an architecture's recipe changed are of these.
_RECIPES = {"tilenet": "tilenet-sheets"}
BENCH = RUNS / "bench"
_TIMED = 2048
# Corpora and protocols that the summary shows.
_QUOTED = (
    *("v100", "k80", "mi50", "2080ti", "epyc"),
    *("k80_zero_shot", "k80_from_v100_10pct", "mi50_from_v100_10pct", "k80_8_labels"),
)


@dataclass(frozen=True)
class Transfer:
    """A protocol of `models.toml`."""

    key: str
    corpus: str
    sources: list[str]
    share: float
    text: str
    models: dict[str, int]


TRANSFERS = [Transfer(**row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["protocol"]]


def _row(corpus: str, protocol: str, model: str, scores: list[dict[str, float]], **facts: Any) -> dict[str, Any]:
    """A row of the leaderboard: scores of as many seeds."""
    return {"corpus": corpus, "protocol": protocol, "model": model, "seeds": list(range(len(scores)))} | (
        spread(scores) | facts
    )


def run_transfer(protocol: Transfer, arch: str, seed: int, read: dict[Any, Any]) -> dict[str, Any]:
    """Train one model of one protocol and judge it."""
    from tchub.zoo.training import TrainConfig, evaluate_model
    from tchub.zoo.training.fit import fit, fit_trees
    from tchub.zoo.training.programs import Share
    from tchub.zoo.training.training_data import load_training_data

    from scripts.zoo.trees import TREES

    recipe = TrainConfig() if arch in TREES else replace(TrainConfig.find(_RECIPES.get(arch, arch)), finetune={})
    schema = TREES[arch][0] if arch in TREES else recipe.feature_schema
    target, sources = open_corpus(protocol.corpus), [open_corpus(name) for name in protocol.sources]
    few = 0 < protocol.share < 1
    draw = seed if few else 0  # of few programs measured, the very programs are another draw for every seed
    key = (protocol.corpus, *protocol.sources, protocol.share, schema, draw)
    if key not in read:
        read.clear()
        share = Share(programs=protocol.share, per_task=0 if few and not sources else 200, seed=draw)
        read[key] = load_training_data(target, sources, schema, share, statement_store())
    if arch in TREES:
        began = time.perf_counter()
        trees = fit_trees(TREES[arch][1], read[key], seed)
        seconds = round(time.perf_counter() - began, 1)
        scores, parameters = evaluate_model(trees, read[key].test), trees.parameter_count()
    else:
        fitted = fit(read[key], recipe, seed)
        scores, seconds = fitted.metrics["results"]["model"], fitted.metrics["seconds"]
        parameters = fitted.checkpoint.model.parameter_count()
    note(f"{protocol.key} {arch} seed {seed}: {scores['pairwise']:.4f}")
    return {"scores": scores, "parameters": parameters, "seconds": seconds}


def transfer_rows(clock: Clock) -> Iterator[dict[str, Any]]:
    """Rows of `TRANSFERS`; nothing new is trained once the time is over."""
    read: dict[Any, Any] = {}
    for protocol in TRANSFERS:
        folder = BENCH / f"{protocol.key}-{'.'.join(protocol.sources) or 'own'}"
        for arch, seeds in protocol.models.items():
            asked = (
                kept(folder / f"{arch}-{s}.json", lambda p=protocol, a=arch, s=s: run_transfer(p, a, s, read), clock)
                for s in range(seeds)
            )
            if runs := [run for run in asked if run]:
                facts = {"parameters": runs[0]["parameters"]}
                facts["train_seconds"] = statistics.mean(run["seconds"] for run in runs)
                yield _row(protocol.key, protocol.text, arch, [run["scores"] for run in runs], **facts)


def zoo_rows() -> Iterator[dict[str, Any]]:
    """Rows of the zoo's own trainings, and of a random order."""
    for job in jobs(read_plan()):
        if seeds := list(job.seeds()):
            runs = [job.metrics(seed) for seed in seeds]
            seconds = statistics.mean(run["seconds"] for run in runs)
            scores = [run["results"]["model"] for run in runs]
            facts = {"seeds": seeds, "train_seconds": seconds, **_facts(job, seeds[0])}
            yield _row(job.family, _learnt_from(job), job.arch, scores) | facts
            if job.arch == "tilenet":
                exact = random_scores(job.corpora[0])
                yield _row(job.family, _learnt_from(job), "random", [exact]) | {"seeds": []}


def shipped_tcl() -> dict[str, Any]:
    """The row of tcl-epyc, which `tchub train` made of the same corpus and split."""
    folder = WHEEL / "tcl-epyc" / "1.0.0"
    seeds = read_json(folder / "metrics.json")["seeds"]
    return {
        "corpus": "epyc",
        "protocol": "learnt from the training tasks of epyc-turin",
        "model": "tcl",
        "seeds": list(range(seeds["count"])),
        **{name: seeds[name] for name in SCORES},
        "bytes": (folder / "model.safetensors").stat().st_size,
        "notes": "45 epochs",
    }


def _learnt_from(job: Job) -> str:
    own, *others = job.corpora
    return f"learnt from the training tasks of {' and '.join([own, ', '.join(others)] if others else [own])}"


def _facts(job: Job, seed: int) -> dict[str, Any]:
    """Size and speed of a checkpoint: programs a second on one CPU core, features made already; of trees their size."""
    from tchub.zoo.features import get_schema
    from tchub.zoo.models import Checkpoint

    def measure() -> dict[str, Any]:
        folder = job.folder(seed)
        if not (folder / "config.json").is_file():
            return {"parameters": job.metrics(seed)["parameters"]}
        loaded = Checkpoint.load(folder)
        schema = get_schema(loaded.config.feature_schema)
        x = np.random.default_rng(0).random((_TIMED, schema.rows, schema.width), dtype=np.float32)
        times = seconds_of(lambda: loaded.model.score(x), 4)[1:]
        return {
            "parameters": loaded.model.parameter_count(),
            "bytes": (folder / "model.safetensors").stat().st_size,
            "programs_per_second": round(_TIMED / statistics.median(times)),
        }

    return kept(BENCH / "facts" / f"{job.name}-{seed}.json", measure)


def label_rows() -> Iterator[dict[str, Any]]:
    """A few random labels of each test task of the K80: TileNet with context, its rivals with training."""
    job = Job("tilenet", "k80", read_plan())
    seeds = list(job.seeds())
    for labels in (0, *LABELS):
        runs = [
            kept(BENCH / "labels" / f"{labels}-{seed}.json", lambda n=labels, s=seed: _rivals(job, n, s))
            for seed in seeds
        ]
        text = f"tilenet-k80, and {labels} random programs of each test task measured; judged on the rest"
        for name in runs[0] if runs else ():
            yield _row(f"k80_{labels}_labels", text, name, [run[name] for run in runs]) | {"seeds": seeds}


def _rivals(job: Job, labels: int, seed: int) -> dict[str, dict[str, float]]:
    """Scores on the programs that were not measured, by what is done with those that were."""
    from tchub.zoo.adapt.fine_tune import fine_tune
    from tchub.zoo.models import Checkpoint
    from tchub.zoo.training.evaluation import draw_labels, evaluate_unknown, scores_given
    from tchub.zoo.training.programs import resolve_schema
    from tchub.zoo.training.training_data import load_part

    data = load_part(open_corpus(job.corpora[0]), "test", resolve_schema("nest", "gpu"))
    model = Checkpoint.load(job.folder(seed)).model
    known = draw_labels(data, labels, seed)
    scores = {"tilenet": scores_given(model, data, known)}
    if labels:
        measured = data.take(np.flatnonzero(known))
        scores["tilenet, fine-tuned"] = fine_tune(model, measured).model.score(data.features)
        scores["xgboost"] = task_tree_scores(data, known)
    note(f"{labels} labels, seed {seed}")
    return {name: evaluate_unknown(data, known, own) for name, own in scores.items()}


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The best model of each corpus by pairwise accuracy, beside XGBoost."""
    summary = {}
    for key in _QUOTED:
        own = sorted((r for r in rows if r["corpus"] == key and r["model"] != "random"), key=_pairwise, reverse=True)
        if not own:
            continue
        summary[key] = {"best_model": own[0]["model"]} | {
            name: own[0][name]["mean"] for name in ("mean_top1", "top5", "pairwise")
        }
        if rival := next((row for row in own if row["model"].startswith("xgboost")), None):
            summary[key] |= {f"xgb_{name}": rival[name]["mean"] for name in ("mean_top1", "pairwise")}
    return summary


def _pairwise(row: dict[str, Any]) -> float:
    return row["pairwise"]["mean"]


@benchmark("models", CLOCK)
def main(clock: Clock) -> Document:
    """Judge every model; writes docs/benchmarks/models.json, from which `leaderboard.py` writes its page."""
    import torch

    torch.set_num_threads(1)
    rows = [*zoo_rows(), shipped_tcl(), *transfer_rows(clock), *label_rows()]
    return summarise(rows), {"rows": rows}, (0, 1, 2)

"""The main job, measured: how well the shipped TCL ranks held-out networks, and what tuning with it gives.

    python -m scripts.benchmarks main_job --json

Three steps, each resumable in the work folder: (1) the checkpoint beside random choice, XGBoost on
PerStoreFeature and the same TCL from 10% random data, on the corpus's test split; (2) `adapt` with a 10% budget
for each network; (3) `tune` with the adapted checkpoint beside MetaSchedule's XGBoost model at equal trials.
"""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from scripts.benchmarks.common import ROOT, Document, benchmark, work_option

CHECKPOINT, TRIALS, SEED = "tcl-epyc", 128, 0
# Long, or paths of the machine that ran it.
_LEFT_OUT = ("picks", "tasks", "path", "journal", "corpus")


def _evaluate(corpus: Path, work: Path) -> dict[str, Any]:
    import torch
    from tchub import hub
    from tchub.hub.publishing.evaluate import EvaluationConfig, evaluate
    from tchub.zoo.corpus import Corpus

    torch.set_num_threads(1)  # sums in another order train another model
    config = EvaluationConfig(baselines=("random", "statements", "ten_percent"), seed=SEED, cache=work / "statements")
    model = hub.load(CHECKPOINT, offline=True)
    return evaluate(model, Corpus.open(corpus), config, lambda text: click.echo(text, err=True))


def _tune(network: str, work: Path) -> dict[str, Any]:
    """Adapt, then tune beside stock; returns the report's numbers."""
    from tchub import hub
    from tchub.hub.adaptation.config import AdaptConfig

    folder = work / f"{network}-{SEED}"
    click.echo(f"adapt to {network}", err=True)
    config = AdaptConfig(budget="10%", seed=SEED, threads=1, out=folder / "adapt")
    adapted = hub.adapt(CHECKPOINT, network, config=config)
    chosen = f"{adapted.name}@{adapted.version}" if adapted.version else adapted.name
    click.echo(f"tune {network} with {chosen}", err=True)
    result = hub.tune(
        network, checkpoint=chosen, trials=TRIALS, seed=SEED, out=folder / "tune", threads=1, compare=["stock"]
    )
    latency = result.latency
    return {
        "network": network,
        "seed": SEED,
        "trials": TRIALS,
        "adaptation": {k: v for k, v in adapted.as_dict().items() if k not in _LEFT_OUT},
        "latency_ms": {name: 1e3 * seconds for name, seconds in latency.items()},
        "ratio_vs_stock": latency["tuned"] / latency["stock"],
        "ratio_vs_untuned": latency["tuned"] / latency["untuned"],
        "output_check": result.report["output_check"],
        "report": str((folder / "tune" / "report.html").relative_to(work)),
    }


@benchmark("main_job", work_option("main-job"))
def main(work: Path) -> Document:
    """Measure the main job and write docs/benchmarks/main_job.json."""
    work.mkdir(parents=True, exist_ok=True)
    corpus = ROOT / "corpora" / "epyc-turin"
    scores = _evaluate(corpus, work)
    tuned = [_tune(network, work) for network in ("bert-tiny", "resnet-18")]
    results = scores["results"]
    summary = {
        **{f"tcl_{key}": results["model"][key] for key in ("top1", "top5", "pairwise")},
        **{f"xgb_{key}": results["statements"][key] for key in ("top1", "pairwise")},
        **{
            f"tuned_latency_{key}": geometric_mean(row[key] for row in tuned)
            for key in ("ratio_vs_stock", "ratio_vs_untuned")
        },
    }
    return summary, {"evaluation": scores, "tuning": tuned}, [SEED]

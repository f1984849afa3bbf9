"""Make a checkpoint that ships: train, judge on the held-out networks beside the baselines, write card and index.

    python -m scripts.zoo.checkpoint tcl --corpus corpora/epyc-turin --version 1.0.0

Trains one model a seed and publishes the one of the best validation accuracy (the test split decides nothing);
metrics.json holds that model's scores, the baselines', and the spread over all seeds.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import ROOT

_SCORES = ("top1", "top5", "mean_top1", "mean_top5", "pairwise")


def _fit(recipe: str, corpus: Any, path: Path, version: str, seed: int, lineage: dict[str, Any], work: Path) -> Any:
    from tchub.zoo.training import TrainConfig
    from tchub.zoo.training.fit import CheckpointFacts, fit
    from tchub.zoo.training.programs import Share
    from tchub.zoo.training.training_data import load_training_data

    config = TrainConfig.find(recipe)

    def tell(entry: dict[str, float]) -> None:
        if "val_pairwise" in entry:
            click.echo(f"seed {seed} epoch {int(entry['epoch'])} val pairwise {entry['val_pairwise']:.4f}", err=True)

    command = f"tchub train {recipe} --corpus {path} --out DIR --version {version} --seed {seed}"
    return fit(
        load_training_data(corpus, (), config.feature_schema, Share(seed=seed)), config, seed,
        facts=CheckpointFacts(version=version, lineage=lineage, command=command),
        folder=work / f"{recipe}-{seed}", on_epoch=tell,
    )  # fmt: skip


def _spread(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        name: {"mean": statistics.mean(values), "stdev": statistics.stdev(values) if len(values) > 1 else 0.0}
        for name in _SCORES
        for values in [[run[name] for run in runs]]
    }


@click.command()
@click.argument("recipe")
@click.option("--corpus", "path", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--version", required=True)
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True)
@click.option("--limit", "limits", multiple=True, help="A limit that the card names; may be repeated.")
@click.option("--work", default=ROOT / "runs" / "checkpoints", type=click.Path(path_type=Path), show_default=True)
@click.option("--threads", default=1, show_default=True)
def main(
    recipe: str, path: Path, version: str, seeds: tuple[int, ...], limits: tuple[str, ...], work: Path, threads: int
) -> None:
    """Train RECIPE on a corpus and put the checkpoint into zoo/checkpoints."""
    import torch
    from tchub.hub.publishing.evaluate import BASELINES, EvaluationConfig, evaluate
    from tchub.zoo.corpus import Corpus
    from tchub.zoo.files import write_files
    from tchub.zoo.plain_json import json_file

    torch.set_num_threads(threads)
    corpus = Corpus.open(path)
    lineage = {"base": None, "weights_licence": "Apache-2.0", "authors": "the tchub project", "limits": list(limits)}
    fitted = [_fit(recipe, corpus, path, version, seed, lineage, work) for seed in seeds]
    best = max(fitted, key=lambda f: f.result.best["pairwise"])
    cache = ROOT / "runs" / "main-job" / "statements"
    evaluation = EvaluationConfig(baselines=BASELINES, seed=best.metrics["seed"], threads=threads, cache=cache)
    metrics = evaluate(best.checkpoint, corpus, evaluation, lambda text: click.echo(text, err=True))
    name = best.checkpoint.config.name
    metrics |= {
        "command": f"tchub evaluate {name} --corpus {path} --split test --baselines --seed {metrics['seed']} --json",
        "seeds": _spread([f.metrics["results"]["model"] for f in fitted])
        | {"count": len(seeds), "chosen_by": "validation score"},
        "validation": best.result.best,
    }
    folder = ROOT / "zoo" / "checkpoints" / name / version
    if folder.exists():
        shutil.rmtree(folder)
    best.checkpoint.save(folder)
    write_files(folder, {"metrics.json": json_file(metrics)})
    subprocess.run([sys.executable, "scripts/zoo/index.py", "--replace"], cwd=ROOT, check=True)
    click.echo(json.dumps(metrics, indent=2))


if __name__ == "__main__":
    main()

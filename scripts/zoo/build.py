"""Make the zoo: import the logs, train every architecture for every family, judge, and put the small ones in the wheel.

    python -m scripts.zoo.build import  --data DIR
    python -m scripts.zoo.build train   --family v100 --arch tilenet
    python -m scripts.zoo.build distill --base tilenet-kb-gpu
    python -m scripts.zoo.build publish

What is made of which logs stands in `zoo.toml`. Every step keeps its result under `runs/zoo` and is not done
again; a run that was killed goes on. `publish` writes checkpoints that ship to `zoo/checkpoints`, and all of them to
a folder registry.
"""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from scripts.benchmarks.common import FOLDER, note, write_text
from scripts.zoo.plan import LABELS, OWN, RUNS, Job, bases, corpus_folder, jobs, open_corpus, read_plan, statement_store
from scripts.zoo.publish import build_index, publish_bases, publish_trained


@click.group()
def main() -> None:
    """Make the zoo of `zoo.toml`."""


@main.command("import")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Folder of the logs.")
def import_logs(data: Path) -> None:
    """Import every log that is not there yet, and write docs/benchmarks/corpora.json: what every corpus holds."""
    for name, facts in read_plan()["corpora"].items():
        out = RUNS / "corpora" / name
        if (out / "corpus.json").is_file():
            continue
        command = ["corpus", "import", str(data / facts["log"]), "--out", str(out)]
        command += [word for key in ("device", "licence", "source") for word in (f"--{key}", facts[key])]
        command += [word for key in ("tasks", "split") if key in facts for word in (f"--{key}", str(data / facts[key]))]
        run_tchub(command)
    rows = [_corpus_row(name) for name in (*read_plan()["corpora"], *OWN)]
    write_text(FOLDER / "corpora.json", json.dumps(rows, indent=2) + "\n")


def run_tchub(words: list[str]) -> None:
    """Say a command of tchub and run it, with this interpreter: its folder need not be on the path."""
    note(f"tchub {' '.join(words)}")
    subprocess.run([sys.executable, "-m", "tchub.hub.cli", *words], check=True)


def _corpus_row(name: str) -> dict[str, Any]:
    from pyarrow import parquet
    from tchub.zoo.corpus import split_tasks

    corpus = open_corpus(name)
    errors = parquet.read_table(corpus.path / "programs.parquet", columns=["error"])["error"]
    split, meta = split_tasks(corpus), corpus.meta
    return {
        "corpus": name,
        "device": meta["device"],
        "framework": meta.get("framework", "metaschedule"),
        "tasks": len(corpus.tasks),
        "programs": errors.null_count,
        "failed": len(errors) - errors.null_count,
        "duplicates": meta.get("import", {}).get("duplicates", 0),
        "broken": meta.get("import", {}).get("broken", {}),
        "train / val / test": f"{len(split.train)} / {len(split.val)} / {len(split.test)}",
        "licence": meta.get("licence"),
        "source": meta.get("source"),
    }


@main.command()
@click.option("--family", "families", multiple=True)
@click.option("--arch", "archs", multiple=True)
@click.option("--seed", "only", multiple=True, type=int, help="Only these seeds.")
def train(families: tuple[str, ...], archs: tuple[str, ...], only: tuple[int, ...]) -> None:
    """Train what is not trained yet."""
    import torch

    torch.set_num_threads(1)
    wanted = jobs(read_plan(), families, archs)
    read: dict[tuple[str, ...], Any] = {}
    for job in wanted:
        for seed in job.settings["seeds"]:
            if (not only or seed in only) and not (job.folder(seed) / "metrics.json").is_file():
                _train(job, seed, read)


def _train(job: Job, seed: int, read: dict[tuple[str, ...], Any]) -> None:
    from tchub.zoo.files import write_files
    from tchub.zoo.plain_json import json_file
    from tchub.zoo.training import TrainConfig, evaluate_model
    from tchub.zoo.training.fit import CheckpointFacts, fit, fit_trees

    from scripts.zoo.trees import TREES

    recipe = TrainConfig() if job.arch in TREES else TrainConfig.find(job.recipe)
    recipe = replace(recipe, epochs=job.settings.get("epochs", {}).get(job.family, recipe.epochs))
    schema = TREES[job.arch][0] if job.arch in TREES else recipe.feature_schema
    key, cap = _gather_key(job, schema)
    if key not in read:
        read.clear()  # one data set at a time fits the memory
        read[key] = _gather(job, schema, cap)
    data = read[key]
    if job.arch in TREES:  # which are compared with, and leave no checkpoint
        began = time.perf_counter()
        trees = fit_trees(TREES[job.arch][1], data, seed)
        seconds = round(time.perf_counter() - began, 1)
        scores = {k: evaluate_model(trees, d) for k, d in (("test", data.test), ("val", data.val)) if d is not None}
        metrics = {"results": {"model": scores.get("test") or scores["val"]}, "validation_best": scores.get("val", {})}
        metrics |= {"seconds": seconds, "parameters": trees.parameter_count()}
    else:
        # Not `tchub train`, whose seed also draws the programs: here all seeds learn from the same ones.
        command = f"python -m scripts.zoo.build train --family {job.family} --arch {job.arch} --seed {seed}"
        fitted = fit(data, recipe, seed, facts=CheckpointFacts(job.name, job.version, _lineage(job), command))
        metrics = fitted.metrics | {"validation_best": fitted.result.best}
        if job.arch == "tilenet" and data.test is not None:
            metrics["few_shot"] = _few_shot(fitted.checkpoint.model, data.test, seed)
        fitted.checkpoint.save(job.folder(seed))
    write_files(job.folder(seed), {"metrics.json": json_file(metrics)})
    scores = {k: round(v, 4) for k, v in metrics["results"]["model"].items()}
    note(f"{job.name} seed {seed}: {scores} in {metrics['seconds']} s")


def _gather_key(job: Job, schema: str) -> tuple[tuple[str, ...], int]:
    """What decides the data set, and the cap on a task that keeps it under the architecture's limit."""
    from tchub.zoo.corpus import split_tasks

    cap, limit = job.settings["per_task"], job.settings.get("max_programs")
    cap = job.settings.get("caps", {}).get(job.family, cap)
    if limit:
        tasks = sum(len(split_tasks(open_corpus(name)).train) for name in job.corpora)
        cap = max(16, min(cap, limit // max(1, tasks)))
    return (job.family, schema, str(cap), *job.corpora), cap


def _gather(job: Job, schema: str, cap: int) -> Any:
    from tchub.zoo.training.programs import Share
    from tchub.zoo.training.training_data import load_training_data

    started = time.perf_counter()
    target, *sources = (open_corpus(name) for name in job.corpora)
    data = load_training_data(target, sources, schema, Share(per_task=cap), statement_store())
    note(f"{job.family}: {len(data.train)} programs read in {time.perf_counter() - started:.0f} s")
    return data


def _lineage(job: Job) -> dict[str, Any]:
    place = job.place
    return {
        "base": None,
        "weights_licence": "Apache-2.0",
        "authors": "the tchub project",
        "data": place["data"],
        "measured_on": place["measured_on"],
        **({"stand_in": place["stand_in"]} if "stand_in" in place else {}),
        "limits": job.settings.get("limits", {}).get(job.family, []),
        "sources": {name: job.plan["corpora"].get(name, {}).get("source") for name in job.corpora},
    }


def _few_shot(model: Any, test: Any, seed: int) -> dict[str, Any]:
    from tchub.zoo.training.evaluation import draw_labels, evaluate_unknown, scores_given

    known = {n: draw_labels(test, n, seed) for n in LABELS}
    return {str(n): evaluate_unknown(test, own, scores_given(model, test, own)) for n, own in known.items()}


@main.command()
@click.option("--base", "names", multiple=True, help="Only these knowledge bases.")
def distill(names: tuple[str, ...]) -> None:
    """Make the knowledge bases that are not made yet; one that was killed goes on with the device it was at."""
    for base in bases(read_plan(), names):
        if base.is_done:
            continue
        options = {
            "epochs": base.settings.get("epochs", 0), "per-task": base.settings["per_task"],
            "recipe": base.settings.get("recipe", ""), "name": base.name, "version": base.version,
            "weights-licence": "Apache-2.0", "authors": "the tchub project", "out": base.folder,
        }  # fmt: skip
        command = ["distill", f"new:{base.settings['arch']}", "--resume"]
        command += [word for name in base.corpora for word in ("--corpus", str(corpus_folder(name)))]
        command += [word for key, value in options.items() if value for word in (f"--{key}", str(value))]
        run_tchub(command)


@main.command()
@click.option("--registry", default=RUNS / "registry", type=click.Path(path_type=Path), show_default=True)
@click.option("--base", "names", multiple=True, help="Only these knowledge bases, and nothing that was trained.")
def publish(registry: Path, names: tuple[str, ...]) -> None:
    """Choose a seed for each checkpoint by its validation tasks, and write metrics and cards."""
    if not names:
        publish_trained(registry)
    click.echo(f"knowledge bases: {', '.join(publish_bases(registry, names)) or 'none is made'}", err=True)
    build_index()


if __name__ == "__main__":
    main()

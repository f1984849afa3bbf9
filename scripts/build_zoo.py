"""Make the zoo: import the logs, train every architecture for every family, judge, and put the small ones in the wheel.

    python scripts/build_zoo.py import  --data DIR
    python scripts/build_zoo.py train   --family v100 --arch tilenet
    python scripts/build_zoo.py publish

What is made of which logs stands in `zoo.toml`. Every step keeps its result under `runs/zoo` and is not done
again; a run that was killed goes on. `publish` writes checkpoints that ship to `zoo/checkpoints`, all of them to
a folder registry, and `docs/benchmarks/zoo.json` with the hashes of both.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from benchmarking import FOLDER, ROOT

RUNS = ROOT / "runs" / "zoo"
VERSION = "1.0.0"
SCORES = ("top1", "top5", "mean_top1", "mean_top5", "pairwise")
LABELS = (4, 8, 16, 32)
_STATEMENTS = ("tenset-mlp", "atformer")
_RIVALS = {
    "xgboost": "XGBoost on primitives",
    "xgboost-nest": "XGBoost on TileNet's numbers",
    "tenset-mlp": "TenSet-MLP",
}
_BASELINES = ("xgboost", "lightgbm")  # judged, not published

_CORPORA = """# The corpora of the zoo

Written by `scripts/build_zoo.py import`. *programs* are those with a latency; *duplicates* are records of a schedule
that came before in the same log and were left out. The parts of a split are counted in tasks; tasks of a protocol's no
part take none. No line of any log was broken unless the JSON beside this page says so
([benchmarks/corpora.json](benchmarks/corpora.json)).

{table}

Sources:

{notes}"""


@dataclass(frozen=True)
class Job:
    """One checkpoint to train: an architecture for a family."""

    arch: str
    family: str
    plan: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.arch}-{self.family}"

    @property
    def settings(self) -> dict[str, Any]:
        return self.plan["archs"][self.arch]

    @property
    def recipe(self) -> str:
        return self.settings.get("recipe", self.arch)

    @property
    def place(self) -> dict[str, Any]:
        return self.plan["families"][self.family]

    @property
    def corpora(self) -> list[str]:
        """The target first; of a model of statements, those that have them."""
        if self.arch in _STATEMENTS:
            return list(self.place.get("statements", ()))
        return [self.place["target"], *(self.place["sources"] if self.family in self.settings["sources"] else ())]

    @property
    def ships(self) -> bool:
        ships = self.settings["ships"]
        return self.family in ships if isinstance(ships, list) else bool(ships)

    def folder(self, seed: int) -> Path:
        return RUNS / "trained" / self.name / str(seed)

    def seeds(self) -> Iterator[int]:
        return (seed for seed in self.settings["seeds"] if (self.folder(seed) / "metrics.json").is_file())


def read_plan() -> dict[str, Any]:
    """`zoo.toml`."""
    return tomllib.loads((ROOT / "scripts" / "zoo.toml").read_text())


def jobs(plan: dict[str, Any], families: tuple[str, ...] = (), archs: tuple[str, ...] = ()) -> list[Job]:
    """The checkpoints asked for, all without an argument, in the order of the file, family by family."""
    return [
        job
        for family in plan["families"]
        for arch in plan["archs"]
        if (not families or family in families) and (not archs or arch in archs)
        for job in [Job(arch, family, plan)]
        if job.corpora and family not in job.settings.get("except", ())
    ]


def open_corpus(name: str) -> Any:
    """A corpus that was imported, or one of the repository's own."""
    from tchub.zoo.corpus import Corpus

    own = ROOT / "corpora" / name
    return Corpus.open(own if own.is_dir() else RUNS / "corpora" / name)


def statement_store() -> Any:
    """Where all runs keep the statement features."""
    from tchub.zoo.training.inputs import StatementStore

    return StatementStore(RUNS / "statements", 1)


@click.group()
def main() -> None:
    """Make the zoo of `zoo.toml`."""


@main.command("import")
@click.option("--data", required=True, type=click.Path(path_type=Path, exists=True), help="Folder of the logs.")
def import_logs(data: Path) -> None:
    """Import every log that is not there yet."""
    for name, facts in read_plan()["corpora"].items():
        out = RUNS / "corpora" / name
        if (out / "corpus.json").is_file():
            continue
        command = ["tchub", "corpus", "import", str(data / facts["log"]), "--out", str(out)]
        command += [word for key in ("device", "licence", "source") for word in (f"--{key}", facts[key])]
        command += [word for key in ("tasks", "split") if key in facts for word in (f"--{key}", str(data / facts[key]))]
        click.echo(" ".join(command), err=True)
        subprocess.run(command, check=True)
    _count_corpora()


def _count_corpora() -> None:
    """Writes what every corpus holds: docs/benchmarks/corpora.json, and docs/zoo-corpora.md for people."""
    rows = [_corpus_row(name) for name in (*read_plan()["corpora"], "epyc-turin")]
    (FOLDER / "corpora.json").write_text(json.dumps(rows, indent=2) + "\n")
    head = [
        "corpus",
        "device",
        "framework",
        "tasks",
        "programs",
        "failed",
        "duplicates",
        "train / val / test",
        "licence",
    ]
    table = [head, ["-" * 3] * len(head), *([str(row[key]) for key in head] for row in rows)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    notes = "".join(f"- {row['corpus']}: {row['source']}\n" for row in rows if row["source"])
    (ROOT / "docs" / "zoo-corpora.md").write_text(_CORPORA.format(table=text, notes=notes))


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
    from tchub.zoo.models.files import write_folder
    from tchub.zoo.plain_json import json_file
    from tchub.zoo.training import TrainConfig
    from tchub.zoo.training.fit import fit

    recipe = TrainConfig.find(job.recipe)
    key, cap = _gather_key(job, recipe.feature_schema)
    if key not in read:
        read.clear()  # one data set at a time fits the memory
        read[key] = _gather(job, recipe.feature_schema, cap)
    data, target = read[key], open_corpus(job.corpora[0])
    fitted = fit(
        target,
        recipe,
        sources=[open_corpus(name) for name in job.corpora[1:]],
        name=job.name,
        version=VERSION,
        seed=seed,
        programs_per_task=cap,
        lineage=_lineage(job),
        # Not `tchub train`, whose seed also draws the programs: here all seeds learn from the same ones.
        command=f"python scripts/build_zoo.py train --family {job.family} --arch {job.arch} --seed {seed}",
        gathered=data,
    )
    metrics = fitted.metrics | {"validation_best": fitted.result.best}
    if job.arch == "tilenet" and data.test is not None:
        metrics["few_shot"] = _few_shot(fitted.checkpoint.model, data.test, seed)
    folder = job.folder(seed)
    fitted.checkpoint.save(folder)
    write_folder(folder, {"metrics.json": json_file(metrics)})
    scores = {k: round(v, 4) for k, v in metrics["results"]["model"].items()}
    click.echo(f"{time.strftime('%H:%M:%S')} {job.name} seed {seed}: {scores} in {metrics['seconds']} s", err=True)


def _gather_key(job: Job, schema: str) -> tuple[tuple[str, ...], int]:
    """What decides the data set, and the cap on a task that keeps it under the architecture's limit."""
    cap, limit = job.settings["per_task"], job.settings.get("max_programs")
    if limit:
        tasks = sum(_training_tasks(name) for name in job.corpora)
        cap = max(16, min(cap, limit // max(1, tasks)))
    return (job.family, schema, str(cap), *job.corpora), cap


def _training_tasks(name: str) -> int:
    from tchub.zoo.corpus import split_tasks

    return len(split_tasks(open_corpus(name)).train)


def _gather(job: Job, schema: str, cap: int) -> Any:
    from tchub.zoo.training.gather import gather
    from tchub.zoo.training.read import Share

    started = time.perf_counter()
    target, *sources = (open_corpus(name) for name in job.corpora)
    data = gather(target, sources, schema, Share(per_task=cap), statement_store())
    click.echo(f"{job.family}: {len(data.train)} programs read in {time.perf_counter() - started:.0f} s", err=True)
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
        "sources": {name: job.plan["corpora"].get(name, {}).get("source") for name in job.corpora},
    }


def _few_shot(model: Any, test: Any, seed: int) -> dict[str, Any]:
    from tchub.zoo.training.few_shot import draw_labels, evaluate_unknown, few_shot_scores

    return {
        str(n): evaluate_unknown(test, draw_labels(test, n, seed), few_shot_scores(model, test, n, seed))
        for n in LABELS
    }


@main.command()
@click.option("--registry", default=RUNS / "registry", type=click.Path(path_type=Path), show_default=True)
def publish(registry: Path) -> None:
    """Choose a seed for each checkpoint by its validation tasks, write metrics and cards, and the manifest."""
    plan, manifest = read_plan(), {}
    for job in jobs(plan):
        seeds = list(job.seeds())
        if not seeds or job.arch.startswith(_BASELINES):
            continue
        best = max(seeds, key=lambda seed: _metrics(job, seed)["validation_best"].get("pairwise", 0.0))
        metrics = _published_metrics(job, seeds, best)
        for root in (registry, *([ROOT / "zoo" / "checkpoints"] if job.ships else [])):
            _put(job, best, metrics, root / job.name / VERSION)
        manifest[job.name] = _entry(job, registry / job.name / VERSION, metrics)
    (FOLDER / "zoo.json").write_text(json.dumps(manifest, indent=2) + "\n")
    subprocess.run([sys.executable, "scripts/build_index.py", "--replace"], cwd=ROOT, check=True)


def _metrics(job: Job, seed: int) -> dict[str, Any]:
    return json.loads((job.folder(seed) / "metrics.json").read_text())


def _published_metrics(job: Job, seeds: list[int], best: int) -> dict[str, Any]:
    """The chosen seed's metrics, the spread over all, and the baselines of the same test split."""
    runs = [_metrics(job, seed) for seed in seeds]
    metrics = _metrics(job, best)
    chosen = {"chosen_by": "pairwise accuracy on the validation tasks"} if len(seeds) > 1 else {}
    metrics["seeds"] = {"count": len(seeds), **chosen, **spread([run["results"]["model"] for run in runs])}
    metrics["validation"] = metrics.pop("validation_best")
    metrics["results"]["random"] = random_scores(job.corpora[0])
    if job.arch not in _STATEMENTS:
        metrics["transfer"] = [_judge_elsewhere(job, best, name) for name in job.place.get("judged_on", ())]
    for rival, label in _RIVALS.items():
        other = Job(rival, job.family, job.plan)
        trained = list(other.seeds())
        if trained and rival != job.arch and other.corpora[:1] == job.corpora[:1]:
            rows = [_metrics(other, seed)["results"]["model"] for seed in trained]
            metrics["results"][rival] = {
                "label": label,
                **{name: statistics.mean(row[name] for row in rows) for name in SCORES},
            }
    return metrics


def spread(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each score."""
    return {
        name: {"mean": statistics.mean(values), "stdev": statistics.stdev(values) if len(values) > 1 else 0.0}
        for name in SCORES
        for values in [[row[name] for row in rows]]
    }


def _judge_elsewhere(job: Job, seed: int, name: str) -> dict[str, Any]:
    """Scores of a checkpoint on all programs of a corpus that it learnt nothing from."""
    from tchub.zoo.features import get_schema
    from tchub.zoo.models import Checkpoint
    from tchub.zoo.training import evaluate_model, evaluate_random
    from tchub.zoo.training.read import read_programs

    loaded, corpus = Checkpoint.load(job.folder(seed)), open_corpus(name)
    data, _ = read_programs(
        corpus, sorted(corpus.tasks), get_schema(loaded.config.feature_schema), device=loaded.device
    )
    chance = evaluate_random(data.latency, data.group, data.task_weights)
    return {"corpus": name, "split": "all", "metrics": evaluate_model(loaded.model, data), "random": chance}


def random_scores(corpus: str) -> dict[str, float]:
    """What a random order of the test programs gets."""
    from tchub.zoo.training import evaluate_random
    from tchub.zoo.training.gather import corpus_device, load_part
    from tchub.zoo.training.inputs import resolve_schema

    kept = RUNS / "random" / f"{corpus}.json"
    if not kept.is_file():
        opened = open_corpus(corpus)
        data = load_part(opened, "test", resolve_schema("nest", corpus_device(opened).kind))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(evaluate_random(data.latency, data.group, data.task_weights)))
    return json.loads(kept.read_text())


def _put(job: Job, seed: int, metrics: dict[str, Any], folder: Path) -> None:
    """A version's folder: config and weights as they were trained, and the metrics."""
    from tchub.zoo.plain_json import json_file

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job.folder(seed), folder)
    if "family" in job.place:  # trained on a device that stands in for the family's own
        config = json.loads((folder / "config.json").read_text()) | {"family": job.place["family"]}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "metrics.json").write_bytes(json_file(metrics))


def _entry(job: Job, folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return {
        "version": VERSION,
        "ships": job.ships,
        "data": job.place["data"],
        "corpora": job.corpora,
        "seed": metrics["seed"],
        "results": metrics["results"],
        "files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
    }


if __name__ == "__main__":
    main()

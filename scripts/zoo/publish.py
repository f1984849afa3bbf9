"""Publishing the zoo: a seed for each checkpoint, its metrics and card, the wheel's folder and the registry."""

import shutil
import statistics
from pathlib import Path
from typing import Any

from tchub.hub.registry.files import SCHEDULES_FILE
from tchub.hub.search.schedules import brought
from tchub.zoo.files import write_files
from tchub.zoo.plain_json import json_file

from scripts.benchmarks.common import ROOT, kept, read_json, spread
from scripts.zoo.index import build
from scripts.zoo.plan import OWN, RUNS, Base, Job, bases, jobs, open_corpus, read_plan

SCORES = ("top1", "top5", "mean_top1", "mean_top5", "pairwise")
WHEEL = ROOT / "zoo" / "checkpoints"
MOST_SHIPPED = 3 << 20  # bytes of a knowledge base that goes into the wheel
RIVALS = {
    "xgboost": "XGBoost on primitives",
    "xgboost-nest": "XGBoost on TileNet's numbers",
    "lightgbm": "LightGBM on primitives",
    "tenset-mlp": "TenSet-MLP",
}
_BASELINES = ("xgboost", "lightgbm")  # judged, not published


def publish_trained(registry: Path) -> None:
    """Every checkpoint that was trained here."""
    for job in jobs(read_plan()):
        seeds = list(job.seeds())
        if not seeds or job.arch.startswith(_BASELINES):
            continue
        best = max(seeds, key=lambda seed: job.metrics(seed)["validation_best"].get("pairwise", 0.0))
        metrics = _published_metrics(job, seeds, best)
        config = read_json(job.folder(best) / "config.json")
        config |= {name: job.place[name] for name in ("family",) if name in job.place}  # whose device it stands in for
        if job.family in job.settings.get("schedules", ()):
            files, schedules = brought(with_schedules(job))
            write_files(job.folder(best), files)
            config["lineage"] |= schedules
        if job.settings.get("half"):
            _store_half(job.folder(best) / "model.safetensors")
        _publish(job, job.folder(best), registry, job.ships, config, metrics)


def with_schedules(job: Job) -> list[Any]:
    """Corpora whose schedules a checkpoint brings, its family's last: a later device goes before an earlier one."""
    own = [open_corpus(name) for name in job.corpora if name in OWN]
    return sorted(own, key=lambda corpus: corpus.meta["family"] == job.family)


def publish_bases(registry: Path, names: tuple[str, ...] = ()) -> list[str]:
    """Every knowledge base that was distilled; those of more than `MOST_SHIPPED` bytes do not go into the wheel."""
    done = [base for base in bases(read_plan(), names) if base.is_done]
    for base in done:
        ships = base.settings["ships"] and (base.folder / "model.safetensors").stat().st_size <= MOST_SHIPPED
        metrics = read_json(base.folder / "metrics.json")
        metrics["command"] = made_by(f"distill --base {base.name}", f"publish --base {base.name}")
        _publish(base, base.folder, registry, ships, read_json(base.folder / "config.json"), metrics)
    return [base.name for base in done]


def _publish(item: Job | Base, source: Path, registry: Path, ships: bool, config: Any, metrics: Any) -> None:
    """Put a version into the registry, and if it ships into the wheel."""
    for root in (registry, *([WHEEL] if ships else [])):
        folder = root / item.name / item.version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("model.safetensors", SCHEDULES_FILE, "README.md"):
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        write_files(folder, {"config.json": json_file(config), "metrics.json": json_file(metrics)})
    for folder in (WHEEL / item.name).glob("*.*.*"):
        if folder.name != item.version:  # the wheel holds one; earlier ones stay in the registry
            shutil.rmtree(folder)


def _store_half(weights: Path) -> None:
    """Store matrices in float16, which halves the file; scores stay the same within 0.001.

    Biases and what standardises the inputs stay as they are: they take little, and rounding them changes scores most.
    """
    from safetensors.torch import load_file, save_file

    rounded = {name: t.half() if t.ndim > 1 else t for name, t in load_file(weights).items()}
    save_file(rounded, weights)


def build_index() -> None:
    """Bring cards and index of what is in the wheel up to date, and what each checkpoint says of its family's others.

    These are their scores on the same programs, and what they learnt.
    """
    paths = {path.parts[-3]: path for path in sorted(WHEEL.glob("*/*/metrics.json"))}
    known = {name: (read_json(path.with_name("config.json")), read_json(path)) for name, path in paths.items()}
    for name, (config, metrics) in known.items():
        siblings = {
            other: scores["results"]["model"] | _learnt(theirs["training"])
            for other, (theirs, scores) in known.items()
            if other != name and theirs["family"] == config["family"]
            if all(scores[key] == metrics[key] for key in ("corpus", "split", "tasks", "programs"))
        }
        if siblings:
            write_files(paths[name].parent, {"metrics.json": json_file(metrics | {"siblings": siblings})})
    build(ROOT, write=True, replace=True)


def _learnt(training: dict[str, Any]) -> dict[str, Any]:
    corpora = (training["corpus"], *training.get("sources", ()))
    return {"parameters": training.get("parameters"), "learnt": sum(row.get("programs") or 0 for row in corpora)}


def _published_metrics(job: Job, seeds: list[int], best: int) -> dict[str, Any]:
    """The chosen seed's metrics, the spread over all, and the baselines of the same test split."""
    runs = [job.metrics(seed) for seed in seeds]
    metrics = job.metrics(best)
    chosen = {"chosen_by": "pairwise accuracy on the validation tasks"}
    if len(seeds) == 1 or not metrics["validation_best"]:  # without validation tasks the first one is published
        chosen = {}
    spreads = {name: spread([run["results"]["model"][name] for run in runs]) for name in SCORES}
    metrics["seeds"] = {"count": len(seeds), **chosen, **spreads}
    metrics["validation"] = metrics.pop("validation_best")
    metrics["command"] = made_by(f"train --family {job.family}", "publish")
    metrics["results"]["random"] = random_scores(job.corpora[0])
    metrics["results"] |= _rivals_before(job.name, metrics["programs"]) | _rivals(job)
    return metrics


def _rivals(job: Job) -> dict[str, Any]:
    """Mean scores of what else was trained for the same test split, by architecture."""
    scores = {}
    for rival, label in RIVALS.items():
        other = Job(rival, job.family, job.plan)
        trained = list(other.seeds())
        if trained and rival != job.arch and other.corpora[:1] == job.corpora[:1]:
            rows = [other.metrics(seed)["results"]["model"] for seed in trained]
            scores[rival] = {"label": label, **{name: statistics.mean(row[name] for row in rows) for name in SCORES}}
    return scores


def _rivals_before(name: str, programs: int) -> dict[str, Any]:
    """The rivals on the card of the version in the wheel; a row says of how many programs it is if of others."""
    scores = {}
    for path in (WHEEL / name).glob("*/metrics.json"):
        metrics = read_json(path)
        others = {} if metrics["programs"] == programs else {"programs": metrics["programs"]}
        scores |= {rival: others | row for rival, row in metrics["results"].items() if rival in RIVALS}
    return scores


def made_by(*steps: str) -> str:
    """The commands that make a checkpoint of the zoo and its scores anew."""
    return " && ".join(f"python -m scripts.zoo.build {step}" for step in steps)


def random_scores(corpus: str) -> dict[str, float]:
    """What a random order of the test programs gets."""
    from tchub.zoo.training import evaluate_random
    from tchub.zoo.training.programs import corpus_device, resolve_schema
    from tchub.zoo.training.training_data import load_part

    def measure() -> dict[str, float]:
        opened = open_corpus(corpus)
        data = load_part(opened, "test", resolve_schema("nest", corpus_device(opened).kind))
        return evaluate_random(data.latency, data.group, data.task_weights)

    return kept(RUNS / "random" / f"{corpus}.json", measure)

"""Publishing the zoo: a seed for each checkpoint, its metrics and card, the wheel's folder, registry and manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.benchmarks.common import FOLDER, ROOT
from scripts.zoo.plan import RUNS, STATEMENTS, Base, Job, bases, jobs, open_corpus, read_plan

SCORES = ("top1", "top5", "mean_top1", "mean_top5", "pairwise")
WHEEL = ROOT / "zoo" / "checkpoints"
MANIFEST = FOLDER / "zoo.json"
MOST_SHIPPED = 3 << 20  # bytes of a knowledge base that goes into the wheel
_RIVALS = {
    "xgboost": "XGBoost on primitives",
    "xgboost-nest": "XGBoost on TileNet's numbers",
    "tenset-mlp": "TenSet-MLP",
}
_BASELINES = ("xgboost", "lightgbm")  # judged, not published
_FILES = ("config.json", "metrics.json", "model.safetensors", "README.md")


def publish_trained(registry: Path) -> None:
    """Every checkpoint that was trained here; of the others the manifest keeps its entry."""
    manifest = json.loads(MANIFEST.read_text())
    for job in jobs(read_plan()):
        seeds = list(job.seeds())
        if not seeds or job.arch.startswith(_BASELINES):
            continue
        best = max(seeds, key=lambda seed: _metrics(job, seed)["validation_best"].get("pairwise", 0.0))
        metrics = _published_metrics(job, seeds, best)
        for root in (registry, *([WHEEL] if job.ships else [])):
            _put(job, best, metrics, root / job.name / job.version)
        manifest[job.name] = _entry(job, registry / job.name / job.version, metrics)
        _drop_earlier(job.name, job.version)
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def publish_bases(registry: Path, names: tuple[str, ...] = ()) -> list[str]:
    """Every knowledge base that was distilled; those of more than `MOST_SHIPPED` bytes do not go into the wheel."""
    from tchub.zoo.plain_json import json_file

    manifest = json.loads(MANIFEST.read_text())
    done = [base for base in bases(read_plan(), names) if base.is_done]
    for base in done:
        ships = base.settings["ships"] and (base.folder / "model.safetensors").stat().st_size <= MOST_SHIPPED
        for root in (registry, *([WHEEL] if ships else [])):
            folder = root / base.name / base.version
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name in _FILES:
                shutil.copyfile(base.folder / name, folder / name)
            metrics = json.loads((folder / "metrics.json").read_text())
            metrics["command"] = made_by(f"distill --base {base.name}", f"publish --base {base.name}")
            (folder / "metrics.json").write_bytes(json_file(metrics))
        manifest[base.name] = _base_entry(base, registry / base.name / base.version, ships)
        _drop_earlier(base.name, base.version)
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")
    return [base.name for base in done]


def _drop_earlier(name: str, version: str) -> None:
    """The wheel holds one version of a checkpoint; earlier ones stay in the registry."""
    for folder in (WHEEL / name).glob("*.*.*"):
        if folder.name != version:
            shutil.rmtree(folder)


def build_index() -> None:
    """Cards and index of what is in the wheel."""
    subprocess.run([sys.executable, "scripts/zoo/index.py", "--replace"], cwd=ROOT, check=True)


def _base_entry(base: Base, folder: Path, ships: bool) -> dict[str, Any]:
    metrics = json.loads((folder / "metrics.json").read_text())
    devices = [{key: row[key] for key in ("corpus", "gate", "learnt", "now")} for row in metrics["devices"]]
    return {
        "version": base.version,
        "ships": ships,
        "data": "measured",
        "corpora": [row["corpus"] for row in devices],
        "seed": metrics["seed"],
        "results": metrics["results"],
        "devices": devices,
        "files": _hashes(folder),
    }


def _hashes(folder: Path) -> dict[str, str]:
    """Of all that a card is made from; the card itself follows."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "README.md")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def refresh_hashes() -> None:
    """The manifest's hashes of what is in the wheel, after its metrics were written again."""
    manifest = json.loads(MANIFEST.read_text())
    for name, entry in manifest.items():
        folder = WHEEL / name / entry["version"]
        if folder.is_dir():
            entry["files"] = _hashes(folder)
            entry["results"] = json.loads((folder / "metrics.json").read_text())["results"]
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def _metrics(job: Job, seed: int) -> dict[str, Any]:
    return json.loads((job.folder(seed) / "metrics.json").read_text())


def _published_metrics(job: Job, seeds: list[int], best: int) -> dict[str, Any]:
    """The chosen seed's metrics, the spread over all, and the baselines of the same test split."""
    runs = [_metrics(job, seed) for seed in seeds]
    metrics = _metrics(job, best)
    chosen = {"chosen_by": "pairwise accuracy on the validation tasks"} if len(seeds) > 1 else {}
    metrics["seeds"] = {"count": len(seeds), **chosen, **spread([run["results"]["model"] for run in runs])}
    metrics["validation"] = metrics.pop("validation_best")
    metrics["command"] = made_by(f"train --family {job.family}", "publish")
    metrics["results"]["random"] = random_scores(job.corpora[0])
    if job.arch not in STATEMENTS:
        metrics["transfer"] = [_judge_elsewhere(job, best, name) for name in job.place.get("judged_on", ())]
    metrics["results"] |= _told_before(job.name, metrics["programs"]) | _rivals(job)
    return metrics


def _rivals(job: Job) -> dict[str, Any]:
    """Mean scores of what else was trained for the same test split, by architecture."""
    found = {}
    for rival, label in _RIVALS.items():
        other = Job(rival, job.family, job.plan)
        trained = list(other.seeds())
        if trained and rival != job.arch and other.corpora[:1] == job.corpora[:1]:
            rows = [_metrics(other, seed)["results"]["model"] for seed in trained]
            found[rival] = {"label": label, **{name: statistics.mean(row[name] for row in rows) for name in SCORES}}
    return found


def _told_before(name: str, programs: int) -> dict[str, Any]:
    """The rivals on the card of the version in the wheel; a row says of how many programs it is if of others."""
    found = {}
    for path in (WHEEL / name).glob("*/metrics.json"):
        metrics = json.loads(path.read_text())
        others = {} if metrics["programs"] == programs else {"programs": metrics["programs"]}
        found |= {rival: others | row for rival, row in metrics["results"].items() if rival in _RIVALS}
    return found


def made_by(*steps: str) -> str:
    """The commands that make a checkpoint of the zoo and its scores anew."""
    return " && ".join(f"python -m scripts.zoo.build {step}" for step in steps)


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
    from tchub.zoo.training.programs import read_programs

    loaded, corpus = Checkpoint.load(job.folder(seed)), open_corpus(name)
    data, _ = read_programs(
        corpus, sorted(corpus.tasks), get_schema(loaded.config.feature_schema), device=loaded.device
    )
    chance = evaluate_random(data.latency, data.group, data.task_weights)
    return {"corpus": name, "split": "all", "metrics": evaluate_model(loaded.model, data), "random": chance}


def random_scores(corpus: str) -> dict[str, float]:
    """What a random order of the test programs gets."""
    from tchub.zoo.training import evaluate_random
    from tchub.zoo.training.programs import corpus_device, resolve_schema
    from tchub.zoo.training.training_data import load_part

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
    return {
        "version": job.version,
        "ships": job.ships,
        "data": job.place["data"],
        "corpora": job.corpora,
        "seed": metrics["seed"],
        "results": metrics["results"],
        "files": _hashes(folder),
    }

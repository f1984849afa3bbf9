"""Measure what the cards' plots show, and write it into every published metrics.json: curves, transfer, tuning.

    python -m scripts.zoo.measure_cards
    python -m scripts.zoo.measure_cards --checkpoint tilenet-k80

`curves` are of the test split that the checkpoint's scores are of; `transfer` are scores on every other corpus of the
same kind of device, of test tasks that compute nothing of the training; `tuning` are its runs of the benchmark. The
scores are made again first: where they differ from those of metrics.json, that is told, and nothing of the checkpoint
is written if it is by more than `TOLERANCE`. What was measured is kept under `runs/zoo/curves`; a run that was killed
goes on.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
import torch
from tchub.zoo.corpus import Corpus, computations, computed, held_out_computations, split_tasks
from tchub.zoo.features import get_schema
from tchub.zoo.files import write_files
from tchub.zoo.models import Checkpoint
from tchub.zoo.plain_json import json_file, plain
from tchub.zoo.training import RankingDataset, evaluate_model, evaluate_random, evaluate_scores, predict
from tchub.zoo.training.evaluation import RankedPrograms, measure_curves
from tchub.zoo.training.programs import Share, corpus_device, read_programs

from scripts.benchmarks.common import FOLDER, kept, note, read_json
from scripts.benchmarks.curves import DATABASE, TODAY
from scripts.benchmarks.tuning import REFERENCE, SYSTEMS
from scripts.zoo.plan import OWN, RUNS, open_corpus, read_plan, statement_store
from scripts.zoo.publish import WHEEL, build_index

STATEMENT_PROGRAMS = 64  # of a task at most, elsewhere than on the own test split: each is lowered first, 15 ms
TOLERANCE = 0.005


def learnt_computations(corpora: Sequence[Corpus]) -> set[str]:
    """Return the computations of training and validation tasks, without what any of the corpora tests on."""
    learnt = {name for corpus in corpora for part in ("train", "val") for name in computed(corpus, part)}
    return learnt - held_out_computations(corpora)


def judging_tasks(corpus: Corpus, learnt: Collection[str] = ()) -> list[str]:
    """Return the test tasks of a corpus, all tasks where it has none, that compute nothing of `learnt`."""
    known = computations(corpus)
    return [task for task in split_tasks(corpus).test or sorted(corpus.tasks) if known[task] not in learnt]


@lru_cache(maxsize=32)
def read(schema: str, name: str, per_task: int, whole: bool = False) -> RankingDataset | None:
    """Programs of a corpus's tasks that judge, or of all its tasks: all of them, or `per_task` of each at random."""
    corpus = open_corpus(name)
    tasks = sorted(corpus.tasks) if whole else judging_tasks(corpus)
    return read_programs(corpus, tasks, get_schema(schema), statement_store(), Share(per_task=per_task))[0]


@cache
def corpora_digest() -> str:
    """Return what changes with the programs and the splits of all corpora."""
    corpora = [open_corpus(name).meta for name in (*read_plan()["corpora"], *OWN)]
    facts = [(meta["files"], meta.get("split")) for meta in corpora]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Published:
    """A checkpoint as it is in the wheel."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.parent.name

    @property
    def metrics(self) -> dict[str, Any]:
        return read_json(self.folder / "metrics.json")

    @property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / "config.json")

    def kept(self, kind: str, make: Callable[[], Any]) -> Any:
        """What was measured of these weights on the corpora of today, made only when it is not there yet."""
        weights = hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest()
        return kept(RUNS / kind / f"{self.name}-{weights[:16]}-{corpora_digest()}.json", lambda: plain(make()))

    @property
    def learnt(self) -> list[str]:
        """The corpora of the training, the target first."""
        training = self.config["training"]
        return [corpus["name"] for corpus in (training["corpus"], *training.get("sources", ()))]

    @property
    def judged_on(self) -> list[str]:
        """Corpora of the family's own device that nothing was learnt from, where another device stood in for it."""
        config = self.config
        place = read_plan()["families"].get(config["name"].removeprefix(f"{config['arch']}-"), {})
        return place.get("judged_on", [])

    @property
    def stored(self) -> dict[str, dict[str, float]]:
        """The published scores, by the corpus whose test split they are of."""
        devices = {row["corpus"]: row["now"] for row in self.metrics.get("devices", ())}
        return devices or {self.metrics["corpus"]: self.metrics["results"]["model"]}


def published(names: Collection[str] = ()) -> list[Published]:
    """Return what is in the wheel, by feature schema, so that the programs of each corpus are read once."""
    every = [Published(path.parent) for path in WHEEL.glob("*/*/config.json")]
    chosen = [one for one in every if not names or one.name in names]
    return sorted(chosen, key=lambda one: (one.config["feature_schema"], one.name))


def measure(source: Published) -> dict[str, Any]:
    """Curves and transfer of a checkpoint, and the scores made again."""
    checkpoint = Checkpoint.load(source.folder)
    note(source.name)
    return curves_of(source, checkpoint) | {"transfer": _transfer(source, checkpoint)}


def curves_of(source: Published, checkpoint: Checkpoint) -> dict[str, Any]:
    """`curves`, and `again`: the scores of each corpus as they come out now."""
    parts, again = [], {}
    for name in source.stored:
        corpus = open_corpus(name)
        data = read(checkpoint.config.feature_schema, name, 0)
        assert data is not None, f"{name} has no test programs"
        scores = predict(checkpoint.model, data.features)
        again[name] = evaluate_scores(scores, data.latency, data.group, data.task_weights)
        parts.append(RankedPrograms(name, corpus.tasks, data, scores, computations(corpus)))
    return {"again": again, "curves": measure_curves(parts)}


def _transfer(source: Published, checkpoint: Checkpoint) -> list[dict[str, Any]]:
    learnt = learnt_computations([open_corpus(name) for name in source.learnt])
    devices = {open_corpus(name).meta["device"] for name in source.learnt}
    others = [name for name in corpora_of(checkpoint) if name not in source.stored]
    rows = (_transfer_row(name, checkpoint, learnt, devices, name in source.judged_on) for name in others)
    return [row for row in rows if row]


def corpora_of(checkpoint: Checkpoint) -> Iterator[str]:
    """Corpora of the checkpoint's kind of device whose programs its features can tell."""
    plan = read_plan()
    with_statements = {name for place in plan["families"].values() for name in place.get("statements", ())}
    schema = get_schema(checkpoint.config.feature_schema)
    for name in (*plan["corpora"], *OWN):
        if schema.source == "statements" and name not in with_statements:
            continue
        if corpus_device(open_corpus(name)).kind == schema.kind:
            yield name


def _transfer_row(
    name: str, checkpoint: Checkpoint, learnt: set[str], devices: set[str], known_too: bool
) -> dict[str, Any] | None:
    """Scores on a corpus's unseen tasks; `known_too` also counts tasks that were learnt on other devices."""
    corpus = open_corpus(name)
    every, unseen = judging_tasks(corpus), judging_tasks(corpus, learnt)
    judging = every if known_too else unseen
    schema = get_schema(checkpoint.config.feature_schema)
    cap = STATEMENT_PROGRAMS if schema.source == "statements" else 0
    data = read(schema.name, name, cap)
    rows = [] if data is None else np.flatnonzero(np.isin(data.task_ids, judging)[data.group])
    if data is None or not len(rows):
        return None
    data = data.take(rows)
    return {
        "corpus": name,
        "device": corpus.meta["device"],
        "device_learnt": corpus.meta["device"] in devices,
        "split": "test" if split_tasks(corpus).test else "all",
        "tasks": len(np.unique(data.group)),
        "tasks_known": len(judging) - len(unseen),
        "tasks_left_out": len(every) - len(judging),
        "programs": len(data),
        **({"programs_per_task": cap} if cap else {}),
        "metrics": evaluate_model(checkpoint.model, data),
        "random": evaluate_random(data.latency, data.group, data.task_weights),
    }


def tuning(source: Published) -> list[dict[str, Any]]:
    """The runs of the tuning benchmark with this checkpoint and the search that suits it, beside the reference's."""
    rows = []
    for report in (read_json(FOLDER / f"{name}.json") for name in ("tuning", "tuning_intel")):
        runs = report["details"]["runs"]
        reference = {(run["network"], run["seed"]): run for run in runs if run["system"] == REFERENCE}
        for run in runs:
            # After a slash: a search that is not the model's own.
            if run["model"] == f"{source.name}@{source.folder.name}" and "/" not in run["system"]:
                rival = reference.get((run["network"], run["seed"]))
                row = {"network": run["network"], "device": report["machine"]["device"], "trials": run["trials"]}
                row |= {"command": report["command"]} | _line(run)
                rows.append(row | ({"rival": {"name": SYSTEMS[REFERENCE], **_line(rival)}} if rival else {}))
    return rows


def _with_runs(source: Published, metrics: dict[str, Any]) -> dict[str, Any]:
    """Take over what the benchmarks of tuning and of search have of this checkpoint."""
    rows, others = tuning(source), {key: value for key, value in metrics.items() if key != "tuning"}
    return with_schedules(source, others | ({"tuning": rows} if rows else {}))


def with_schedules(source: Published, metrics: dict[str, Any]) -> dict[str, Any]:
    """Take over the sessions of the search benchmark without schedules, and with those that this checkpoint brings."""
    report, rows, model = read_json(FOLDER / "search.json"), [], f"{source.name}@{source.folder.name}"
    live = [row for row in report["details"]["live_networks"] if row.get("model") == model]
    for network in dict.fromkeys(row["network"] for row in live):
        own = [row for row in live if row["network"] == network]
        ends = {name: [row for row in own if row["system"] == name] for name in (TODAY, DATABASE)}
        if all(ends.values()):
            without, brought = (
                [fmean(row[key] for row in part) for key in ("half_ms", "final_ms")] for part in ends.values()
            )
            rows.append({"network": network, "trials": own[0]["trials"], "without": without, "brought": brought})
    rows = [row | {"command": report["command"]} for row in rows]
    return {key: value for key, value in metrics.items() if key != "schedules"} | ({"schedules": rows} if rows else {})


def _line(run: dict[str, Any]) -> dict[str, list[float]]:
    return {
        "seconds": [round(seconds, 2) for _, seconds, _ in run["curve"]],
        "ms": [round(ms, 4) for *_, ms in run["curve"]],
    }


def made_again(metrics: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """The scores as today's corpus and code give them; a knowledge base's stay beside those of its learning.

    Where the corpus has more programs now, the rows that are not made again say of how many theirs are.
    """
    if "devices" in metrics:
        return {}
    curves = measured["curves"]
    grown = {} if curves["programs"] == metrics["programs"] else {"programs": metrics["programs"]}
    results = {name: grown | row for name, row in metrics["results"].items()}
    results["model"] = metrics["results"]["model"] | measured["again"][metrics["corpus"]]
    if grown:
        top_k = {row["k"]: row for row in curves["top_k"] if row["k"] in (1, 5)}
        chance = {f"{of}top{k}": row[f"{of}random"] for of in ("", "mean_") for k, row in top_k.items()}
        results["random"] = metrics["results"]["random"] | chance
    return {"results": results, "tasks": curves["tasks"], "programs": curves["programs"]}


@click.command()
@click.option("--checkpoint", "names", multiple=True, help="Only these; all that are in the wheel otherwise.")
@click.option("--tuning-only", is_flag=True, help="Measure nothing; take over the runs of the benchmarks.")
def main(names: tuple[str, ...], tuning_only: bool) -> None:
    """Measure curves and transfer of every published checkpoint."""
    torch.set_num_threads(1)
    refused = []
    for source in published(names):
        if tuning_only:
            write_files(source.folder, {"metrics.json": json_file(_with_runs(source, source.metrics))})
            continue
        measured = source.kept("curves", lambda source=source: measure(source))
        stored, again = source.stored, measured["again"]
        apart = max(abs(again[name][key] - value) for name, scores in stored.items() for key, value in scores.items())
        if apart > 0:
            click.echo(f"{source.name}: a score made again differs by {apart:.2g}", err=True)
        if not apart <= TOLERANCE:
            refused.append(source.name)
            continue
        metrics = source.metrics | {key: measured[key] for key in ("curves", "transfer")}
        metrics |= {"measured_by": f"python -m scripts.zoo.measure_cards --checkpoint {source.name}"}
        metrics |= made_again(metrics, measured)
        write_files(source.folder, {"metrics.json": json_file(_with_runs(source, metrics))})
    build_index()
    if refused:
        raise click.ClickException(f"not written, for their scores differ: {', '.join(refused)}")


if __name__ == "__main__":
    main()

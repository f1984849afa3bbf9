"""How a published checkpoint ranks the programs of each task, by operator class, and what that says of its trust.

Tasks of every corpus of its kind of device are of three sides that share no computation: `learnt` by the weights;
`judge`, the test tasks of any corpus, and those that a corpus's split leaves out; and the others, `evidence`:

    python -m scripts.zoo.build import --data DIR
    python -m scripts.zoo.classes [--checkpoint NAME]

writes `trust` into the config.json of what is in the wheel, see `ClassTrust`; weights stay as they are.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import click
import numpy as np
import torch
from tchub.zoo.corpus import computations, held_out_computations, split_tasks
from tchub.zoo.features import get_schema
from tchub.zoo.files import write_files
from tchub.zoo.models import Checkpoint, CheckpointConfig
from tchub.zoo.models.config import CONFIG_FILE
from tchub.zoo.training import predict
from tchub.zoo.training.evaluation import RankedPrograms, task_rows
from tchub.zoo.training.metrics import PAIR_RATIO
from tchub.zoo.training.programs import corpus_device
from tchub.zoo.trust import ClassTrust, class_trust

from scripts.benchmarks.common import note
from scripts.zoo.measure_cards import Published, corpora_of, learnt_computations, published, read
from scripts.zoo.plan import OWN, open_corpus, read_plan
from scripts.zoo.publish import build_index

# Programs of a task, at random; those of statement models have to be lowered, 15 ms each.
PROGRAMS, STATEMENT_PROGRAMS = 64, 32
JUDGE, EVIDENCE, LEARNT = "judge", "evidence", "learnt"


@cache
def sides(kind: str) -> dict[str, str]:
    """Return the side of each computation of all corpora of a kind of device: test tasks judge wherever they are."""
    corpora = [open_corpus(name) for name in (*read_plan()["corpora"], *OWN)]
    corpora = [corpus for corpus in corpora if corpus_device(corpus).kind == kind]
    tested = held_out_computations(corpora)
    known = dict.fromkeys(tested, JUDGE) | dict.fromkeys(learnt_computations(corpora) - tested, EVIDENCE)
    return {text: known.get(text, JUDGE) for corpus in corpora for text in computations(corpus).values()}


def learnt(checkpoint: Published) -> set[str]:
    """Return the computations that the weights learnt: all but test tasks, and validation tasks of the target."""
    target, *sources = (open_corpus(name) for name in checkpoint.learnt)
    held = held_out_computations([target, *sources])
    held |= {computations(target)[task] for task in split_tasks(target).val}
    return learnt_computations([target, *sources]) - held


def task_accuracies(checkpoint: Published) -> list[dict[str, Any]]:
    """Return a row for each task: corpus, framework, side, operator, scores, `error` of pairwise."""
    return checkpoint.kept("classes", lambda: _measure(checkpoint))


def _measure(source: Published) -> list[dict[str, Any]]:
    checkpoint = Checkpoint.load(source.folder)
    schema = get_schema(checkpoint.config.feature_schema)
    side, known = sides(schema.kind), learnt(source)
    rows: list[dict[str, Any]] = []
    for name in corpora_of(checkpoint):
        per_task = STATEMENT_PROGRAMS if schema.source == "statements" else PROGRAMS
        corpus, data = open_corpus(name), read(schema.name, name, per_task, whole=True)
        if data is None:
            continue
        texts = computations(corpus)
        counts = {task: corpus.table(task, ["error"])["error"].null_count for task in data.task_ids}
        scores = predict(checkpoint.model, data.features)
        facts = {"framework": corpus.meta.get("framework", "metaschedule"), "device": corpus.meta["device"]}
        members = dict(zip(data.task_ids, data.members, strict=True))
        for row in task_rows(RankedPrograms(name, corpus.tasks, data, scores, texts)):
            if "pairwise" in row:
                task, own = row["task"], members[row["task"]]
                at = LEARNT if texts[task] in known else side[texts[task]]
                error = pairwise_error(scores[own], data.latency[own])
                rows.append(facts | row | {"side": at, "all": counts[task], "error": error})
    note(f"{source.name}: {len(rows)} tasks")
    return rows


def pairwise_error(scores: np.ndarray, latency: np.ndarray) -> float:
    """Return the standard error of a task's pairwise accuracy, by the jackknife over its programs (N,)."""
    counts = np.maximum.outer(latency, latency) > PAIR_RATIO * np.minimum.outer(latency, latency)
    right = (1 - np.sign(np.subtract.outer(scores, scores)) * np.sign(np.subtract.outer(latency, latency))) / 2 * counts
    pairs, hits = (table.sum() / 2 - table.sum(axis=0) for table in (counts, right))  # without each program
    left = hits[pairs > 0] / pairs[pairs > 0]
    return float(np.sqrt((len(left) - 1) / len(left) * np.square(left - left.mean()).sum())) if len(left) else 1.0


def trust_of(checkpoint: Published) -> dict[str, ClassTrust]:
    """Return how far the scores of each class hold, by framework and for any, as evidence and learnt tasks say."""
    cap = checkpoint.config["training"].get("programs_per_task") or 0
    corpora = set(checkpoint.learnt)
    return class_trust(
        (
            *(row["framework"], row["operator"], row["pairwise"]),
            min(row["all"], cap or row["all"]) if row["side"] == LEARNT else 0,
        )
        for row in task_accuracies(checkpoint)
        # A task that was learnt counts on the devices whose programs were learnt.
        if row["side"] == EVIDENCE or (row["side"] == LEARNT and row["corpus"] in corpora)
    )


@click.command()
@click.option("--checkpoint", "names", multiple=True, help="Only these; all that are in the wheel otherwise.")
def main(names: tuple[str, ...]) -> None:
    """Write into each published config.json which operator classes its scores hold for."""
    torch.set_num_threads(1)
    for one in published(names):
        config = replace(CheckpointConfig.read(one.folder), trust=trust_of(one))
        write_files(one.folder, {CONFIG_FILE: config.to_json()})
        note(f"{one.name}: {', '.join(key for key, row in config.trust.items() if not row.trusted)} not trusted")
    build_index()


if __name__ == "__main__":
    main()

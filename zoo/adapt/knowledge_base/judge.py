"""A knowledge base's scores on every device that it has learnt: what it knows, and what it forgot."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from ...models import Checkpoint
from ...training import RankingDataset, evaluate_model, evaluate_random
from ...training.inputs import StatementStore
from .curriculum import Curriculum
from .facts import LearntDevice, learnt_devices, programs_digest

if TYPE_CHECKING:
    from ...corpus import Corpus

METRICS_FORMAT = 1


def judge(checkpoint: Checkpoint, curriculum: Curriculum, store: StatementStore) -> dict[str, Any]:
    """What `metrics.json` holds.

    `devices` has every device in the order of learning: `learnt`, the base's scores on its test tasks right after it
    was learnt, `now`, those of the finished base, and `column`, those of the column that taught it. A device whose
    corpus is not at hand has no `now`. `results` are the means over those that have one.
    """
    at_hand = {programs_digest(c): c for c in (*curriculum.judged, *curriculum.corpora)}
    rows = [_row(checkpoint, d, at_hand.get(d.sha256), curriculum, store) for d in learnt_devices(checkpoint.config)]
    judged = [row for row in rows if row["now"]]
    training = checkpoint.config.training
    return {
        "format": METRICS_FORMAT,
        "corpus": f"the mean over {len(judged)} {'corpus' if len(judged) == 1 else 'corpora'}",
        "split": "test",
        "seed": training["seed"],
        "seconds": training["seconds"],
        "tasks": sum(row["tasks"] for row in judged),
        "programs": sum(row["programs"] for row in judged),
        "results": {"model": _mean(judged, "now"), "random": _mean(judged, "random")} if judged else {},
        "devices": rows,
    }


def test_scores(model: Any, data: RankingDataset | None) -> dict[str, float]:
    """Scores of a model on test tasks; nothing without any."""
    return evaluate_model(model, data) if data is not None else {}


def _row(
    checkpoint: Checkpoint,
    device: LearntDevice,
    corpus: Corpus | None,
    curriculum: Curriculum,
    store: StatementStore,
) -> dict[str, Any]:
    data = curriculum.test(corpus, store) if corpus is not None else None
    row = {
        "corpus": device.corpus,
        "device": device.device,
        "gate": device.gate,
        "learnt": device.test.get("base"),
        "column": device.test.get("column"),
        "now": None,
    }
    if data is None:
        return row | {"tasks": 0, "programs": 0}
    random = evaluate_random(data.latency, data.group, data.task_weights)
    now = test_scores(checkpoint.model, data)
    return row | {"now": now, "random": random, "tasks": len(data.task_ids), "programs": len(data)}


def _mean(rows: Sequence[dict[str, Any]], key: str) -> dict[str, float]:
    return {name: mean(row[key][name] for row in rows) for name in rows[0][key]}

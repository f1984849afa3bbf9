"""What the benchmark of operator classes counts: scores as they are used beside what the weights alone give."""

from typing import Any

import numpy as np
import pytest
from tchub.zoo.models import CheckpointConfig
from tchub.zoo.training.metrics import pairwise_accuracy
from tchub.zoo.trust import ClassTrust

from scripts.benchmarks.classes import CLASS, expected_below_half, judged, mean_rows, summarise, worst_classes
from scripts.zoo.classes import pairwise_error


def row(operator: str, pairwise: float, side: str = "judge", framework: str = "ansor") -> dict[str, Any]:
    corpus = f"v100-{framework}"
    return {"corpus": corpus, "framework": framework, "side": side, "operator": operator, "pairwise": pairwise}


ROWS = [
    *(row("conv2d", pairwise) for pairwise in (0.9, 0.7)),
    *(row("reduce", pairwise) for pairwise in (0.2, 0.3)),
    row("conv2d", 0.1, side="evidence"),
    row("conv2d", 0.4, framework="autotvm"),
]
CONFIG = CheckpointConfig("tcl-v100", "1.0.0", "tcl", {}, "tcl-gpu", "v100")


def test_the_error_of_a_task_is_that_of_a_bootstrap_over_its_programs() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 1, 40) - (latency := rng.uniform(1, 4, 40))
    drawn = [rng.integers(0, 40, 40) for _ in range(300)]
    spread = np.std([pairwise_accuracy(scores[at], latency[at], np.zeros(40, int)) for at in drawn])
    assert pairwise_error(scores, latency) == pytest.approx(spread, rel=0.15)
    assert (pairwise_error(-latency, latency), pairwise_error(scores, np.ones(40))) == (0.0, 1.0)


def test_a_class_that_is_not_trusted_counts_one_half() -> None:
    trust = {"ansor/conv2d": ClassTrust.of([0.8] * 4), "*/reduce": ClassTrust.of([0.2])}
    tasks = judged(CheckpointConfig(**vars(CONFIG) | {"trust": trust}), [one | {"error": 0.1} for one in ROWS])
    rows = mean_rows(tasks, *CLASS, "corpus")
    assert [(r["operator"], r["corpus"], r["tasks"], round(r["raw"], 3), round(r["pairwise"], 3)) for r in rows] == [
        ("conv2d", "v100-ansor", 2, 0.8, 0.8),
        ("conv2d", "v100-autotvm", 1, 0.4, 0.5),
        ("reduce", "v100-ansor", 2, 0.25, 0.5),
    ]
    summary = summarise(tasks)
    assert (summary["worst"], summary["worst_raw"]) == (0.5, 0.25)
    assert (summary["below_half"], summary["below_half_raw"]) == (0, 1), "conv2d of both frameworks is at two thirds"
    assert (summary["below_half_by_corpus"], summary["below_half_by_corpus_raw"]) == (0, 2)
    assert summary["below_half_significantly_by_corpus_raw"] == 1, "0.25 +- 0.14, and 0.4 +- 0.2, which may be chance"
    (worst,) = worst_classes(mean_rows(tasks, *CLASS))
    assert (worst["checkpoint"], worst["of"], worst["worst"]) == ("tcl-v100", "reduce", 0.5)


def test_few_tasks_lie_below_half_as_often_as_tasks_drawn_from_the_evidence() -> None:
    tasks = judged(CONFIG, [one | {"error": 0.1} for one in ROWS])
    conv, reduce = ("tcl-v100", "conv2d", "v100-ansor"), ("tcl-v100", "reduce", "v100-ansor")
    counts = expected_below_half(tasks, {conv: [0.4, 0.8], reduce: [0.6]})
    assert counts == {"below_half_with_evidence": 1, "below_half_expected": 0.2}, "0.4 twice is one draw of four"
    unsure = judged(CheckpointConfig(**vars(CONFIG) | {"trust": {"ansor/conv2d": ClassTrust()}}), tasks)
    assert expected_below_half(unsure, {conv: [0.4], reduce: [0.4]})["below_half_expected"] == 0

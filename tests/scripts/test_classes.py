"""What the benchmark of operator classes counts: scores as they are used beside what the weights alone give."""

from __future__ import annotations

from typing import Any

from tchub.zoo.models import CheckpointConfig
from tchub.zoo.trust import ClassTrust

from scripts.benchmarks.classes import by_class, judged, summarise, worst_classes


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


def test_a_class_that_is_not_trusted_counts_one_half() -> None:
    trust = {"ansor/conv2d": ClassTrust.of([0.8] * 4), "*/reduce": ClassTrust.of([0.2])}
    rows = judged(CheckpointConfig(**vars(CONFIG) | {"trust": trust}), ROWS)
    assert [(r["operator"], r["corpus"], r["tasks"], round(r["raw"], 3), round(r["pairwise"], 3)) for r in rows] == [
        ("conv2d", "v100-ansor", 2, 0.8, 0.8),
        ("conv2d", "v100-autotvm", 1, 0.4, 0.5),
        ("reduce", "v100-ansor", 2, 0.25, 0.5),
    ]
    summary = summarise(rows)
    assert (summary["worst"], summary["worst_raw"]) == (0.5, 0.25)
    assert (summary["below_half"], summary["below_half_raw"]) == (0, 1), "conv2d of both frameworks is at two thirds"
    assert (summary["below_half_by_corpus"], summary["below_half_by_corpus_raw"]) == (0, 2)
    (worst,) = worst_classes(by_class(rows))
    assert (worst["checkpoint"], worst["of"], worst["worst"]) == ("tcl-v100", "reduce", 0.5)

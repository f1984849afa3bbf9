"""Cards of knowledge bases: what was learnt in which order, under which licences, and what was forgotten."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from huggingface_hub import ModelCard
from tchub.cards import CardError, check_card, render_card
from tchub.zoo.devices import get_device


def scores(pairwise: float) -> dict[str, float]:
    return {"top1": 0.7, "top5": 0.9, "mean_top1": 0.7, "mean_top5": 0.9, "pairwise": pairwise}


def corpus(name: str, licence: str) -> dict[str, Any]:
    return {
        "name": name,
        "device": name,
        "licence": licence,
        "programs": 900,
        "tasks": 9,
        "networks": [],
        "held_out": [],
    }


CONFIG: dict[str, Any] = {
    "format": 1, "name": "tilenet-kb-gpu", "version": "1.1.0", "arch": "tilenet-kb", "family": "gpu",
    "feature_schema": "nest-gpu", "tvm": "", "model": {"lateral": 16, "column": False},
    "device": get_device("v100").to_dict(),
    "lineage": {
        "weights_licence": "Apache-2.0", "base": "tilenet-kb-gpu@1.0.0", "data": "measured",
        "measured_on": ["mi50", "k80", "v100"], "devices": [],
    },
    "training": {
        "command": "tchub distill tilenet-kb-gpu@1.0.0 --corpus v100 --out DIR", "seed": 0, "seconds": 60.0,
        "parameters": 405_277, "programs_per_task": 200, "corpus": corpus("mi50", "MIT"),
        "sources": [corpus("k80", "GPL-3.0"), corpus("v100", "MIT")],
    },
}  # fmt: skip
METRICS: dict[str, Any] = {
    "format": 1, "corpus": "the mean over 2 corpora", "split": "test", "seed": 0, "tasks": 20, "programs": 5_000,
    "results": {"model": scores(0.82), "random": scores(0.5)},
    "devices": [
        {"corpus": "mi50", "device": "mi50", "gate": None, "column": None, "learnt": scores(0.8), "now": scores(0.79)},
        {"corpus": "k80", "device": "k80", "gate": 0.43, "column": scores(0.83), "learnt": scores(0.82), "now": None},
        {"corpus": "v100", "device": "v100", "gate": 0.7, "column": scores(0.86), "learnt": scores(0.85),
         "now": scores(0.85)},
    ],
}  # fmt: skip
TEXT = render_card(CONFIG, METRICS)


def row(text: str, start: str) -> list[str]:
    line = next(line for line in text.split("## Device by device")[1].splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_it_is_said_to_be_of_several_devices():
    opening = TEXT.split("\n## ", maxsplit=1)[0]
    assert "**A knowledge base.** It has learnt 3 GPUs one after the other" in opening
    assert "`mi50`, `k80`, `v100`" in opening
    assert "family" not in opening.split("\n# ")[1]
    assert "programs for TVM MetaSchedule on GPUs" in TEXT


def test_each_device_has_its_column_its_gate_and_what_was_forgotten():
    assert row(TEXT, "mi50")[2:] == ["-", "-", "0.800", "0.790", "+0.010"]
    assert row(TEXT, "k80")[2:] == ["0.43", "0.830", "0.820", "-", "-"]
    assert row(TEXT, "v100")[6] == "+0.000"


def test_every_corpus_has_its_licence():
    assert "- **k80: its log is under GPL-3.0**" in TEXT
    assert ModelCard(TEXT).data.to_dict()["data_licence"] == "MIT, GPL-3.0"
    assert {"device:gpu", "tilenet-kb", "measured"} <= set(ModelCard(TEXT).data.tags or [])


def test_it_tells_how_a_device_is_added_and_shows_no_single_device():
    assert "tchub distill tilenet-kb-gpu --corpus DIR --out with-mine" in TEXT
    assert "tchub tune" not in TEXT
    assert "\n## Device\n" not in TEXT
    assert "- Started from: tilenet-kb-gpu@1.0.0" in TEXT
    assert "becomes the model's context" in TEXT
    assert "TCL: Enabling Fast" in TEXT.split("## Citation")[1]


def test_it_agrees_with_its_files():
    assert check_card(TEXT, CONFIG, METRICS) == []


@pytest.mark.parametrize(("key", "value"), [("gate", "half"), ("now", 0.8), ("corpus", None)])
def test_a_device_of_a_wrong_form_is_named(key, value):
    metrics = copy.deepcopy(METRICS)
    metrics["devices"][0][key] = value
    with pytest.raises(CardError, match=key):
        render_card(CONFIG, metrics)

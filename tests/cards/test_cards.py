"""Cards: numbers come from the files alone, missing facts are said to be missing, and the Hub can read the head."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st
from tchub.cards import MISSING, CardData, CardError, check_card, render_card

CONFIG = {
    "format": 1,
    "name": "tcl-epyc",
    "version": "1.0.0",
    "arch": "tcl",
    "family": "epyc",
    "feature_schema": "tcl-cpu",
    "tvm": "0.27.0",
    "model": {"hidden": 64, "d_model": 128},
    "lineage": {"weights_licence": "Apache-2.0", "base": None, "authors": "the authors", "limits": ["Only float32."]},
    "training": {
        "command": "tchub train recipe.toml --seed 3",
        "seed": 3,
        "seconds": 912.4,
        "corpus": {
            "name": "epyc-cloud",
            "device": "epyc-turin",
            "cpu_model": "AMD EPYC | 9B45",
            "licence": "CC-BY-4.0",
            "programs": 12345,
            "tasks": 110,
            "how": "one core, 3 repeats at least",
            "networks": ["resnet-18", "vgg-16"],
            "held_out": ["resnet-50", "bert-tiny"],
        },
    },
}
METRICS = {
    "format": 1,
    "corpus": "epyc-cloud",
    "split": "test",
    "device": "epyc-turin",
    "seed": 3,
    "command": "tchub evaluate tcl-epyc --split test",
    "results": {
        "xgboost": {"top1": 0.7113, "top5": 0.88, "pairwise": 0.72},
        "model": {"top1": 0.90251, "top5": 0.9642, "mean_top1": 0.89, "mean_top5": 0.95, "pairwise": 0.8531,
                  "tasks": 42, "programs": 4032},
        "random": {"top1": 0.35, "top5": 0.6, "pairwise": 0.5},
        "ten_percent": {"top1": 0.81, "top5": 0.91, "pairwise": 0.79},
    },
}  # fmt: skip
BARE = {key: CONFIG[key] for key in ("name", "version", "arch", "family", "feature_schema")}


def row(text: str, label: str) -> list[str]:
    """The cells of one line of the table of scores."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def section_of(text: str, title: str) -> str:
    """What stands under a heading."""
    return text.split(f"\n## {title}\n")[1].split("\n## ", maxsplit=1)[0]


def test_the_scores_are_those_of_the_file_beside_three_baselines():
    text = render_card(CONFIG, METRICS)
    assert row(text, "**this checkpoint**") == ["0.903", "0.964", "0.853", "0.890", "0.950"]
    assert "42 tasks, 4,032 programs" in text
    assert row(text, "random choice")[0] == "0.350"
    assert row(text, "XGBoost")[:3] == ["0.711", "0.880", "0.720"]
    assert row(text, "same architecture")[0] == "0.810"


@pytest.mark.parametrize(
    "fact",
    ["tchub train recipe.toml --seed 3", "Seed: 3", "912 s", "| 12,345 | 110 | CC-BY-4.0 |", "resnet-18, vgg-16",
     "resnet-50, bert-tiny", "Only float32.", "`d_model=128`, `hidden=64`", "the authors", "one core, 3 repeats",
     "tchub evaluate tcl-epyc --split test", "memory_bandwidth_gbs", 'hub.load("tcl-epyc@1.0.0")'],
)  # fmt: skip
def test_every_fact_is_on_the_card(fact):
    assert fact in render_card(CONFIG, METRICS)


def test_the_hub_reads_the_head():
    card = ModelCard(render_card(CONFIG, METRICS))
    head = card.data
    assert (head.library_name, head.license, head.pipeline_tag) == ("tchub", "apache-2.0", "tabular-regression")
    assert {"tchub", "tvm", "tcl", "device:epyc"} <= set(head.tags)
    results = {result.metric_type: result for result in head.eval_results}
    assert results["top1"].metric_value == 0.9025
    assert set(results) == {"top1", "top5", "pairwise"}
    assert all(result.dataset_split == "test" for result in results.values())
    assert card.text.lstrip().startswith("# tcl-epyc 1.0.0")


def test_what_is_not_known_is_said_to_be_missing():
    text = render_card(BARE, {})
    for section in ("Scores", "Data", "Training", "Licences"):
        assert MISSING in section_of(text, section)
    assert "None" not in text
    assert "0.0" not in section_of(text, "Data") + section_of(text, "Training")
    assert ModelCard(text).data.eval_results is None


def test_what_was_not_measured_has_no_section():
    text = render_card(BARE, {})
    assert "## On other corpora" not in text
    assert "## With a few programs" not in text
    assert "## Device" not in render_card(BARE | {"family": "unheard-of"}, {})


def test_a_dataset_on_the_hub_is_linked():
    config = copy.deepcopy(CONFIG)
    config["training"]["corpus"]["name"] = "org/epyc-cloud"
    assert ModelCard(render_card(config, METRICS)).data.datasets == ["org/epyc-cloud"]


def test_an_adapted_checkpoint_names_its_base():
    config = CONFIG | {"lineage": CONFIG["lineage"] | {"base": "tcl-xeon@1.0.0"}}
    assert "Started from: tcl-xeon@1.0.0" in render_card(config, METRICS)


def test_where_a_baseline_wins_the_card_says_so():
    metrics = copy.deepcopy(METRICS)
    assert "Where it lost" not in render_card(CONFIG, metrics)
    metrics["results"]["xgboost"]["pairwise"] = 0.9
    assert "Where it lost: XGBoost" in render_card(CONFIG, metrics)


def test_a_bar_in_a_fact_does_not_break_a_table():
    config = copy.deepcopy(CONFIG)
    metrics = copy.deepcopy(METRICS)
    metrics["results"]["a|b"] = {"top1": 0.1}
    assert "| a\\|b | 0.100 |" in render_card(config, metrics)


def test_an_untouched_card_agrees_with_its_files():
    assert check_card(render_card(CONFIG, METRICS), CONFIG, METRICS) == []


def test_a_number_typed_by_hand_is_found():
    text = render_card(CONFIG, METRICS).replace("0.903", "0.953")
    found = check_card(text, CONFIG, METRICS)
    assert len(found) == 2
    assert found[0].startswith("-| **this checkpoint** | 0.953")
    assert found[1].startswith("+| **this checkpoint** | 0.903")


def test_new_metrics_make_an_old_card_disagree():
    metrics = copy.deepcopy(METRICS)
    metrics["results"]["model"]["top5"] = 0.5
    assert check_card(render_card(CONFIG, METRICS), CONFIG, metrics)


@pytest.mark.parametrize(
    ("config", "metrics", "key"),
    [
        ({"name": None}, {}, "name"),
        ({"name": 3}, {}, "name"),
        ({"training": []}, {}, "training"),
        ({"training": {"seed": "3"}}, {}, "seed"),
        ({"training": {"corpus": {"networks": "all"}}}, {}, "networks"),
        ({"training": {"corpus": 3}}, {}, "corpus"),
        ({}, {"format": 2}, "format"),
        ({}, {"results": {"model": {"top1": "high"}}}, "top1"),
        ({}, {"results": {"model": {"tasks": 1.5}}}, "tasks"),
        ({}, {"results": {"model": {"top5": {"mean": "high"}}}}, "top5"),
        ({"training": {"sources": ["v100"]}}, {}, "sources"),
        ({"lineage": {"data": "guessed"}}, {}, "data"),
        ({}, {"few_shot": {"a few": {}}}, "few_shot"),
        ({}, {"transfer": [{"split": "test"}]}, "transfer"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(config, metrics, key):
    with pytest.raises(CardError) as caught:
        render_card(BARE | config, metrics)
    assert caught.value.fields["field"] == key
    assert caught.value.remedy


def test_not_a_number_is_no_score():
    text = render_card(BARE, {"results": {"model": {"top1": float("nan")}}})
    assert row(text, "**this checkpoint**")[0] == "-"


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.lists(texts, max_size=3))
def test_no_text_breaks_the_head_or_the_agreement(command, corpus, limits):
    config = BARE | {"lineage": {"limits": limits}, "training": {"command": command, "corpus": {"name": corpus}}}
    text = render_card(config, METRICS)
    assert check_card(text, config, METRICS) == []
    assert ModelCard(text).data.library_name == "tchub"


def test_card_data_is_frozen():
    with pytest.raises(AttributeError):
        CardData.from_files(CONFIG, METRICS).name = "other"


def test_every_card_in_the_wheel_agrees_with_its_files():
    root = Path(str(resources.files("tchub.zoo.checkpoints")))
    for config in sorted(root.glob("*/*/config.json")):
        folder = config.parent
        files = [json.loads((folder / name).read_text()) for name in ("config.json", "metrics.json")]
        assert check_card((folder / "README.md").read_text(), *files) == [], folder

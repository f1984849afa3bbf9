"""The text of a card: numbers come from the files alone, missing facts are shown as missing, the Hub reads the head."""

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from card_kit import (
    CONFIG,
    KB_CONFIG,
    KB_METRICS,
    METRICS,
    T4_CONFIG,
    T4_METRICS,
    changed,
    spoiled,
    subsets,
)
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from hypothesis import given
from hypothesis import strategies as st
from tchub.cards import MISSING, CardError, check_card, render_card
from tchub.cards.render import hub_licence, hub_licences

BARE = {key: CONFIG[key] for key in ("name", "version", "arch", "family", "feature_schema")}
TEXT, T4_TEXT = render_card(CONFIG, METRICS), render_card(T4_CONFIG, T4_METRICS)


def section(title: str, text: str = TEXT) -> str:
    """Return the text under a heading of any level, up to the next of its level or above."""
    level = "#" * (3 if f"\n### {title}\n" in text else 2)
    rest = text.split(f"\n{level} {title}\n")[1]
    return rest.split("\n## ", maxsplit=1)[0].split(f"\n{level} ", maxsplit=1)[0]


def opening(text: str) -> str:
    """Return the text between the title and the first section."""
    return text.split("\n# ")[1].split("\n## ", maxsplit=1)[0]


def rows(text: str, start: str) -> list[list[str]]:
    """Return the cells of every line of a table that starts with a cell."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    "fact",
    ["| **this checkpoint** | 0.900 | 0.950 | 0.860 | 0.900 | 0.960 |", "| random choice | 0.200 |",
     "| mean of 3 seeds | 0.900 ± 0.020 | - | 0.880 ± 0.003 |", "12 tasks, 940 programs, measured on epyc-turin",
     "| this checkpoint | 0.905 | 0.910 | 0.915 | 0.925 | 0.950 | 1.000 |", "| 9,070 | 46 | Apache-2.0 |",
     "| xeon-4210 | test | 0.200 | 0.950 | 0.600 | 0.200 | 0.960 | xeon-4210 * | 6 of 8 | 600 |",
     "- Random choice is ahead on xeon-4210: top-1 0.300 against 0.200", "| softmax | 1 | 40 | 0.700 | 0.900 |",
     "| bert-tiny | epyc-turin | 16 | 80.0 | 5.3 | stock MetaSchedule |",
     "The model gets the latencies (labels) of some programs of each test task. They are drawn at random, at most half",
     "| 4 | **this checkpoint** |", "| 16 | **this checkpoint** |"],
)  # fmt: skip
def test_scores_and_what_they_were_measured_on_are_on_the_card(fact):
    assert fact in TEXT


def test_every_corpus_of_the_training_is_on_the_card_with_its_licence():
    assert "| rtx2080ti | rtx2080ti | ansor | 4,000 | 12 | GPL-3.0 | owner/rtx2080ti@0a1b2c |" in T4_TEXT
    assert "- **t4: no licence was found** where its log was published (owner/t4@0a1b2c)." in T4_TEXT


def test_the_classes_that_a_checkpoint_knows_have_their_tasks_and_bound():
    trust = {
        "ansor/conv2d": {"tasks": 31, "programs": 6200, "judged": 6, "pairwise": 0.84, "least": 0.79},
        "*/reduce": {"judged": 4, "pairwise": 0.21, "least": 0.13},
    }
    text = section("What it knows", render_card({**CONFIG, "trust": trust}, METRICS))
    assert rows(text, "ansor") == [["ansor", "conv2d", "31", "6,200", "6", "0.840", "0.790", "yes"]]
    assert rows(text, "any") == [["any", "reduce", "0", "0", "4", "0.210", "0.130", "**no**"]]
    assert "What it knows" not in TEXT


def test_the_devices_of_a_knowledge_base_have_gate_column_and_loss():
    text = render_card(KB_CONFIG, KB_METRICS)
    assert rows(section("Device by device", text), "mi50")[0][2:] == ["-", "-", "0.800", "0.790", "+0.010"]
    assert rows(section("Device by device", text), "k80")[0][2:] == ["0.43", "0.830", "0.820", "-", "-"]
    assert "**A knowledge base.** It has learnt 2 GPUs" in opening(text)
    assert "tchub distill tilenet-kb-gpu --corpus DIR --out with-mine" in text
    assert "\n## Device\n" not in text


def test_a_transferred_checkpoint_names_the_device_that_was_measured_or_stands_in():
    facts = {"data": "transferred", "measured_on": ["rtx2080ti"]}
    text = opening(render_card(changed(T4_CONFIG, lineage=facts), T4_METRICS | {"device": "rtx2080ti"}))
    assert "No program in the training was measured on a device of the family `t4`" in text
    assert "`rtx2080ti`, **not** on a device of the family `t4`" in text
    facts["stand_in"] = "a Cortex-A72 board stands in"
    text = opening(render_card(changed(T4_CONFIG, lineage=facts), T4_METRICS))
    assert "A Cortex-A72 board stands in." in text
    assert "The scores below are for programs measured on the stand-in, not on a device of the family itself." in text


def test_missing_facts_are_marked_and_what_was_not_measured_has_no_section():
    text = render_card(BARE, {})
    for title in ("Scores", "Data", "Training", "Licences"):
        assert MISSING in section(title, text)
    for absent in ("None", "How it ranks", "Tuning with it", "On other corpora", "With a few programs", ".svg"):
        assert absent not in text
    assert ModelCard(text).data.eval_results is None


def test_no_line_of_a_table_is_torn_by_a_bar_in_a_name():
    metrics = copy.deepcopy(T4_METRICS)
    metrics["results"]["a|b"] = {"top1": 0.1}
    text = render_card(T4_CONFIG, metrics)
    assert "| a\\|b | 0.100 |" in text
    for block in text.replace("\\|", "").split("\n\n"):
        table = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in table}) <= 1, block


def test_a_number_typed_by_hand_is_found():
    assert check_card(TEXT, CONFIG, METRICS) == []
    lines = check_card(TEXT.replace("| 0.900 | 0.950", "| 0.953 | 0.950", 1), CONFIG, METRICS)
    assert [line[:32] for line in lines] == ["-| **this checkpoint** | 0.953 |", "+| **this checkpoint** | 0.900 |"]


def test_the_model_index_has_the_scores_of_every_split_and_makes_the_round_trip():
    data = ModelCard(TEXT).data
    values = {(r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results or []}
    assert (values["test", "top1"], values["validation", "pairwise"], len(values)) == (0.9, 0.87, 6)
    name, again = model_index_to_eval_results(eval_results_to_model_index("tilenet-epyc", data.eval_results or []))
    assert name == "tilenet-epyc"
    assert all(isinstance(result, EvalResult) for result in again)
    assert again == data.eval_results


@pytest.mark.parametrize(
    ("spdx", "fields"),
    [
        ("Apache-2.0", ("apache-2.0", None)),
        ("GPL-3.0-only", ("gpl-3.0", None)),
        ("Beerware", ("other", "beerware")),
        (None, (None, None)),
    ],
)
def test_a_licence_is_one_that_the_hub_knows_or_other(spdx, fields):
    assert hub_licence(spdx) == fields
    assert fields[0] is None or fields[0] in hub_licences()
    head = ModelCard(render_card(changed(CONFIG, lineage={"weights_licence": spdx}), METRICS)).data.to_dict()
    assert (head.get("license"), head.get("license_name")) == fields


def card_or_none(config: dict[str, Any], metrics: dict[str, Any]) -> str | None:
    """Return the card; None where a field was refused by its name."""
    try:
        return render_card(config, metrics)
    except CardError as error:
        return None if error.fields["field"] and error.remedy else error.message


@given(subsets(CONFIG), subsets(METRICS))
def test_any_part_of_the_files_gives_a_card_that_the_hub_reads_or_a_named_field(config, metrics):
    text = card_or_none(config, metrics)
    if text is not None:
        assert ModelCard(text).data.library_name == "tchub"
        assert check_card(text, config, metrics) == []
        assert " None" not in text


@given(spoiled(CONFIG), spoiled(METRICS))
def test_no_value_of_a_field_ends_in_another_error_than_a_card_error(config, metrics):
    text = card_or_none(config, metrics)
    assert text is None or ModelCard(text).data.library_name == "tchub"


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(texts, texts, st.lists(texts, max_size=3))
def test_no_text_breaks_the_head_or_the_agreement(command, name, limits):
    config = BARE | {"lineage": {"limits": limits}, "training": {"command": command, "corpus": {"name": name}}}
    text = render_card(config, METRICS)
    assert check_card(text, config, METRICS) == []
    assert ModelCard(text).data.library_name == "tchub"


def test_every_card_in_the_wheel_agrees_with_its_files():
    root = Path(str(resources.files("tchub.zoo.checkpoints")))
    for config in sorted(root.glob("*/*/config.json")):
        folder = config.parent
        files = [json.loads((folder / name).read_text()) for name in ("config.json", "metrics.json")]
        assert check_card((folder / "README.md").read_text(), *files) == [], folder

"""Cards and plots: numbers come from the files alone, missing facts are shown as missing, the Hub reads the head."""

import copy
import json
import os
import subprocess
import sys
from xml.etree import ElementTree as XML

import pytest
from card_kit import BARE, CONFIG, METRICS, T4_CONFIG, T4_METRICS, changed, corpus, spoiled, subsets, without
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tchub.cards import MISSING, CardData, CardError, check_card, draw, missing, plots_of, render_card
from tchub.cards.render import hub_licence, hub_licences

TEXT = render_card(CONFIG, METRICS)


def test_what_tuning_gained_is_on_the_card():
    assert "| bert-tiny | epyc-turin | 16 | 80.0 | 5.3 | stock MetaSchedule |" in TEXT
    assert "| 16 | **this checkpoint** |" in TEXT


def test_a_transferred_checkpoint_names_the_device_that_was_measured():
    facts = {"data": "transferred", "measured_on": ["rtx2080ti"]}
    text = render_card(changed(T4_CONFIG, lineage=facts), T4_METRICS | {"device": "rtx2080ti"})
    assert "`rtx2080ti`, **not** on a device of the family `t4`" in text


def test_missing_facts_are_marked_and_what_was_not_measured_has_no_section():
    text = render_card(BARE, {})
    for title in ("Scores", "Data"):
        assert f"## {title}\n\n{MISSING}" in text
    assert f"- Weights: {MISSING}\n- Data: {MISSING}" in text
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


@given(subsets(CONFIG) | spoiled(CONFIG), subsets(METRICS) | spoiled(METRICS))
def test_any_part_of_the_files_and_any_value_gives_a_card_that_the_hub_reads_or_a_named_field(config, metrics):
    try:
        text = render_card(config, metrics)
    except CardError as error:
        faults = [name for name, value in (("field", error.fields["field"]), ("remedy", error.remedy)) if not value]
    else:
        faults = check_card(text, config, metrics)
        assert ModelCard(text).data.library_name == "tchub"
    assert faults == []


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)


@given(texts, texts, st.lists(texts, max_size=3))
def test_no_text_breaks_the_head_or_the_agreement(command, name, limits):
    config = BARE | {"lineage": {"limits": limits}, "training": {"command": command, "corpus": {"name": name}}}
    text = render_card(config, METRICS)
    assert check_card(text, config, METRICS) == []
    assert ModelCard(text).data.library_name == "tchub"


# The files behind it


@pytest.mark.parametrize(
    ("config", "metrics", "field"),
    [
        ({"name": "a\ud800"}, {}, "name"),
        ({"training": {"seed": "3"}}, {}, "training.seed"),
        ({"training": {"sources": ["v100"]}}, {}, "training.sources[0]"),
        ({"lineage": {"data": "measured"}}, {}, "lineage.data"),
        ({}, {"format": 2}, "format"),
        ({}, {"results": {"model": {"top1": "high"}}}, "results[...].top1"),
        ({}, {"few_shot": {"a few": {"top1": 1}}}, "metrics.json"),
        ({}, {"curves": {"top_k": [{"k": 0, "model": 1}]}}, "curves.top_k[0].k"),
        ({}, {"curves": {"scatter": {"predicted": [1], "measured": []}}}, "curves.scatter"),
        ({}, {"tuning": [{"network": "a", "seconds": [1], "ms": []}]}, "tuning[0]"),
        ({}, {"devices": [{"corpus": "a", "device": "b", "gate": "half"}]}, "devices[0].gate"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(config, metrics, field):
    with pytest.raises(CardError) as caught:
        CardData.from_files(BARE | config, metrics)
    assert caught.value.fields["field"] == field
    assert field in caught.value.message
    assert caught.value.remedy


def test_a_measurement_that_no_corpus_holds_cannot_be_claimed():
    config = changed(T4_CONFIG, lineage={"measured_on": ["v100"]}, training={"corpus": corpus("v100", "v100", 9)})
    with pytest.raises(CardError, match="no device of the family t4"):
        CardData.from_files(config, {})


def test_a_whole_card_lacks_nothing_and_each_absence_is_named():
    assert missing(CardData.from_files(CONFIG, METRICS)) == ()
    lacking = without(METRICS, ("results", "model", "top5"), ("split",))
    config = without(CONFIG, ("lineage", "weights_licence"), ("training", "corpus", "licence"))
    assert missing(CardData.from_files(config, lacking)) == (
        "config.json: lineage.weights_licence",
        "metrics.json: split",
        "metrics.json: results.model.top5",
        "config.json: training.corpus.licence",
    )


FILES = ("top-k.svg", "scatter.svg", "calibration.svg", "transfer.svg", "tuning.svg")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plots")
    assert draw(METRICS, folder) == FILES
    return folder


@pytest.mark.parametrize("file", FILES)
def test_a_plot_is_small_valid_xml_with_words_and_text_that_stays_text(drawn, file):
    text = (drawn / file).read_text()
    root = XML.fromstring(text)
    plot = next(plot for plot in plots_of(METRICS) if plot.file == file)
    assert (root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")) == (plot.title, plot.description)
    assert len(text) < 15_000
    assert list(root.iter(f"{SVG}text"))


def test_equal_figures_give_equal_bytes_in_another_process(drawn, tmp_path):
    program = "import json, sys; from pathlib import Path; from tchub.cards import draw; "
    program += "draw(json.load(sys.stdin), Path(sys.argv[1])); assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "SOURCE_DATE_EPOCH": "0"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, input=json.dumps(METRICS), text=True, check=True, env=environment)
    for file in FILES:
        assert (tmp_path / file).read_bytes() == (drawn / file).read_bytes()


def test_a_plot_of_other_figures_and_one_that_was_edited_are_stale(drawn, tmp_path):
    plot = plots_of(METRICS)[0]
    path = tmp_path / plot.file
    assert not plot.is_current(path)
    text = (drawn / plot.file).read_text()
    path.write_text(text)
    assert plot.is_current(path)
    path.write_text(text.replace("this checkpoint", "that checkpoint"))
    assert not plot.is_current(path)
    path.write_text(text)
    changed = METRICS | {"curves": METRICS["curves"] | {"top_k": [{"k": 1, "model": 0.99}]}}
    assert not plots_of(changed)[0].is_current(path)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(subsets(METRICS))
def test_any_part_of_the_metrics_can_be_drawn_or_is_a_named_fault(tmp_path, metrics):
    try:
        files = draw(metrics, tmp_path)
    except CardError:
        return
    for file in files:
        XML.parse(tmp_path / file)

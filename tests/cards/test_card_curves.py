"""What a card tells beyond single scores: top-k, calibration, failures, other corpora, tuning, cost, citation."""

from __future__ import annotations

from typing import Any

import pytest
from card_kit import CONFIG, METRICS, spoiled, subsets, without
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from hypothesis import given, settings
from tchub.cards import CardData, CardError, check_card, missing, render_card
from tchub.cards.licences import HUB_LICENCES, hub_licence
from tchub.cards.papers import papers_of
from tchub.cards.plots import plots_of
from tchub.zoo.models import list_architectures, list_committees, list_knowledge_bases

TEXT = render_card(CONFIG, METRICS)


def under(title: str, text: str = TEXT) -> str:
    """What stands under a heading of any level, up to the next of it or above."""
    level = "#" * (3 if f"\n### {title}\n" in text else 2)
    rest = text.split(f"\n{level} {title}\n")[1]
    return rest.split("\n## ", maxsplit=1)[0].split(f"\n{level} ", maxsplit=1)[0]


def card_or_fault(config: dict[str, Any], metrics: dict[str, Any]) -> str | None:
    """The card; None where a field was refused by its name."""
    try:
        return render_card(config, metrics)
    except CardError as error:
        return None if error.fields["field"] and error.remedy else error.message


def test_every_plot_is_linked_with_words_for_those_who_do_not_see_it():
    for plot in plots_of(METRICS):
        assert f"![{plot.words}](plots/{plot.file})" in TEXT
        assert len(plot.words) > 20


def test_the_folder_of_the_plots_is_the_callers():
    text = render_card(CONFIG, METRICS, plots="plots/tilenet-epyc")
    assert "](plots/tilenet-epyc/top-k.svg)" in text
    assert "](plots/top-k.svg)" not in text
    assert check_card(text, CONFIG, METRICS, plots="plots/tilenet-epyc") == []


def test_top_k_stands_beside_random_choice():
    table = under("The best of the first k")
    assert "| k | 1 | 2 | 3 | 5 | 10 | 20 |" in table
    assert "| this checkpoint | 0.905 | 0.910 | 0.915 | 0.925 | 0.950 | 1.000 |" in table
    assert "| random choice | 0.133 |" in table


def test_calibration_says_what_it_means_and_how_far_it_rises():
    text = " ".join(under("Calibration").split())
    assert "A score is no probability" in text
    assert (
        "0.100 ± 0.050 in the lowest tenth and 0.550 ± 0.050 in the highest, where a perfect ranking has 0.650" in text
    )
    assert "it rises in 9 of 9 steps" in text


def test_the_worst_tasks_are_told_in_words_and_operators_by_their_mean():
    text = under("Where it fails")
    assert (
        "| convolution of 1x64x56x56, 64 filters of 3x3, stride 1x1 | conv2d | epyc-turin | 64 | 0.330 | 0.410 |"
        in text
    )
    assert "| softmax | 1 | 40 | 0.700 | 0.900 |" in text
    assert "judged were conv2d (11 tasks), softmax (1 task);" in under("Intended use")


def test_other_corpora_say_which_devices_were_not_learnt_and_which_tasks_were():
    text = under("On other corpora")
    assert "| xeon-4210 | test | 0.200 | 0.950 | 0.600 | 0.200 | 0.960 | xeon-4210 * | 6 of 8 | 600 |" in text
    assert "| ryzen-3700x | 6 | 600 |" in text
    assert "Where it lost: on xeon-4210 to random choice, top-1 0.300 against 0.200" in text
    assert (
        "Known tasks: 1 of the 6 of graviton1, which compute the same as a task that was learnt on another device."
        in text
    )
    assert "Of each task 64 programs at most" in text


def test_curves_of_other_programs_than_the_scores_say_so():
    assert "the corpus was read again" not in TEXT
    text = render_card(CONFIG, METRICS | {"programs": 900})
    assert "Made of the 940 programs of 12 test tasks; the corpus was read again for it" in under("How it ranks", text)


def test_tuning_is_told_beside_the_rival():
    text = under("Tuning with it")
    assert "| bert-tiny | epyc-turin | 16 | 9.5 | 2.1 | tuned with this checkpoint |" in text
    assert "| bert-tiny | epyc-turin | 16 | 80.0 | 5.3 | stock MetaSchedule |" in text
    assert "| vit-tiny | - | - | 7.0 | 4 | tuned with this checkpoint |" in text


def test_each_table_names_the_command_that_made_it():
    known = {"command": "make scores", "measured_by": "make curves"}
    tuning = [row | {"command": "make tuning"} for row in METRICS["tuning"]]
    text = render_card(CONFIG, METRICS | known | {"tuning": tuning})
    for title, command in {
        "Scores": "make scores", "How it ranks": "make curves", "On other corpora": "make curves",
        "Tuning with it": "make tuning",
    }.items():  # fmt: skip
        assert f"\nMade by: `{command}`\n" in text.split(f"\n## {title}\n")[1].split("\n## ")[0], title
    assert f"`tchub check {CONFIG['name']} --corpus DIR`" in under("Scores", text)


def test_one_training_has_no_spread():
    scores = {"top1": {"mean": 0.9, "stdev": 0.01}}
    assert "± 0.010" in under("Scores", render_card(CONFIG, METRICS | {"seeds": {"count": 2} | scores}))
    assert "±" not in under("Scores", render_card(CONFIG, METRICS | {"seeds": {"count": 1} | scores}))


def test_without_curves_there_is_no_section_of_them():
    text = render_card(CONFIG, without(METRICS, ("curves",), ("tuning",), ("transfer",)))
    for gone in ("How it ranks", "Calibration", "Tuning with it", "On other corpora", ".svg"):
        assert gone not in text


def test_time_machine_and_energy_are_told_only_where_they_were_measured():
    assert "- Machine: AMD EPYC 9B45, one core" in under("Training")
    assert "- Energy: 4.2 kJ" in under("Training")
    bare = render_card(without(CONFIG, ("training", "machine"), ("training", "kilojoules")), METRICS)
    assert "- Machine: not recorded\n- Energy: not measured" in under("Training", bare)


@pytest.mark.parametrize("arch", [*list_architectures(), *list_knowledge_bases(), *list_committees()])
def test_papers_are_cited_as_bibtex_beside_the_checkpoint_itself(arch):
    text = under("Citation", render_card(CONFIG | {"arch": arch}, METRICS))
    block = text.split("```bibtex\n")[1].split("```")[0]
    assert block.count("@") == len(papers_of(arch)) + 1
    assert block.count("{") == block.count("}")
    assert "@misc{tilenet-epyc,\n  title = {tchub: tilenet-epyc}," in block


@pytest.mark.parametrize(
    ("metrics", "key"),
    [
        ({"curves": []}, "curves"),
        ({"curves": {"top_k": [{"k": 0, "model": 1}]}}, "k"),
        ({"curves": {"top_k": [{"k": 1}]}}, "model"),
        ({"curves": {"scatter": {"predicted": [1], "measured": []}}}, "measured"),
        ({"curves": {"scatter": {"predicted": ["a"], "measured": [1]}}}, "predicted"),
        ({"curves": {"calibration": [{"least": 0}]}}, "most"),
        ({"curves": {"failures": {"tasks": [{"words": 3}]}}}, "words"),
        ({"tuning": [{"seconds": [1]}]}, "tuning"),
        ({"tuning": [{"network": "a", "seconds": [1], "ms": []}]}, "ms"),
        ({"tuning": [{"network": "a"}]}, "seconds"),
        ({"transfer": [{"corpus": "a", "device_learnt": "no"}]}, "device_learnt"),
    ],
)
def test_a_curve_of_a_wrong_form_is_named(metrics, key):
    with pytest.raises(CardError) as caught:
        render_card(CONFIG, metrics)
    assert caught.value.fields["field"] == key


@settings(max_examples=150, deadline=None)
@given(subsets(CONFIG), subsets(METRICS))
def test_any_part_of_the_files_gives_a_card_that_the_hub_reads_or_a_named_fault(config, metrics):
    text = card_or_fault(config, metrics)
    if text is None:
        return
    assert ModelCard(text).data.library_name == "tchub"
    assert check_card(text, config, metrics) == []
    assert " None" not in text


@settings(max_examples=200, deadline=None)
@given(spoiled(CONFIG), spoiled(METRICS))
def test_no_value_of_a_field_ends_in_another_error_than_a_card_error(config, metrics):
    text = card_or_fault(config, metrics)
    assert text is None or ModelCard(text).data.library_name == "tchub"


def test_the_model_index_has_the_scores_of_every_split_and_makes_the_round_trip():
    data = ModelCard(TEXT).data
    told = {(r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results or []}
    assert told["test", "top1"] == 0.9
    assert told["validation", "pairwise"] == 0.87
    assert len(told) == 6
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
    assert fields[0] is None or fields[0] in HUB_LICENCES
    config = CONFIG | {"lineage": CONFIG["lineage"] | {"weights_licence": spdx}}
    told = ModelCard(render_card(config, METRICS)).data.to_dict()
    assert (told.get("license"), told.get("license_name")) == fields


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

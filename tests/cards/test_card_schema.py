"""Decoding of config.json and metrics.json: a field of a wrong type is named by its path, and absences are listed."""

import pytest
from card_kit import CONFIG, METRICS, T4_CONFIG, changed, corpus, without
from tchub.cards import CardData, CardError, missing

BARE = {key: CONFIG[key] for key in ("name", "version", "arch", "family", "feature_schema")}


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

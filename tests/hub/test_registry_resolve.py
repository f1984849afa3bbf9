"""Resolution: a name or a device leads to one checkpoint, and every other one gets a reason."""

from __future__ import annotations

import pytest
from tchub.hub.registry import resolve
from tchub.hub.registry.errors import (
    CheckpointNameError,
    IncompatibleCheckpointError,
    NoFittingCheckpointError,
    UnknownCheckpointError,
    UnknownVersionError,
)
from tchub.zoo.devices import get_device
from toy_checkpoints import publish


@pytest.fixture
def entries(tmp_path):
    return [
        publish(tmp_path, "tcl-epyc", "1.0.0"),
        publish(tmp_path, "tcl-epyc", "1.1.0"),
        publish(tmp_path, "tcl-epyc", "2.0.0", format=99),
        publish(tmp_path, "tcl-epyc", "1.2.0-rc.1"),
        publish(tmp_path, "tcl-graviton", "1.0.0"),
        publish(tmp_path, "tcl-a100", "1.0.0", feature_schema="tcl-gpu"),
    ]


def test_a_name_means_the_newest_version_that_can_be_loaded(entries):
    assert resolve(entries, "tcl-epyc").entry.version == "1.1.0"


def test_a_version_is_taken_exactly(entries):
    assert resolve(entries, "tcl-epyc@1.0.0").entry.version == "1.0.0"
    assert resolve(entries, "tcl-epyc@1.2.0-rc.1").entry.version == "1.2.0-rc.1"


def test_a_version_that_cannot_be_loaded_is_refused_by_name(entries):
    with pytest.raises(IncompatibleCheckpointError, match="format 99 is newer"):
        resolve(entries, "tcl-epyc@2.0.0")


def test_an_unknown_feature_schema_is_refused(tmp_path):
    entry = publish(tmp_path, "tcl-epyc", feature_schema="from-the-future")
    with pytest.raises(IncompatibleCheckpointError, match="from-the-future"):
        resolve([entry], "tcl-epyc")


def test_another_version_of_the_feature_schema_is_refused(tmp_path):
    entry = publish(tmp_path, "tcl-epyc", feature_version=77)
    with pytest.raises(IncompatibleCheckpointError, match="version 77"):
        resolve([entry], "tcl-epyc")


def test_an_unknown_version_lists_the_known_ones_newest_first(entries):
    with pytest.raises(UnknownVersionError) as caught:
        resolve(entries, "tcl-epyc@7.0.0")
    assert caught.value.fields["known"] == ["2.0.0", "1.2.0-rc.1", "1.1.0", "1.0.0"]


def test_an_unknown_name_gets_the_nearest_and_what_fits_this_device(entries):
    with pytest.raises(UnknownCheckpointError) as caught:
        resolve(entries, "tcl-epic", get_device("epyc"))
    error = caught.value
    assert error.fields["nearest"][0] == "tcl-epyc"
    assert "tcl-epyc@1.1.0 fits" in error.message
    assert "tcl-a100@1.0.0 does not: " in error.message
    assert error.remedy == "try tcl-epyc; `tchub list` shows all"
    assert {verdict["id"] for verdict in error.fields["verdicts"]} == {
        "tcl-epyc@1.1.0", "tcl-graviton@1.0.0", "tcl-a100@1.0.0"
    }  # fmt: skip


def test_a_name_that_is_like_no_other_is_answered_with_what_fits(entries):
    with pytest.raises(UnknownCheckpointError) as caught:
        resolve(entries, "zzz-qqq", get_device("graviton"))
    assert caught.value.fields["nearest"] == []
    assert "tcl-graviton" in caught.value.remedy


def test_without_a_name_the_nearest_device_wins_and_each_other_has_a_reason(entries):
    found = resolve(entries, device=get_device("epyc"))
    assert found.entry.id == "tcl-epyc@1.1.0"
    verdicts = {verdict.id: verdict for verdict in found.verdicts}
    assert verdicts["tcl-epyc@1.1.0"].accepted
    assert "instruction set" in verdicts["tcl-graviton@1.0.0"].reason
    assert not verdicts["tcl-a100@1.0.0"].accepted
    assert found.verdicts[0].id == found.entry.id


def test_at_equal_distance_the_better_score_wins(tmp_path):
    entries = [
        publish(tmp_path, "tcl-epyc", entry={"metrics": {"top1": 0.8}}),
        publish(tmp_path, "tlp-epyc", entry={"metrics": {"top1": 0.9}}),
    ]
    assert resolve(entries, device=get_device("epyc")).entry.name == "tlp-epyc"


def test_a_deprecated_checkpoint_is_not_chosen_but_can_be_named(tmp_path):
    old = publish(tmp_path, "tcl-epyc", entry={"deprecated": "trained on a leaky split"})
    with pytest.raises(NoFittingCheckpointError, match="leaky split"):
        resolve([old], device=get_device("epyc"))
    assert resolve([old], "tcl-epyc").entry is old


def test_local_checkpoints_are_found_by_name_and_never_chosen_for_a_device(tmp_path):
    local = publish(tmp_path, "tcl-epyc+local", entry={"data": {"device": "epyc"}})
    assert resolve([local], "tcl-epyc+local").entry is local
    with pytest.raises(NoFittingCheckpointError):
        resolve([local], device=get_device("epyc"))


def test_when_nothing_fits_the_whole_trace_is_in_the_error(entries):
    gpu_only = [entry for entry in entries if entry.family == "a100"]
    with pytest.raises(NoFittingCheckpointError) as caught:
        resolve(gpu_only, device=get_device("epyc"))
    assert [verdict["id"] for verdict in caught.value.fields["verdicts"]] == ["tcl-a100@1.0.0"]


def test_neither_name_nor_device_is_an_error():
    with pytest.raises(CheckpointNameError):
        resolve([])

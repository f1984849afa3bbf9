"""Resolution: a name or a device leads to one checkpoint, and every other one gets a reason; names and versions."""

import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tchub.hub.registry import CheckpointName, Entry, Index, Version, resolve
from tchub.hub.registry.errors import CheckpointNameError, UnknownCheckpointError
from tchub.zoo.devices import get_device, list_devices
from tchub.zoo.errors import TchubError
from toy_checkpoints import publish


def scored(tmp_path, name: str, top1: float) -> Entry:
    """A GPU checkpoint and its top-1 on its own device."""
    return publish(tmp_path, name, feature_schema="tcl-gpu", entry={"metrics": {"top1": top1}})


@pytest.fixture
def entries(tmp_path):
    return [
        publish(tmp_path, "tcl-epyc", "1.0.0"),
        publish(tmp_path, "tcl-epyc", "1.1.0"),
        publish(tmp_path, "tcl-epyc", "2.0.0", format=99),
        publish(tmp_path, "tcl-graviton", "1.0.0"),
        publish(tmp_path, "tcl-a100", "1.0.0", feature_schema="tcl-gpu"),
    ]


def test_a_name_means_the_newest_version_that_can_be_loaded_and_an_unknown_one_lists_them(entries):
    assert resolve(entries, "tcl-epyc").entry.version == "1.1.0"
    with pytest.raises(UnknownCheckpointError) as caught:
        resolve(entries, "tcl-epyc@7.0.0")
    assert caught.value.fields["known"] == ["2.0.0", "1.1.0", "1.0.0"]


def test_a_local_checkpoint_that_is_not_here_is_told_to_be_made(entries):
    with pytest.raises(UnknownCheckpointError, match="nobody adapted it on this machine") as caught:
        resolve(entries, "tcl-epyc+local")
    assert caught.value.remedy == "run: tchub adapt tcl-epyc; or use tcl-epyc"
    with pytest.raises(UnknownCheckpointError) as caught:
        resolve(entries, "tcl-epic+local")
    assert "tcl-epyc" in caught.value.remedy, "of a base that is mistyped the base is what matters"


def test_without_a_name_the_nearest_device_wins_and_each_other_has_a_reason(entries):
    chosen = resolve(entries, device=get_device("epyc"))
    assert chosen.entry.id == chosen.verdicts[0].id == "tcl-epyc@1.1.0"
    verdicts = {verdict.id: verdict for verdict in chosen.verdicts}
    assert "instruction set" in verdicts["tcl-graviton@1.0.0"].reason
    assert not verdicts["tcl-a100@1.0.0"].accepted


def test_a_deprecated_checkpoint_is_not_chosen_but_can_be_named_and_warns(tmp_path):
    old = publish(tmp_path, "tcl-epyc", entry={"deprecated": "trained on a leaky split"})
    with pytest.raises(UnknownCheckpointError, match="leaky split"):
        resolve([old], device=get_device("epyc"))
    named = resolve([old], "tcl-epyc")
    assert named.entry is old
    assert named.warnings == ("tcl-epyc@1.0.0 is deprecated: trained on a leaky split",)


def test_a_name_passes_over_a_deprecated_version_and_says_so(tmp_path):
    good = publish(tmp_path, "tcl-epyc", "1.0.0")
    bad = publish(tmp_path, "tcl-epyc", "1.1.0", entry={"deprecated": "a leak"})
    chosen = resolve([bad, good], "tcl-epyc")
    assert (chosen.entry, chosen.warnings) == (good, ())
    assert [verdict.passed_over for verdict in chosen.verdicts] == ["", "deprecated: a leak"]


@pytest.mark.parametrize("name", ["K80", "tesla k80"])
def test_a_family_in_place_of_a_name_means_its_best_checkpoint(tmp_path, name):
    scores = {"tcl-k80": 0.7, "tlp-k80": 0.8, "tcl-k80+local": 0.9, "tcl-a100": 0.9}
    entries = [scored(tmp_path, each, top1) for each, top1 in scores.items()]
    assert [verdict.id for verdict in resolve(entries, name).verdicts] == ["tlp-k80@1.0.0", "tcl-k80@1.0.0"]


@pytest.mark.parametrize(("typed", "meant"), [("TCL-epyc", "tcl-epyc"), ("epycc", "epyc"), ("telsa k80", "tesla-k80")])
def test_a_slip_of_the_pen_is_answered_with_what_was_meant(entries, typed, meant):
    with pytest.raises(CheckpointNameError, match=f"nearest: .*{meant}") as caught:
        resolve(entries, typed)
    assert caught.value.remedy.startswith(f"try {meant}; ")


def test_a_checkpoint_for_another_tvm_is_passed_over_and_refused_by_name(tmp_path, monkeypatch):
    entries = [
        publish(tmp_path, "tcl-epyc", "1.0.0", entry={"tvm_range": ">=0.27,<0.28"}),
        publish(tmp_path, "tcl-epyc", "1.1.0", entry={"tvm_range": ">=0.28"}),
    ]
    monkeypatch.setattr(sys.modules["tchub.hub.registry.resolve"], "installed_tvm", lambda: "0.27.0.post1")
    chosen = resolve(entries, "tcl-epyc")
    assert chosen.entry.version == "1.0.0"
    assert chosen.verdicts[1].reason == "it scores candidates of TVM >=0.28, and TVM 0.27.0.post1 is installed"
    with pytest.raises(UnknownCheckpointError) as caught:
        resolve(entries, "tcl-epyc@1.1.0")
    assert caught.value.remedy == "pip install 'apache-tvm>=0.28', or choose another version of the checkpoint"


def chosen_for(device: str, *entries) -> dict[str, str]:
    """Who was chosen for a device, and why each other one was not."""
    verdicts = resolve(entries, device=get_device(device)).verdicts
    return {verdict.id.partition("@")[0]: verdict.passed_over for verdict in verdicts}


def measured(tmp_path, name: str, **devices: float):
    """A GPU checkpoint and its top-1 on other devices; its own held-out networks are all the same."""
    transfer = {device: {"top1": top1, "pairwise": top1, "tasks": 5} for device, top1 in devices.items()}
    return publish(tmp_path, name, feature_schema="tcl-gpu", entry={"transfer": transfer})


def test_what_ranks_no_better_than_a_coin_there_comes_last(tmp_path):
    coin, silent = measured(tmp_path, "tcl-rtx2080ti", rtx3090=0.49), measured(tmp_path, "tcl-k80")
    why = chosen_for("rtx3090", coin, silent)
    assert list(why) == ["tcl-k80", "tcl-rtx2080ti"]
    assert why["tcl-rtx2080ti"].startswith("no better than chance: measured on this device (rtx3090): top-1 0.49")


def test_of_scores_that_so_few_tasks_cannot_tell_apart_the_one_of_more_corpora_wins(tmp_path):
    def learnt_from(corpora, name, top1):
        entry = measured(tmp_path, name)
        lineage = entry.lineage | {"sources": dict.fromkeys(corpora)}
        return replace(entry, transfer={"rtx3090": {"top1": top1, "pairwise": 0.7, "tasks": 25}}, lineage=lineage)

    best, near = learnt_from("a", "aaa-k80", 0.7), learnt_from("ab", "tcl-k80", 0.55)
    chosen = chosen_for("rtx3090", best, near, learnt_from("abc", "zzz-k80", 0.45))
    assert list(chosen) == ["tcl-k80", "aaa-k80", "zzz-k80"]
    assert chosen["aaa-k80"].endswith("of 25 tasks, as good by so few tasks, and learnt from more corpora")


def test_without_a_measurement_the_spec_sheets_decide_and_then_the_own_score(tmp_path):
    why = chosen_for("rtx3090", measured(tmp_path, "tcl-rtx2080ti"), measured(tmp_path, "tcl-k80"))
    assert why["tcl-rtx2080ti"] == ""
    assert re.search(r"spec sheets [\d.]+x apart; tcl-rtx2080ti@1\.0\.0: .*spec sheets [\d.]+x apart", why["tcl-k80"])
    entries = [scored(tmp_path, name, top1) for name, top1 in (("zzz-k80", 0.7), ("tcl-k80", 0.7), ("tlp-k80", 0.6))]
    assert list(chosen_for("rtx3090", *entries)) == ["tcl-k80", "zzz-k80", "tlp-k80"]


SHIPPED = Index.shipped().entries


@given(data=st.data(), device=st.sampled_from([d.name for d in list_devices()]))
def test_the_choice_does_not_depend_on_the_order_of_the_index(data, device):
    some = data.draw(st.lists(st.sampled_from(SHIPPED), min_size=1, max_size=8, unique_by=lambda entry: entry.id))
    scores = st.fixed_dictionaries({"top1": st.sampled_from([0.3, 0.6]), "pairwise": st.sampled_from([0.4, 0.6])})
    listed = [replace(entry, transfer=data.draw(st.dictionaries(st.just(device), scores))) for entry in some]

    def verdicts(entries):
        try:
            return resolve(entries, device=get_device(device)).verdicts
        except UnknownCheckpointError as error:
            return error.fields["verdicts"]

    assert verdicts(listed) == verdicts(data.draw(st.permutations(listed)))


def test_local_checkpoints_are_found_by_name_and_never_chosen_for_a_device(tmp_path):
    local = publish(tmp_path, "tcl-epyc+local", entry={"data": {"device": "epyc"}})
    assert resolve([local], "tcl-epyc+local").entry is local
    with pytest.raises(UnknownCheckpointError):
        resolve([local], device=get_device("epyc"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("tcl-epyc", ("tcl", "epyc", None, None)),
        ("tcl-epyc+local@1.0.1", ("tcl", "epyc", "local", Version(1, 0, 1))),
        ("tenset_mlp-rtx-3080@2.0.0", ("tenset_mlp", "rtx-3080", None, Version(2, 0, 0))),
    ],
)
def test_names_have_an_architecture_a_family_and_maybe_more(text, parts):
    parsed = CheckpointName.parse(text)
    assert (parsed.arch, parsed.family, parsed.variant, parsed.version) == parts
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text",
    ["", "tcl", "tcl-", "-epyc", "TCL-epyc", "tcl-epyc@", "tcl-epyc@1", "tcl-epyc@main", "tcl-../../etc",
     "tcl-e/f", "tcl-epyc+", "tcl-epyc@1.0.0@1.0.0", "tcl-epyc\n",
     "tcl-" + "x" * 200, "tcl-..", "tcl-a..b", "tcl-épyc",
     *(f"tcl-epyc@{version}" for version in ("1.0", "v1.0.0", "01.0.0", "1.0.0+b", "1.0.0-rc.1", "1.0.x", "١.0.0"))],
)  # fmt: skip
def test_anything_else_is_refused_with_a_remedy(text):
    with pytest.raises(CheckpointNameError) as caught:
        CheckpointName.parse(text)
    assert caught.value.remedy


@given(st.text(max_size=40))
def test_no_text_makes_the_parser_fail_otherwise_or_yields_a_path(text):
    try:
        name = CheckpointName.parse(text).name
    except TchubError:
        return
    assert "/" not in name
    assert "\\" not in name
    assert ".." not in name


def test_versions_are_ordered_by_their_numbers():
    texts = ["0.9.0", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"]
    assert [str(version) for version in sorted({Version.parse(text) for text in texts})] == texts

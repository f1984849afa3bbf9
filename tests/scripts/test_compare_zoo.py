"""What a new version of the zoo gained: the table, and how a version is told apart."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.zoo.compare import scores, table
from scripts.zoo.plan import bases, jobs, read_plan

PLAN = read_plan()


def metrics(own: float, *elsewhere: tuple[bool, float]) -> dict[str, Any]:
    """Of one checkpoint: its own pairwise accuracy, and (device learnt, pairwise accuracy) of other corpora."""
    return {
        "seeds": {"pairwise": {"mean": own}, "top1": {"mean": own / 2}},
        "transfer": [{"device_learnt": learnt, "metrics": {"pairwise": value}} for learnt, value in elsewhere],
    }


def test_devices_that_were_learnt_are_told_from_those_that_were_not() -> None:
    found = scores(metrics(0.8, (True, 0.7), (False, 0.5), (False, 0.6)))
    assert (found["validation"], found["own"], found["own top-1"]) == (None, 0.8, 0.4)
    assert found["learnt devices"] == pytest.approx(0.7)
    assert found["elsewhere"] == pytest.approx(0.55)


def test_a_knowledge_base_is_judged_by_the_mean_of_its_devices() -> None:
    """One whose test tasks were all taught by another device has no score."""
    devices = [{"now": {"pairwise": 0.9, "top1": 0.5}}, {"now": {"pairwise": 0.7, "top1": 0.3}}, {"now": None}]
    found = scores({"devices": devices})
    assert (found["own"], found["own top-1"]) == (pytest.approx(0.8), pytest.approx(0.4))


def test_the_means_are_over_checkpoints_that_have_both_figures() -> None:
    lines = table({
        "gains": (scores(metrics(0.8, (False, 0.5))), scores(metrics(0.9, (False, 0.7)))),
        "knows all": (scores(metrics(0.6)), scores(metrics(0.5))),
    })  # fmt: skip
    assert [line.split()[0] for line in lines] == ["validation", "gains", "knows", "mean"]
    assert "0.800 -> 0.900 (+0.100)" in lines[1]
    for mean in ("0.700 -> 0.700 (+0.000)", "0.500 -> 0.700 (+0.200)"):
        assert mean in lines[-1]


def test_a_version_is_of_an_architecture_and_each_is_trained_in_a_folder_of_its_own() -> None:
    """A new recipe of one architecture leaves the others' checkpoints what they are."""
    versions = {job.arch: job.version for job in jobs(PLAN)}
    assert {arch for arch, version in versions.items() if version != "1.0.0"} == {"tilenet", "atformer"}
    assert {(base.settings["arch"], base.version) for base in bases(PLAN)} == {("tilenet", "1.1.0"), ("tcl", "1.0.0")}
    (job,) = jobs(PLAN, families=("k80",), archs=("tilenet",))
    assert job.folder(2).parts[-3:] == ("tilenet-k80", "1.1.0", "2")

"""Who teaches whom, how much, and in which order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from continual_kit import device_data, new_model
from tchub.zoo.adapt.continual import (
    SourceRules,
    choose_sources,
    rank_agreement,
)
from tchub.zoo.devices import get_device

SOURCES = {name: get_device(name) for name in ("v100", "t4", "mi50", "epyc")}


def names(target: str, **more) -> list[tuple[str, bool]]:
    return [(s.name, s.weight > 0) for s in choose_sources(get_device(target), SOURCES, **more)]


def test_the_most_alike_source_is_learnt_last_and_a_cpu_teaches_no_gpu() -> None:
    assert names("k80")[0] == ("epyc", False)
    assert dict(names("k80")) == {"epyc": False, "mi50": True, "t4": True, "v100": True}


@pytest.mark.parametrize(
    ("target", "least_alike", "most_alike"),
    [
        ("v100", "mi50", "a100"),  # another vendor's, nearer in numbers
        ("epyc-7452", "xeon", "epyc-turin"),  # the same family
        ("graviton2", "xeon", "cortex-a72"),  # the same instruction set
        ("epyc-7452", "graviton2", "xeon"),
    ],
)
def test_family_instruction_set_and_vendor_decide_before_the_numbers(target: str, least_alike: str, most_alike: str):
    sources = {name: get_device(name) for name in (most_alike, least_alike)}
    assert [s.name for s in choose_sources(get_device(target), sources)] == [least_alike, most_alike]


def test_within_a_rank_the_numbers_decide_and_only_another_kind_of_device_is_left_out():
    v100, a100 = get_device("v100"), get_device("a100")
    unknown = replace(v100, name="unknown", spec=v100.spec.with_values(dict.fromkeys(v100.spec.names()), "unknown:"))
    sources = {"a100": a100, "epyc": SOURCES["epyc"], "k80": get_device("k80"), "unknown": unknown}
    found = choose_sources(get_device("t4"), sources)
    assert [(s.name, s.weight > 0) for s in found] == [
        ("epyc", False), ("unknown", True), ("a100", True), ("k80", True),
    ]  # fmt: skip


def test_what_was_measured_to_agree_is_learnt_after_what_was_not():
    assert names("k80", agreement={"mi50": 0.3, "v100": float("nan")}) == [
        ("epyc", False), ("v100", True), ("t4", True), ("mi50", True),
    ]  # fmt: skip


def test_a_measured_agreement_decides_before_the_spec_sheet() -> None:
    agreement = {"v100": 0.6, "t4": 0.2, "mi50": 0.5}
    assert names("k80", agreement=agreement) == [("epyc", False), ("t4", False), ("mi50", True), ("v100", True)]
    found = {s.name: s.weight for s in choose_sources(get_device("k80"), SOURCES, agreement)}
    assert found["v100"] == 1
    assert found["mi50"] == pytest.approx(0.5 / 0.6)


def test_a_source_that_misleads_is_left_out() -> None:
    assert dict(names("k80", agreement={"v100": -0.4, "t4": 0.01, "mi50": float("nan")})) == {
        "epyc": False, "t4": False, "v100": False, "mi50": True,
    }  # fmt: skip
    assert dict(names("k80", agreement={"t4": 0.2, "v100": 0.6}, rules=SourceRules(least_share=0.1)))["t4"] is True


def test_agreement_is_one_for_the_right_order_and_minus_one_for_the_reverse() -> None:
    data = device_data(0, tasks=2)
    model = new_model()
    order = model.score(data.features)
    right = replace(data, latency=np.exp(-order * 50))
    assert rank_agreement(model, right) == 1
    assert rank_agreement(model, replace(data, latency=1 / right.latency)) == -1

"""Devices in the order to learn them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tchub.zoo.adapt.continual import learning_order
from tchub.zoo.devices import get_device

SOURCES = {name: get_device(name) for name in ("v100", "t4", "mi50", "epyc")}


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
    assert learning_order(get_device(target), sources) == [least_alike, most_alike]


def test_within_a_rank_the_numbers_decide_and_another_kind_of_device_comes_first():
    v100 = get_device("v100")
    unknown = replace(v100, name="unknown", spec=v100.spec.with_values(dict.fromkeys(v100.spec.names()), "unknown:"))
    sources = {"a100": get_device("a100"), "epyc": SOURCES["epyc"], "k80": get_device("k80"), "unknown": unknown}
    assert learning_order(get_device("t4"), sources) == ["epyc", "unknown", "a100", "k80"]

"""A budget is a share, a count or a time, and never nothing."""

from __future__ import annotations

import math

import pytest
from tchub.zoo.adapt.budget import parse_budget
from tchub.zoo.adapt.errors import AdaptError


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("10%", "share", 0.1),
        ("200", "programs", 200),
        (64, "programs", 64),
        ("15m", "seconds", 900),
        ("1h", "seconds", 3600),
        (" 1.5H ", "seconds", 5400),
        ("Auto", "auto", 0.5),
    ],
)
def test_the_forms(text, kind, value):
    budget = parse_budget(text)
    assert budget.kind == kind
    assert budget.value == pytest.approx(value)
    assert parse_budget(budget) is budget


@pytest.mark.parametrize(
    "text", ["0", "0%", "-5", "-1%", "0s", "100.1%", "2.5", "ten", "", "%", "5d", "1e3", "nan", True]
)
def test_nonsense_is_refused_with_a_remedy(text):
    with pytest.raises(AdaptError) as caught:
        parse_budget(text)
    assert caught.value.remedy


def test_programs_of_a_pool():
    assert parse_budget("10%").programs(1234) == 123
    assert parse_budget("1%").programs(10) == 1, "never nothing"
    assert parse_budget("200").programs(50) == 50, "never more than there is"
    assert parse_budget("15m").programs(50) is None
    assert parse_budget("15m").seconds == 900
    assert parse_budget("10%").seconds == math.inf
    assert parse_budget("auto").programs(200) == 100, "at most half of the pool"
    assert parse_budget("auto").seconds == math.inf


@pytest.mark.parametrize(
    ("text", "shown"), [("999999", "999999 (the whole pool: 128)"), ("128", "128"), ("10%", "10%"), ("15m", "15m")]
)
def test_a_budget_beyond_the_pool_shows_the_size_of_the_pool(text: str, shown: str):
    assert parse_budget(text).text_for(128) == shown

"""Figures of compiling for cards, from rows as the journal has them."""

from __future__ import annotations

import pytest

from scripts.benchmarks.gpu_compile import _row, summarise, target_of


def test_rates_count_what_compiles_and_the_share_is_of_all_programs() -> None:
    shares = [_row(2.0, [None, None, "build: a\nnvcc failed: x"]), _row(1.0, [None])]
    assert shares[0]["failures"] == {"nvcc failed: x": 1}
    outcomes = [
        *(("ours", 1.0, [None] * 8), ("ours", 1.0, [None] * 2)),
        *(("stock", 2.0, [None, "x"]), ("stock", 1.0, [None] * 2)),
    ]
    rates = [{"system": system} | _row(seconds, errors) for system, seconds, errors in outcomes]
    summary = summarise(shares, rates)
    assert (summary["programs"], summary["compiled_share"], summary["stock_compiled_share"]) == (4, 0.75, 0.75)
    assert (summary["ours_rate"], summary["stock_rate"], summary["rate_ratio"]) == pytest.approx((4.0, 1.0, 4.0))


def test_targets_differ_in_their_architecture_alone() -> None:
    assert target_of("sm_90") == target_of("sm_75") | {"arch": "sm_90"}

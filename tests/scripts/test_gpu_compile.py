"""Figures of compiling for cards, from rows as the journal has them."""

import pytest

from scripts.benchmarks.gpu_compile import _row, summarise


def test_rates_count_what_compiles_and_the_share_is_of_all_programs() -> None:
    kind = {"operator": "dense-square", "precision": "float16"}
    shares = [
        kind | _row(2.0, [None, None, "build: a\nnvcc failed: x"]) | {"arch": "sm_75", "keys": ["a", "b", "c"]},
        kind | _row(1.0, [None]) | {"arch": "sm_80", "keys": ["a"]},
    ]
    assert shares[0]["failures"] == {"nvcc failed: x": 1}
    outcomes = [
        *(("ours", 1.0, [None] * 8), ("ours", 1.0, [None] * 2)),
        *(("stock", 2.0, [None, "x"]), ("stock", 1.0, [None] * 2)),
    ]
    rates = [{"system": system} | _row(seconds, errors) for system, seconds, errors in outcomes]
    summary = summarise(shares, rates)
    assert (summary["candidates"], summary["programs"], summary["compiled_share"]) == (3, 4, 0.75)
    assert summary["stock_compiled_share"] == 0.75
    assert (summary["ours_rate"], summary["stock_rate"], summary["rate_ratio"]) == pytest.approx((4.0, 1.0, 4.0))

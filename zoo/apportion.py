"""Whole numbers in proportion to weights: shares of a budget that add up to it exactly."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def apportion(total: int, weights: Mapping[Key, float]) -> dict[Key, int]:
    """Split `total` in proportion to `weights` by the largest-remainder rule; the parts sum to `total`.

    Ties go to the larger weight, then to the smaller key, so that the answer does not depend on the mapping's order.

    Raises:
        ValueError: `total` is negative, or no weight is positive.
    """
    mass = sum(weights.values())
    if total < 0 or not mass > 0 or min(weights.values()) < 0:
        raise ValueError(f"cannot apportion {total} over weights {dict(weights)}")
    exact = {key: total * weight / mass for key, weight in weights.items()}
    shares = {key: int(value) for key, value in exact.items()}
    order = sorted(weights, key=lambda key: (shares[key] - exact[key], -weights[key], str(key)))
    for key in order[: total - sum(shares.values())]:
        shares[key] += 1
    return shares


def apportion_capped(total: int, weights: Mapping[Key, float], caps: Mapping[Key, int]) -> dict[Key, int]:
    """Split as `apportion`, with no key above its cap; what a full key cannot take goes to the others.

    The parts sum to `min(total, sum of caps)` over keys of positive weight.
    """
    shares = dict.fromkeys(weights, 0)
    left = total
    while left > 0:
        open_keys = {k: w for k, w in weights.items() if w > 0 and shares[k] < caps[k]}
        if not open_keys:
            break
        for key, units in apportion(left, open_keys).items():
            given = min(units, caps[key] - shares[key])
            shares[key] += given
            left -= given
    return shares

"""Whole numbers in proportion to weights: shares of a budget that add up to it exactly."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def apportion(total: int, weights: Mapping[Key, float], caps: Mapping[Key, int] | None = None) -> dict[Key, int]:
    """Split `total` in proportion to `weights` by the largest-remainder rule, with no key above its cap.

    What a full key cannot take goes to the others: the parts sum to `total`, or to the caps of the keys of positive
    weight. Ties go to the larger weight, then to the smaller key, so that the answer does not depend on the order.
    """
    caps = caps or dict.fromkeys(weights, total)
    shares = dict.fromkeys(weights, 0)
    while (left := total - sum(shares.values())) > 0:
        open_weights = {key: weight for key, weight in weights.items() if weight > 0 and shares[key] < caps[key]}
        if not open_weights:
            break
        mass = sum(open_weights.values())
        exact = {key: left * weight / mass for key, weight in open_weights.items()}
        units = {key: int(value) for key, value in exact.items()}
        order = sorted(open_weights, key=lambda key: (units[key] - exact[key], -weights[key], str(key)))
        for key in order[: left - sum(units.values())]:
            units[key] += 1
        for key, count in units.items():
            shares[key] += min(count, caps[key] - shares[key])
    return shares

"""Curves of a score by the effort it took, freed of the noise that lets a curve fall where more was spent."""

from __future__ import annotations

from collections.abc import Sequence


def monotone(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The nearest curve that never falls (least squares), at the same places.

    Where a noisy curve first has a score is early by chance; a curve that never falls has no such luck.

    Args:
        points: (effort, score), the least effort first.
    """
    from sklearn.isotonic import isotonic_regression

    if not points:
        return []
    fitted = isotonic_regression([score for _, score in points])
    return [(effort, float(score)) for (effort, _), score in zip(points, fitted, strict=True)]

"""Between the start and what was learnt: weights on the straight line from one to the other."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from ..models import CostModel

# Shares of the way that cross-validation chooses from; none at all is what the guard decides.
STRENGTHS = (0.25, 0.5, 0.75, 1.0)


def blend(start: CostModel, learnt: CostModel, strength: float) -> CostModel:
    """A model with weights start + strength * (learnt - start).

    Few labels point a model the right way more surely than they say how far: a part of the way often ranks unseen
    programs better than all of it, as an average of weights along the way does.

    Args:
        start, learnt: of one architecture and size, the second reached by small steps from the first.
        strength: 0 gives the start, 1 what was learnt.

    Returns:
        A new model; `learnt` itself where the strength is 1.

    Raises:
        ValueError: the models differ in their tensors.
    """
    if strength == 1:
        return learnt
    ours, theirs = start.state_dict(), learnt.state_dict()
    if {k: v.shape for k, v in ours.items()} != {k: v.shape for k, v in theirs.items()}:
        raise ValueError("only models of one architecture and size lie on one line")
    mixed = copy.deepcopy(learnt)
    mixed.load_state_dict(
        {k: v.lerp(theirs[k], strength) if v.is_floating_point() else theirs[k] for k, v in ours.items()}
    )
    return mixed.eval()


def best_strength(accuracy: Sequence[tuple[float, float]]) -> float:
    """Of (strength, cross-validated accuracy), the strength of the highest accuracy; of equal ones the smallest."""
    return max(accuracy, key=lambda pair: (pair[1], -pair[0]))[0]

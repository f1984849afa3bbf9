"""tchub's own way to use sources and measured programs together: the method that the others are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transfer_methods import Case


def ours(case: Case) -> tuple[np.ndarray, int]:
    """Fine-tuned on programs of the training tasks where there are any; labels of the very task are context.

    Returns:
        (N,) scores of the judging tasks' programs, NaN where one is measured, and the model's parameters.
    """
    from tchub.zoo.adapt.fine_tune import FineTuneConfig, fine_tune

    model = case.base().model
    if case.protocol != "in-task":
        model = fine_tune(model, case.tenth, FineTuneConfig(seed=case.seed)).model
    return case.told(model), model.parameter_count()

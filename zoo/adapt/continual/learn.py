"""The first phase: the column learns a device, and the base stays as it is (papers: TCL, equation 8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...models import Progressive
from ...training import RankingDataset, TrainResult, train
from ..errors import SourceMismatchError
from .config import ContinualConfig


def learn(
    model: Progressive,
    data: RankingDataset,
    val: RankingDataset | None = None,
    config: ContinualConfig | None = None,
    seed: int = 0,
    folder: Path | None = None,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> TrainResult:
    """Trains column and laterals in place on the rank loss of a device's labels.

    With few labels and no validation tasks, `fine_tune` of a model that is `learning()` stops by itself instead.

    Args:
        model: its column as it is is the start (see `Progressive.new_column`); afterwards it answers.
        data: the device's programs.
        val: chooses the epoch.
        config: the settings.
        seed: of the order of batches, and of what is dropped.
        folder: keeps the state of every epoch; a state found there is continued.
        on_epoch: told each entry of the history.

    Raises:
        SourceMismatchError: the programs have other features than the model reads.
        DivergedError, ResumeError: as in `training.train`.
    """
    check_features(model, data, val)
    recipe = (config or ContinualConfig()).learning()
    return train(model.learning(), data, val, recipe, seed, folder, on_epoch)


def check_features(model: Progressive, *sets: RankingDataset | None) -> None:
    """Raises SourceMismatchError unless all sets have the columns that the model reads."""
    for data in sets:
        if data is not None and data.features.shape[2] != model.config.width:
            raise SourceMismatchError(
                f"the knowledge base reads {model.config.width} columns, the programs have {data.features.shape[2]}",
                remedy="extract the base's own feature schema, on a device of its kind",
                expected=model.config.width,
                found=data.features.shape[2],
            )

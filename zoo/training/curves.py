"""Training curves in TensorBoard, where it is installed; `curve.csv` is always written (see `state`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .errors import MissingPackageError


def tensorboard_curve(folder: Path) -> Callable[[dict[str, float]], None]:
    """A listener that adds each entry of a run's history as scalars, epochs counted from 0 over all stages.

    Raises:
        MissingPackageError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackageError(
            "TensorBoard's curves need the package tensorboard",
            remedy="pip install 'tchub[train]', or leave out --tensorboard: curve.csv holds the same numbers",
            package="tensorboard",
        ) from error
    writer = SummaryWriter(str(folder))
    step = 0

    def add(entry: dict[str, float]) -> None:
        nonlocal step
        for name, value in entry.items():
            if name != "epoch":
                writer.add_scalar(name.replace("val_", "val/"), value, step)
        writer.flush()
        step += 1

    return add

"""Two processes that train one model: what they learn is what one process learns."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tchub.zoo.training import train
from tchub.zoo.training.distributed import ALONE, World
from test_training import RECIPE, new_model, toy_data

LOSSES = ("log_ranknet", "rmse")

PROGRAM = """
import os
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from test_training_distributed import train_twice

train_twice(Path({out!r}))
os._exit(0)  # PyTorch's threads can abort an interpreter that is shutting down
"""


def train_twice(out: Path) -> None:
    """By a loss that is a mean over groups, and by one that is a root over the whole batch."""
    world = World.join()
    for loss in LOSSES:
        config = replace(RECIPE, loss=loss, average=0.9, clip_norm=1.0, epochs=3)
        train(new_model(), toy_data(programs=19), toy_data(seed=1), config, 7, out / loss, world=world)
    world.leave()


def curve(folder) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader((folder / "curve.csv").open()))
    return {name: np.array([float(row[name]) for row in rows]) for name in ("loss", "val_pairwise")}


def launch(processes: int, *args) -> None:
    """What `torchrun` does."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run([sys.executable, *command, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_two_processes_draw_the_curve_of_one(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(PROGRAM.format(folder=str(Path(__file__).parent), out=str(tmp_path / "two")))
    launch(2, script)
    train_twice(tmp_path / "one")
    for loss in LOSSES:
        one, two = curve(tmp_path / "one" / loss), curve(tmp_path / "two" / loss)
        assert np.ptp(one["loss"]) > 0
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["val_pairwise"] == pytest.approx(one["val_pairwise"], abs=0.01)


def test_the_parts_of_all_processes_are_the_whole():
    for count in (0, 1, 7, 64):
        parts = [range(count)[World(rank, 3).part(count)] for rank in range(3)]
        assert [i for part in parts for i in part] == list(range(count))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_alone_nothing_is_sent():
    own = torch.rand(3, requires_grad=True)
    assert ALONE.gather(own, 3) is own
    assert World.join() is ALONE

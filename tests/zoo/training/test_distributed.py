"""Several processes that train one model: what they learn is what one process learns."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tchub.zoo.features.columns import PROGRAM_COLUMNS
from tchub.zoo.models import TileNet, create
from tchub.zoo.training import RankingDataset, train
from tchub.zoo.training.distributed import World
from test_training import RECIPE, new_model, toy_data
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

LOSSES = ("log_ranknet", "rmse")


def two_devices() -> RankingDataset:
    """Programs of one row, whose last columns tell which of two devices measured them."""
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(6), [19, 19, 40, 40, 40, 40])  # of few programs none are context
    x = rng.standard_normal((len(group), 1, PROGRAM_COLUMNS + 2)).astype(np.float32)
    x[:, 0, -2:] = np.where(group[:, None] % 2, [9.83, 0.1], [5.7, 11.7])
    latency = np.exp(x[:, 0, 0] * np.where(group % 2, 1, -1))
    return RankingDataset(x, latency, group, tuple("abcdef"), np.ones(6))


def train_tilenet(world: World) -> TileNet:
    """Its loss has weights of its own, and it keeps the devices that it learns."""
    torch.manual_seed(0)
    data = two_devices()
    sizes = {"hidden": 8, "layers": 2, "embedding": 4, "dropout": 0.0, "device_dropout": 0.2}
    model = create("tilenet", width=data.features.shape[2], hardware=True, **sizes)
    model.prepare(torch.from_numpy(data.features))
    config = replace(RECIPE, model={}, loss="pairwise_rank", programs_per_group=96, clip_norm=0.5, epochs=3)
    train(model, data, None, config, 7, world=world)
    return model


def train_all(out: Path) -> None:
    """By a loss that is a mean over groups, by one that is a root over the whole batch, and a TileNet."""
    world = World.join()
    for loss in LOSSES:
        config = replace(RECIPE, loss=loss, average=0.9, clip_norm=1.0, epochs=3)
        train(new_model(), toy_data(programs=19), toy_data(seed=1), config, 7, out / loss, world=world)
    tilenet = train_tilenet(world)
    if world.rank == 0:
        torch.save(tilenet.state_dict(), out / "tilenet.pt")
    world.leave()


def curve(folder) -> dict[str, np.ndarray]:
    rows = list(csv.DictReader((folder / "curve.csv").open()))
    return {name: np.array([float(row[name]) for row in rows]) for name in ("loss", "val_pairwise")}


@pytest.mark.usefixtures("own_signals")
def test_two_processes_learn_what_one_does(tmp_path):
    """As `torchrun --standalone` starts them, but as forks of this process, which has imported PyTorch."""
    ends = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    elastic_launch(LaunchConfig(1, 1, 2, start_method="fork", monitor_interval=0.1, **ends), train_all)(
        tmp_path / "two"
    )
    train_all(tmp_path / "one")
    for loss in LOSSES:
        one, two = curve(tmp_path / "one" / loss), curve(tmp_path / "two" / loss)
        assert np.ptp(one["loss"]) > 0
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["val_pairwise"] == pytest.approx(one["val_pairwise"], abs=0.01)
    one, two = (torch.load(tmp_path / name / "tilenet.pt", weights_only=True) for name in ("one", "two"))
    assert torch.equal(two["devices"], one["devices"]), "a device that is known is known to the last bit"
    for own in ("kernel", "sharpness"):
        torch.testing.assert_close(two[own], one[own], rtol=1e-3, atol=1e-4)

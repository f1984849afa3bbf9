"""Recipes, data sets and the loop: what is refused, what is learnt, and that a stop costs nothing."""

import math

import numpy as np
import pytest
import torch
from tchub.zoo.devices import get_device
from tchub.zoo.models import create, get_architecture
from tchub.zoo.training import RankingDataset, TrainConfig, TrainingError, evaluate_model, list_recipes, train
from tchub.zoo.training.dataset import epoch_batches
from tchub.zoo.training.programs import resolve_schema
from tchub.zoo.training.state import STATE_FILE

SMALL = {"width": 6, "hidden": 8, "d_model": 8, "head": 4, "d_state": 2, "dt_rank": 2}
RECIPE = TrainConfig(model=SMALL, epochs=4, learning_rate=0.01, groups_per_batch=4, programs_per_group=8, save_every=1)


def toy_data(tasks=6, programs=20, seed=0) -> RankingDataset:
    """Programs of 1 to 4 rows whose speed is the sum of a column; the last row is the device."""
    rng = np.random.default_rng(seed)
    n = tasks * programs
    features = rng.standard_normal((n, 6, 6)).astype(np.float32)
    for i, rows in enumerate(rng.integers(1, 5, n)):
        features[i, rows:5] = 0
    features[:, 5] = 1
    group = np.repeat(np.arange(tasks, dtype=np.int64), programs)
    latency = np.exp(rng.standard_normal(tasks)[group] - features[:, :5, 0].sum(1)) * 1e-3
    names = tuple(f"task{i}" for i in range(tasks))
    return RankingDataset(features, latency.astype(np.float64), group, names, np.ones(tasks))


def new_model(seed=0):
    torch.manual_seed(seed)
    return create("tcl", **SMALL)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_labels_are_relative_to_the_best_of_the_task():
    features, latency, group = np.ones((3, 2, 2), np.float32), np.array([2.0, 1.0, 5.0]), np.array([0, 0, 1])
    data = RankingDataset(features, latency, group, ("a", "b"), np.ones(2))
    assert data.labels.tolist() == [0.5, 1.0, 1.0]
    assert data.best.tolist() == [1.0, 5.0]


@pytest.mark.parametrize("latency", [0.0, -1.0, math.nan, math.inf])
def test_a_failed_program_is_refused(latency):
    with pytest.raises(TrainingError, match="latency"):
        RankingDataset(np.ones((1, 2, 2), np.float32), np.array([latency]), np.array([0]), ("a",), np.ones(1))


def test_an_epoch_sees_each_program_once_in_groups_of_one_task():
    data = toy_data(tasks=3, programs=17)
    batches = list(epoch_batches(data, 2, 8, np.random.default_rng(0)))
    assert sorted(np.concatenate([b.index for b in batches])) == list(range(51))
    for batch in batches:
        assert batch.mask.sum() == len(batch.index)
        for part in np.split(batch.index, np.cumsum(batch.mask.sum(1))[:-1]):
            assert 2 <= len(part) <= 8
            assert len(set(data.group[part])) == 1


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipes_are_valid_and_their_models_exist(name):
    config = TrainConfig.find(name)
    model = create(config.arch, **config.model)
    assert model.parameter_count() > 0
    made_for = get_architecture(config.arch).schemas
    assert {f"{config.feature_schema}-{kind}" for kind in ("cpu", "gpu")} <= set(made_for)


def test_a_recipe_may_be_yaml(tmp_path):
    (tmp_path / "r.yaml").write_text("epochs: 3\nmodel: {hidden: 8}\nfinetune: {epochs: 1}\n")
    (tmp_path / "r.toml").write_text("epochs = 3\nmodel.hidden = 8\nfinetune.epochs = 1\n")
    config = TrainConfig.find(str(tmp_path / "r.yaml"))
    assert config == TrainConfig.find(str(tmp_path / "r.toml"))
    assert (config.pretraining().epochs, config.finetuning().epochs) == (3, 1)


@pytest.mark.parametrize(("name", "device", "full"), [
    ("tcl", "epyc", "tcl-cpu"), ("tcl", "v100", "tcl-gpu"), ("tlp-gpu", "v100", "tlp-gpu"),
])  # fmt: skip
def test_a_schema_without_a_kind_is_the_one_of_the_device(name, device, full):
    assert resolve_schema(name, get_device(device).kind).name == full


@pytest.mark.parametrize(
    "text",
    ["epochs = 0", 'epochs = "9"', 'loss', 'schedule = "linear"', "learning_rate = nan",
     "average = 1.0", 'schedule = "step"', "finetune.epohcs = 3", "finetune.epochs = 0", 'finetune.arch = "tlp"'],
)  # fmt: skip
def test_impossible_recipes_are_refused(tmp_path, text):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(TrainingError):
        TrainConfig.from_file(tmp_path / "r.toml")


def test_the_remedy_of_an_unknown_key_is_the_nearest(tmp_path):
    (tmp_path / "r.toml").write_text("epohcs = 3\n")
    with pytest.raises(TrainingError) as caught:
        TrainConfig.from_file(tmp_path / "r.toml")
    assert "epochs" in str(caught.value.remedy)


@pytest.mark.parametrize("loss", ["lambda_rank", "pairwise_rank", "log_ranknet", "rmse"])
def test_every_loss_learns(loss):
    data, val = toy_data(tasks=12), toy_data(seed=1)
    model = new_model()
    config = TrainConfig.from_dict(RECIPE.as_dict() | {"loss": loss, "epochs": 10})
    result = train(model, data, val, config)
    assert result.history[-1]["loss"] < 0.9 * result.history[0]["loss"]
    assert result.best["pairwise"] > 0.6
    assert evaluate_model(model, val) == result.best


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_stopped_run_continues_bit_for_bit(tmp_path, average):
    config = TrainConfig.from_dict(RECIPE.as_dict() | {"average": average, "optimizer": "adamw"})
    data, val = toy_data(), toy_data(seed=1)
    whole, stopped = new_model(), new_model()
    expected = train(whole, data, val, config, seed=7)

    def stop_after_two(entry):
        if entry["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stopped, data, val, config, 7, tmp_path, stop_after_two)
    resumed = new_model(seed=5)
    result = train(resumed, data, val, config, seed=7, resume_dir=tmp_path)
    assert result.resumed_from == 2
    assert torch.equal(weights(resumed), weights(whole))
    assert (result.best, result.best_epoch) == (expected.best, expected.best_epoch)
    assert [e["loss"] for e in result.history] == [e["loss"] for e in expected.history]


@pytest.mark.parametrize("change", ["seed", "config", "data", "model"])
def test_a_state_of_another_run_is_refused(tmp_path, change):
    train(new_model(), toy_data(), None, RECIPE, seed=0, resume_dir=tmp_path)
    config = TrainConfig.from_dict(RECIPE.as_dict() | {"learning_rate": 0.5}) if change == "config" else RECIPE
    model = create("tcl", **SMALL | {"head": 5}) if change == "model" else new_model()
    data = toy_data(seed=int(change == "data"))
    with pytest.raises(TrainingError, match=change):
        train(model, data, None, config, seed=int(change == "seed"), resume_dir=tmp_path)


def test_a_damaged_state_is_refused(tmp_path):
    train(new_model(), toy_data(), None, RECIPE, resume_dir=tmp_path)
    path = tmp_path / STATE_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TrainingError, match="damaged"):
        train(new_model(), toy_data(), None, RECIPE, resume_dir=tmp_path)


def test_divergence_is_an_error_with_a_remedy():
    config = TrainConfig.from_dict(RECIPE.as_dict() | {"learning_rate": 1e30, "loss": "rmse"})
    with pytest.raises(TrainingError) as caught:
        train(new_model(), toy_data(), None, config)
    assert "learning_rate" in str(caught.value.remedy)


def test_a_finished_run_is_not_run_again(tmp_path):
    train(model := new_model(), toy_data(), None, RECIPE, resume_dir=tmp_path)
    again = new_model(seed=9)
    assert train(again, toy_data(), None, RECIPE, resume_dir=tmp_path).resumed_from == 4
    assert torch.equal(weights(again), weights(model))

"""A knowledge base as a checkpoint: what travels in it, and which folders are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from progressive_kit import NETWORKS, apart, programs, tiny
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    ContextModel,
    CorruptCheckpointError,
    ModelConfigError,
    ProgressiveNetwork,
    create,
    get_architecture,
    list_architectures,
)


def saved(tmp_path, arch: str = "tilenet", column: bool = True) -> tuple[ProgressiveNetwork, CheckpointConfig]:
    schema = get_schema(get_architecture(arch).schemas[0])
    torch.manual_seed(0)
    model = create(f"{arch}-kb", width=schema.width, hardware=schema.hardware, lateral=4, column=column)
    assert isinstance(model, ProgressiveNetwork)
    apart(model)
    config = CheckpointConfig(
        name=f"{arch}-kb-test", version="1.0.0", arch=f"{arch}-kb", model=model.config.as_dict(),
        feature_schema=schema.name, feature_version=schema.version, family="v100",
    )  # fmt: skip
    Checkpoint(config, model.eval(), get_device("v100")).save(tmp_path)
    return model, config


@pytest.mark.parametrize("column", [True, False])
def test_base_column_and_worth_travel_in_one_checkpoint(tmp_path, column: bool) -> None:
    model, config = saved(tmp_path, column=column)
    loaded = Checkpoint.load(tmp_path).model
    x = programs(rows=1, width=model.config.width).numpy()
    assert isinstance(loaded, ProgressiveNetwork)
    np.testing.assert_array_equal(loaded.score(x), model.score(x))
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert {name.split(".")[0] for name in model.state_dict()} == {"kb", "column", "lateral", "fisher", "devices"}
    assert loaded.config.as_dict()["column"] is config.model["column"] is column


def test_measured_programs_correct_the_scores_of_the_part_that_answers(tmp_path) -> None:
    model, _ = saved(tmp_path)
    loaded = Checkpoint.load(tmp_path).model
    assert isinstance(loaded, ContextModel)
    assert isinstance(loaded, ProgressiveNetwork)
    x = programs(20, rows=1, width=model.config.width).numpy()
    seconds = np.linspace(1e-3, 1e-2, 6)
    informed = loaded.given(x[:6], seconds).score(x)
    assert not np.array_equal(informed, loaded.score(x))
    loaded.distilling()
    assert isinstance(loaded.kb, ContextModel)
    np.testing.assert_array_equal(loaded.score_given(x, x[:6], seconds), loaded.kb.score_given(x, x[:6], seconds))


def edited(tmp_path, **changes: object) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_base_of_impossible_size_is_refused_before_it_takes_memory(tmp_path) -> None:
    _, config = saved(tmp_path)
    edited(tmp_path, model=config.model | {"hidden": 8192, "layers": 64})
    with pytest.raises(CorruptCheckpointError):
        Checkpoint.load(tmp_path)


def test_every_network_has_a_base_and_a_base_has_none() -> None:
    assert list_architectures() == sorted(NETWORKS)
    with pytest.raises(ModelConfigError):
        ProgressiveNetwork.around(ProgressiveNetwork.around(tiny("tilenet")))

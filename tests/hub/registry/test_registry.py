"""`from tchub import hub`: list, pull and load a real checkpoint; weights are verified at every load."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from real_checkpoint import NAME, VERSION, environment, make_checkpoint, publish_real
from tchub import hub
from tchub.hub.registry import Registry
from tchub.hub.registry.errors import IntegrityError, UnknownCheckpointError
from tchub.hub.registry.fit import CHECKPOINT_FORMAT
from tchub.zoo.devices import get_device
from tchub.zoo.models import Checkpoint
from tchub.zoo.models.config import FORMAT
from tchub.zoo.primitives import PrimitiveSequence
from toy_checkpoints import publish


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    entry = publish_real(tmp_path / "zoo")
    for key, value in environment(tmp_path, entry).items():
        monkeypatch.setenv(key, value)
    return tmp_path


def test_the_registry_and_the_models_mean_the_same_format():
    assert CHECKPOINT_FORMAT == FORMAT


def test_every_exported_name_is_importable():
    for name in hub.__all__:
        assert callable(getattr(hub, name)), name
    assert set(hub.__all__) <= set(dir(hub))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = hub.frobnicate


def test_list_pull_load(zoo):
    assert [entry.id for entry in hub.list_checkpoints()] == [f"{NAME}@{VERSION}"]
    assert hub.list_checkpoints(family="xeon") == []
    pulled = hub.pull(NAME)
    assert pulled.path == zoo / "cache" / "checkpoints" / NAME / VERSION
    checkpoint = hub.load(NAME)
    assert isinstance(checkpoint, Checkpoint)
    original = make_checkpoint().model.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in checkpoint.model.state_dict().items())
    scores = checkpoint.score([PrimitiveSequence(())])
    assert scores.shape == (1,)
    assert np.isfinite(scores).all()


def test_load_fetches_what_is_not_here(zoo):
    assert hub.load(f"{NAME}@{VERSION}").config.version == VERSION
    assert (zoo / "cache" / "checkpoints" / NAME / VERSION).is_dir()


def test_without_a_name_the_checkpoint_for_the_given_device_is_pulled(zoo):
    pulled = hub.pull(device=get_device("epyc"))
    assert pulled.entry.name == NAME
    assert pulled.resolution.verdicts[0].accepted
    with pytest.raises(UnknownCheckpointError):
        hub.pull(device=get_device("a100"))


def test_an_unknown_name_is_explained_for_this_machine(zoo, monkeypatch):
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    for call in (hub.pull, hub.load):
        with pytest.raises(UnknownCheckpointError, match=f"{NAME}@{VERSION} fits"):
            call("tcl-epik")


def test_the_hash_is_checked_at_every_load(zoo):
    hub.load(NAME)
    weights = zoo / "cache" / "checkpoints" / NAME / VERSION / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    with pytest.raises(IntegrityError, match="wrong sha256"):
        hub.load(NAME)
    hub.pull(NAME)
    hub.load(NAME)


def test_an_adapted_checkpoint_is_stored_listed_and_loaded(zoo):
    registry = Registry.default()
    base = registry.resolve(NAME).entry
    name = f"{NAME}+local"
    for _ in range(2):
        registry.register_local(
            name, lambda folder, version: make_checkpoint(name=name, version=version).save(folder), base
        )
    assert [(entry.name, entry.version) for entry in hub.list_checkpoints(local=True)] == [
        (name, "1.0.0"),
        (name, "1.0.1"),
    ]
    assert hub.load(name).config.version == "1.0.1"
    assert hub.load(f"{name}@1.0.0").config.version == "1.0.0"
    assert hub.pull(name).source == "store"


def test_the_checkpoint_that_the_wheel_ships_needs_no_pull(zoo, monkeypatch):
    entry = publish(zoo / "wheel", "tlp-epyc")
    registry = Registry(Registry.default().index.merged([entry]), *_stores(), zoo / "wheel")
    assert registry.locate(registry.resolve("tlp-epyc")).source == "bundled"


def _stores():
    default = Registry.default()
    return default.cache, default.home

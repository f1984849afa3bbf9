"""The Python face: list, pull, load; every fault is a typed error before a tensor is used, and nothing is lost."""

from pathlib import Path

import numpy as np
import pytest
import torch
from real_checkpoint import NAME, VERSION, make_checkpoint, rewrite_config, use_real
from tchub import hub
from tchub.hub.api import locate
from tchub.hub.registry import Entry, Registry, describe
from tchub.hub.registry.errors import UnknownCheckpointError
from tchub.hub.registry.files import read_card
from tchub.zoo.devices import get_device
from tchub.zoo.errors import TchubWarning
from tchub.zoo.models import Checkpoint
from tchub.zoo.primitives import PrimitiveSequence
from toy_checkpoints import fill_disk, forbid_writing, write_index


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """A zoo of one checkpoint in a folder, and empty stores."""
    use_real(monkeypatch, tmp_path)
    return tmp_path


def test_every_exported_name_is_importable():
    for name in hub._HOME:
        assert callable(getattr(hub, name)), name
    assert set(hub._HOME) <= set(dir(hub))


def test_list_pull_load(shelf):
    assert [entry.id for entry in hub.list_checkpoints()] == [f"{NAME}@{VERSION}"]
    assert hub.list_checkpoints(family="xeon") == []
    pulled = hub.pull(NAME)
    assert pulled.path == shelf / "cache" / "checkpoints" / NAME / VERSION
    checkpoint = hub.load(NAME)
    assert isinstance(checkpoint, Checkpoint)
    original = make_checkpoint().model.state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in checkpoint.model.state_dict().items())
    assert np.isfinite(checkpoint.score([PrimitiveSequence(())])).tolist() == [True]


def adapt(registry: Registry, name: str, base: Entry) -> Entry:
    return registry.register_local(name, lambda f, v: make_checkpoint(name=name, version=v).save(f), base)


def test_the_base_stands_for_an_adaptation_that_stored_nothing_until_one_does(shelf):
    registry, name = Registry.default(), f"{NAME}+local"
    base = registry.resolve(NAME).entry
    registry.home.stand_in(name, NAME)
    with pytest.warns(TchubWarning, match=f"{NAME}.local is {NAME}: adapting ranked no better and kept it"):
        assert registry.resolve(name).entry == base
    with pytest.raises(UnknownCheckpointError):
        registry.resolve(f"{NAME}+local-2t")
    adapt(registry, name, base)
    assert registry.resolve(name).entry.name == name


def test_an_adapted_checkpoint_is_stored_listed_and_loaded(shelf):
    registry = Registry.default()
    base = registry.resolve(NAME).entry
    name = f"{NAME}+local"
    for _ in range(2):
        adapt(registry, name, base)
    assert [entry.id for entry in hub.list_checkpoints(local=True)] == [f"{name}@1.0.0", f"{name}@1.0.1"]
    assert hub.load(name).config.version == "1.0.1"
    assert hub.load(f"{name}@1.0.0").config.version == "1.0.0"
    assert hub.pull(name).source == "store"


@pytest.fixture
def zoo(shelf, monkeypatch) -> Path:
    """The same, with a model loader that fails the test when a tensor is used."""
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("epyc"))
    monkeypatch.setattr("torch.nn.Module.load_state_dict", lambda *_: pytest.fail("a tensor was used"))
    return shelf


def stored(zoo: Path) -> Path:
    """Pull the checkpoint; where it lies."""
    hub.pull(NAME)
    return zoo / "cache/checkpoints" / NAME / VERSION


def relist(zoo: Path) -> None:
    """Describe the zoo's files as they are now in the index, as a publisher would who did not look."""
    folder = zoo / "zoo" / NAME / VERSION
    entry = describe(folder, NAME, VERSION, sources=[(zoo / "zoo").as_uri()], format=1, feature_schema="tcl-cpu")
    write_index(zoo / "index.json", entry)


def refusal(call) -> dict[str, object]:
    """The typed error that a call ends in, which must have a remedy."""
    from tchub.zoo.errors import TchubError

    with pytest.raises(TchubError) as caught:
        call()
    assert caught.value.remedy
    return caught.value.as_dict()


def tree(folder: Path) -> dict[str, bytes]:
    """All files under a folder but locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_damaged_source(zoo):
    weights = zoo / "zoo" / NAME / VERSION / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    error = refusal(lambda: hub.pull(NAME))
    assert (error["error"], error["outcome"]) == ("IntegrityError", "size-mismatch")
    assert tree(zoo / "cache") == {}


def test_weights_that_were_published_damaged(zoo):
    weights = zoo / "zoo" / NAME / VERSION / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    relist(zoo)
    assert refusal(lambda: hub.load(NAME))["error"] == "CorruptCheckpointError"


@pytest.mark.parametrize(
    ("change", "text"), [({"format": 2}, "upgrade tchub"), ({"feature_schema": "tcl-npu"}, "tcl-npu")]
)
def test_what_this_tchub_cannot_load_is_not_even_fetched(zoo, change, text):
    folder = zoo / "zoo" / NAME / VERSION
    rewrite_config(folder, **change)
    write_index(zoo / "index.json", describe(folder, NAME, VERSION))
    error = refusal(lambda: hub.load(NAME))
    assert error["error"] == "UnknownCheckpointError"
    assert text in str(error["message"])
    assert not (zoo / "cache").exists()


@pytest.mark.parametrize("change", [{"format": 2}, {"feature_schema": "tcl-npu"}, {"feature_schema": "tcl-gpu"}])
def test_what_the_index_hides_is_refused_before_a_tensor_is_used(zoo, change):
    rewrite_config(zoo / "zoo" / NAME / VERSION, **change)
    relist(zoo)
    assert refusal(lambda: hub.load(NAME))["error"] == "CheckpointError"


def test_an_unknown_checkpoint_and_a_device_that_none_fits(zoo, monkeypatch):
    error = refusal(lambda: hub.load("tcl-epik"))
    assert (error["error"], error["nearest"]) == ("UnknownCheckpointError", [NAME])
    assert refusal(lambda: hub.load("../../etc/passwd"))["error"] == "CheckpointNameError"
    monkeypatch.setattr("tchub.hub.device.detect.detect_local", lambda: get_device("a100"))
    error = refusal(hub.pull)
    assert (error["error"], len(error["verdicts"])) == ("UnknownCheckpointError", 1)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [('{"format": 1, "checkpoints": [', "fetch the file again"), ('{"format": 2, "checkpoints": []}', "upgrade tchub")],
)
def test_an_index_that_cannot_be_read(zoo, text, remedy):
    (zoo / "index.json").write_text(text)
    error = refusal(hub.list_checkpoints)
    assert (error["error"], remedy in str(error["remedy"])) == ("IndexFileError", True)


def test_a_disk_that_is_full_at_the_last_step(zoo, full_disk):
    full_disk("os.rename")
    assert refusal(lambda: hub.pull(NAME))["error"] == "StorageError"
    assert tree(zoo / "cache") == {}


def test_a_disk_that_is_full_keeps_the_older_version(zoo, monkeypatch):
    before = tree(stored(zoo))
    newer = zoo / "zoo" / NAME / "1.0.1"
    make_checkpoint(version="1.0.1").save(newer)
    entries = [*Registry.default().index.entries, describe(newer, NAME, "1.0.1", sources=[(zoo / "zoo").as_uri()])]
    write_index(zoo / "index.json", *entries)
    fill_disk(monkeypatch)
    assert refusal(lambda: hub.pull(NAME))["error"] == "StorageError"
    assert tree(zoo / "cache/checkpoints" / NAME / VERSION) == before
    assert [entry.version for entry in Registry.default().cache.entries()] == [VERSION]


def test_a_disk_that_is_full_while_adapting_keeps_the_base_and_earlier_versions(zoo, full_disk):
    registry = Registry.default()
    base = registry.resolve(NAME).entry
    name = f"{NAME}+local"
    adapt(registry, name, base)
    before = tree(zoo / "home")

    full_disk("os.replace")
    error = refusal(lambda: adapt(registry, name, base))
    assert "No space left" in str(error["message"])
    assert tree(zoo / "home") == before


def test_a_read_only_cache(zoo, monkeypatch):
    forbid_writing(monkeypatch)
    error = refusal(lambda: hub.pull(NAME))
    assert error["error"] == "StorageError"
    assert "set TCHUB_CACHE to a folder you may write" in str(error["remedy"])
    assert not (zoo / "cache").exists()


def test_a_read_only_cache_serves_a_copy_whose_card_was_corrected_since(zoo, monkeypatch):
    folder = stored(zoo)
    (zoo / "zoo" / NAME / VERSION / "README.md").write_text("corrected")
    relist(zoo)
    forbid_writing(monkeypatch)
    assert locate(NAME).path == folder
    with pytest.warns(TchubWarning, match=r"cannot be written: Read-only file system; .* is served as it is stored"):
        pulled = hub.pull(NAME)
    assert (pulled.path, pulled.source) == (folder, "store")


@pytest.mark.parametrize(
    ("source", "offline", "why"),
    [("hf://org/tcl-epyc", True, "network"), ("file:///nowhere", False, "nowhere"), (None, False, "wrong s")],
)
def test_where_no_source_has_the_corrected_card_the_copy_serves(zoo, source, offline, why):
    """Without a network, with a source that went away, or with one that still has the old card."""
    card = zoo / "zoo" / NAME / VERSION / "README.md"
    card.write_text("as it was")
    relist(zoo)
    folder = stored(zoo)
    card.write_text("corrected since")
    listed = describe(card.parent, NAME, VERSION, sources=[source or (zoo / "zoo").as_uri()], revision="0" * 40)
    write_index(zoo / "index.json", listed)
    card.write_text("as it was")
    with pytest.warns(TchubWarning, match=f"{why}.* is served as it is stored, without the card that was corrected"):
        pulled = hub.pull(NAME, offline=offline)
    assert (pulled.path, pulled.source, read_card(pulled.path)) == (folder, "store", "as it was")
    (folder / "model.safetensors").unlink()
    assert refusal(lambda: hub.pull(NAME, offline=offline)), "weights that are not whole are never served"

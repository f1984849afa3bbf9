"""Checkpoints by `from_pretrained`: from the Hub, a folder or a name; audited, of any architecture, offline too."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hub_client import use_client
from hub_protocol import running
from huggingface_hub import ModelCard
from real_checkpoint import make_checkpoint, rewrite_config, use_real
from registry_kit import refused
from tchub.hub import PretrainedModel
from tchub.hub.registry.errors import CheckpointNameError, IntegrityError, NotInSourceError
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import Checkpoint, CheckpointConfig, CorruptCheckpointError, create, get_architecture

REPO = "lab/network"
SMALL = {"hidden": 16, "d_model": 16, "head": 8, "feedforward": 24, "dt_rank": 2}
NETWORKS = ("tenset-mlp", "tilenet", "tlp-kb", "tcl-ensemble")  # of each way to read programs, and to be made


@pytest.fixture
def server(tmp_path, monkeypatch):
    with running() as started:
        use_client(monkeypatch, tmp_path, started.url)
        monkeypatch.setenv("HF_TOKEN", started.login("hf_ada", "ada", "write", ("lab",)))
        yield started


def small(arch: str) -> Checkpoint:
    """A checkpoint of few random weights."""
    architecture = get_architecture(arch)
    schema = get_schema(architecture.schemas[0])
    settings = {k: v for k, v in SMALL.items() if k in {f.name for f in fields(architecture.config)}}
    torch.manual_seed(0)
    model = create(arch, width=schema.width, hardware=schema.hardware, **settings).eval()
    family = "epyc" if "cpu" in schema.name else "t4"
    config = CheckpointConfig(
        f"{arch}-{family}", "1.0.0", arch, model.config.as_dict(), schema.name, family, schema.version
    )
    return Checkpoint(config, model, get_device(family))


def scores(model: torch.nn.Module, width: int) -> np.ndarray:
    rows = torch.rand(4, 12, width, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(rows if width != get_schema("nest-gpu").width else rows[:, :1]).numpy()


@pytest.mark.parametrize("arch", NETWORKS)
def test_every_network_goes_to_the_hub_and_back_and_scores_the_same(arch, server, tmp_path):
    origin = small(arch)
    origin.save(tmp_path)
    PretrainedModel.from_pretrained(tmp_path).push_to_hub(REPO)
    card = ModelCard(server.repos[REPO].files()["README.md"].decode()).data
    assert (card.library_name, card.eval_results) == ("tchub", None), "the card that is pushed claims no scores"
    back = PretrainedModel.from_pretrained(REPO)
    width = origin.model.config.width
    assert isinstance(back.model, get_architecture(arch).model)
    assert back.config == origin.config
    assert not back.model.training
    np.testing.assert_array_equal(scores(back.model, width), scores(origin.model, width))


def test_a_folder_is_saved_and_loaded_without_a_network(server, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    small("tcl").save(tmp_path / "origin")
    PretrainedModel.from_pretrained(tmp_path / "origin").save_pretrained(tmp_path / "copy")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "origin" / name).read_bytes()
    assert "tcl-epyc 1.0.0" in (tmp_path / "copy" / "README.md").read_text()
    assert server.requests == []


def test_a_name_of_the_registry(tmp_path, monkeypatch):
    use_real(monkeypatch, tmp_path)
    model = PretrainedModel.from_pretrained("tcl-epyc@0.9.0")
    assert model.config.version == "0.9.0"
    np.testing.assert_array_equal(scores(model.model, 22), scores(make_checkpoint().model, 22))


def test_weights_that_are_not_the_configs_are_refused_before_one_is_read(server, tmp_path):
    checkpoint = small("tcl")
    checkpoint.save(tmp_path)
    rewrite_config(tmp_path, model=checkpoint.config.model | {"hidden": 32})
    server.add(REPO, tmp_path)
    with pytest.raises(CorruptCheckpointError, match="shape"):
        PretrainedModel.from_pretrained(REPO)


def test_the_newest_tagged_version_is_taken_not_what_was_pushed_last(server, tmp_path):
    commits = {}
    for version in ("1.0.0", "1.10.0", "1.9.0", "2.0.0-rc.1"):
        small("tcl").save(tmp_path)
        rewrite_config(tmp_path, version=version)
        commits[version] = server.add(REPO, tmp_path)
        server.repos[REPO].tag(f"v{version}", commits[version])
    assert PretrainedModel.from_pretrained(REPO).config.version == "1.10.0"
    for revision in ("v1.9.0", commits["1.9.0"]):
        assert PretrainedModel.from_pretrained(REPO, revision=revision).config.version == "1.9.0"
    server.requests.clear()
    offline = PretrainedModel.from_pretrained(REPO, local_files_only=True)
    assert offline.config.version == "1.10.0"
    assert server.requests == []


def test_what_the_hub_does_not_have(server, tmp_path):
    with pytest.raises(NotInSourceError):
        PretrainedModel.from_pretrained("lab/none")
    small("tcl").save(tmp_path)
    server.add(REPO, tmp_path)
    with refused("revision"):
        PretrainedModel.from_pretrained(REPO, revision="v9.9.9")
    with refused("offline"):
        PretrainedModel.from_pretrained(REPO, local_files_only=True)


def test_a_hub_that_hangs_is_not_waited_for_for_ever(server, monkeypatch):
    monkeypatch.setattr("tchub.hub.registry.network.ANSWER_SECONDS", 0.2)
    server.faults.stall("/refs", lost=True)
    with refused("network", "the Hub hangs"):
        PretrainedModel.from_pretrained(REPO)


def test_a_file_that_is_larger_than_any_checkpoint_is_not_fetched(server, tmp_path):
    small("tcl").save(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * ((1 << 20) + 1))
    server.add(REPO, tmp_path)
    with pytest.raises(IntegrityError, match="wrong size"):
        PretrainedModel.from_pretrained(REPO)
    assert server.downloads() == []


def test_a_revision_of_what_has_none(tmp_path):
    with pytest.raises(CheckpointNameError):
        PretrainedModel.from_pretrained(tmp_path, revision="main")
    with pytest.raises(CheckpointNameError, match="tcl-epyc"):
        PretrainedModel.from_pretrained("tcl-epyc", revision="1.0.0")

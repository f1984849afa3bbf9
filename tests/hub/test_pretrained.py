"""Networks by `from_pretrained`: from the Hub, a folder or a name; audited, of the right architecture, offline too."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch
from hub_client import use_client
from hub_protocol import running
from real_checkpoint import environment, make_checkpoint, publish_real, rewrite_config
from tchub import hub
from tchub.hub.registry.errors import IntegrityError, NetworkError, NotInSourceError, OfflineError, RevisionMissingError
from tchub.hub.registry.pretrained import NoFactsError, PretrainedNetwork, WrongArchitectureError
from tchub.hub.registry.pretrained_source import RevisionError, newest_version
from tchub.zoo.devices import get_device
from tchub.zoo.features import get_schema
from tchub.zoo.models import (
    Checkpoint,
    CheckpointConfig,
    CorruptCheckpointError,
    create,
    get_architecture,
    list_architectures,
    list_committees,
    list_knowledge_bases,
)

REPO = "lab/network"
SMALL = {"hidden": 16, "d_model": 16, "head": 8, "feedforward": 24, "dt_rank": 2}
NETWORKS = [
    name
    for name in (*list_architectures(), *list_knowledge_bases(), *list_committees())
    if get_architecture(name).weights == "safetensors"
]


@pytest.fixture
def server(tmp_path, monkeypatch):
    with running() as started:
        use_client(monkeypatch, tmp_path, started.url)
        monkeypatch.setenv("HF_TOKEN", started.login("hf_ada", "ada", "write", ("lab",)))
        yield started


def small(arch: str, name: str | None = None) -> Checkpoint:
    """A checkpoint of few random weights."""
    architecture = get_architecture(arch)
    schema = get_schema(architecture.schemas[0])
    settings = {k: v for k, v in SMALL.items() if k in {f.name for f in fields(architecture.config)}}
    torch.manual_seed(0)
    model = create(arch, width=schema.width, hardware=schema.hardware, **settings).eval()
    family = "epyc" if "cpu" in schema.name else "t4"
    config = CheckpointConfig(
        name or f"{arch}-{family}", "1.0.0", arch, model.config.as_dict(), schema.name, family, schema.version
    )
    return Checkpoint(config, model, get_device(family))


def scores(model: torch.nn.Module, width: int) -> np.ndarray:
    rows = torch.rand(4, 12, width, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(rows if width != get_schema("nest-gpu").width else rows[:, :1]).numpy()


def class_of(arch: str) -> type:
    return getattr(hub, get_architecture(arch).model.__name__)


def push(checkpoint: Checkpoint, folder, repo: str = REPO) -> str:
    """By `push_to_hub`, as its owner does."""
    checkpoint.save(folder)
    return class_of(checkpoint.config.arch).from_pretrained(folder).push_to_hub(repo).oid


@pytest.mark.parametrize("arch", NETWORKS)
def test_every_network_goes_to_the_hub_and_back_and_scores_the_same(arch, server, tmp_path):
    origin = small(arch)
    push(origin, tmp_path / "folder")
    back = class_of(arch).from_pretrained(REPO)
    width = origin.model.config.width
    assert isinstance(back, get_architecture(arch).model)
    assert back.checkpoint.config == origin.config
    assert not back.training
    np.testing.assert_array_equal(scores(back, width), scores(origin.model, width))


def test_every_network_of_the_registry_has_a_class_and_no_other():
    made = {name for name, home in hub._HOME.items() if home == ".pretrained"}
    assert made == {get_architecture(arch).model.__name__ for arch in NETWORKS}


def test_the_classes_cost_nothing_before_they_are_used():
    code = "import sys, tchub.hub; assert 'TCL' in dir(tchub.hub); assert not {'torch', 'tvm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_mixin_is_huggingface_hubs_own():
    from huggingface_hub import ModelHubMixin

    assert issubclass(hub.TCL, ModelHubMixin)
    assert hub.TCL is hub.TCL
    with pytest.raises(AttributeError, match="XGBoost"):
        _ = hub.XGBoostRanker


def test_a_folder_is_saved_and_loaded_without_a_network(server, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    small("tcl").save(tmp_path / "origin")
    hub.TCL.from_pretrained(tmp_path / "origin").save_pretrained(tmp_path / "copy")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "origin" / name).read_bytes()
    assert "tcl-epyc 1.0.0" in (tmp_path / "copy" / "README.md").read_text()
    assert server.requests == []


def test_a_name_of_the_registry(tmp_path, monkeypatch):
    for variable, value in environment(tmp_path, publish_real(tmp_path / "zoo")).items():
        monkeypatch.setenv(variable, value)
    model = hub.TCL.from_pretrained("tcl-epyc@0.9.0")
    assert model.checkpoint.config.version == "0.9.0"
    np.testing.assert_array_equal(scores(model, 22), scores(make_checkpoint().model, 22))


def test_what_is_loaded_scores_programs_as_a_checkpoint_does(tmp_path):
    from tchub.zoo.primitives import Primitive, PrimitiveSequence

    small("tcl").save(tmp_path)
    programs = [PrimitiveSequence((Primitive("Split", (0, 0, 64, 1, 2**j, 1, 64 // 2**j)),), "ansor") for j in range(4)]
    ours = hub.TCL.from_pretrained(tmp_path).checkpoint
    np.testing.assert_array_equal(ours.score(programs), Checkpoint.load(tmp_path).score(programs))


def test_another_architecture_is_refused_and_its_class_named(tmp_path):
    small("tlp").save(tmp_path)
    with pytest.raises(WrongArchitectureError, match="is a tlp, not a tcl") as caught:
        hub.TCL.from_pretrained(tmp_path)
    assert "tchub.hub.TLP" in caught.value.remedy


def test_weights_that_are_not_the_configs_are_refused_before_one_is_read(server, tmp_path):
    checkpoint = small("tcl")
    checkpoint.save(tmp_path)
    rewrite_config(tmp_path, model=checkpoint.config.model | {"hidden": 32})
    server.add(REPO, tmp_path)
    with pytest.raises(CorruptCheckpointError, match="shape"):
        hub.TCL.from_pretrained(REPO)


def test_the_newest_tagged_version_is_taken_not_what_was_pushed_last(server, tmp_path):
    commits = {}
    for version in ("1.0.0", "1.10.0", "1.9.0", "2.0.0-rc.1"):
        small("tcl").save(tmp_path)
        rewrite_config(tmp_path, version=version)
        commits[version] = server.add(REPO, tmp_path)
        server.repos[REPO].tag(f"v{version}", commits[version])
    assert hub.TCL.from_pretrained(REPO).checkpoint.config.version == "1.10.0"
    for revision in ("v1.9.0", commits["1.9.0"]):
        assert hub.TCL.from_pretrained(REPO, revision=revision).checkpoint.config.version == "1.9.0"
    server.requests.clear()
    offline = hub.TCL.from_pretrained(REPO, local_files_only=True)
    assert offline.checkpoint.config.version == "1.10.0"
    assert server.requests == []


def test_versions_are_ordered_as_versions():
    assert newest_version(["v1.9.0", "v1.10.0", "main", "v1", "v2.0.0-rc.1"]) == "v1.10.0"
    assert newest_version(["v2.0.0-rc.1"]) == "v2.0.0-rc.1"
    assert newest_version(["main"]) is None


def test_what_the_hub_does_not_have(server, tmp_path):
    with pytest.raises(NotInSourceError):
        hub.TCL.from_pretrained("lab/none")
    small("tcl").save(tmp_path)
    server.add(REPO, tmp_path)
    with pytest.raises(RevisionMissingError):
        hub.TCL.from_pretrained(REPO, revision="v9.9.9")
    with pytest.raises(OfflineError):
        hub.TCL.from_pretrained(REPO, local_files_only=True)


def test_tchubs_own_word_for_offline_holds(server, tmp_path, monkeypatch):
    small("tcl").save(tmp_path)
    server.add(REPO, tmp_path)
    hub.TCL.from_pretrained(REPO)
    server.requests.clear()
    monkeypatch.setenv("TCHUB_OFFLINE", "1")
    assert hub.TCL.from_pretrained(REPO).checkpoint.config.arch == "tcl"
    assert server.requests == []


def test_a_hub_that_hangs_is_not_waited_for_for_ever(server, monkeypatch):
    monkeypatch.setattr("tchub.hub.registry.pretrained_source.ANSWER_SECONDS", 0.2)
    server.faults.stall("/refs", lost=True)
    with pytest.raises(NetworkError, match="the Hub hangs"):
        hub.TCL.from_pretrained(REPO)


def test_a_file_that_is_larger_than_any_checkpoint_is_not_fetched(server, tmp_path):
    small("tcl").save(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * ((1 << 20) + 1))
    server.add(REPO, tmp_path)
    with pytest.raises(IntegrityError, match="more than any checkpoint"):
        hub.TCL.from_pretrained(REPO)
    assert server.downloads() == []


def test_a_revision_of_what_has_none(tmp_path):
    with pytest.raises(RevisionError):
        hub.TCL.from_pretrained(tmp_path, revision="main")
    with pytest.raises(RevisionError, match="tcl-epyc"):
        hub.TCL.from_pretrained("tcl-epyc", revision="1.0.0")


def test_a_network_that_was_made_and_not_loaded_cannot_be_saved(tmp_path):
    network = hub.TCL(get_architecture("tcl").config())
    assert isinstance(network, PretrainedNetwork)
    with pytest.raises(NoFactsError):
        network.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_card_that_is_pushed_claims_no_scores(server, tmp_path):
    from huggingface_hub import ModelCard

    push(small("tcl"), tmp_path / "folder")
    card = ModelCard(server.repos[REPO].files()["README.md"].decode())
    assert card.data.library_name == "tchub"
    assert card.data.eval_results is None
    assert json.loads(server.repos[REPO].files()["config.json"])["arch"] == "tcl"

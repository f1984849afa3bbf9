"""Weights of a large network: in a file beside its library, read one by one, and checked before the library runs."""

import errno
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import tvm
from relax_kit import prepare
from safetensors.numpy import load_file
from tchub.hub.networks import weights
from tchub.hub.networks.errors import NetworkLoadError
from tchub.hub.networks.frontend.network import import_exported
from tchub.hub.networks.frontend.signature import Signature
from tchub.hub.networks.library import build_library
from tchub.hub.networks.manifest import write_manifest
from tchub.hub.networks.rivals import _libraries
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.relax_graph import joined
from tchub.hub.networks.tuned import bench, load_tuned
from tchub.zoo.files import file_sha256


class Tied(torch.nn.Module):
    """Its embedding is its last layer too, as in many language models, and TVM has no type for one of its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(512, 64)
        self.layer = torch.nn.Linear(64, 64)
        self.register_buffer("table", torch.randn(64, 256).bfloat16())

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.layer(self.embedding(tokens))
        return (x @ self.table.float()).relu(), x @ self.embedding.weight.T


TOKENS = torch.tensor([[1, 5, 511]])


def _compile(folder: Path) -> Path:
    exported = torch.export.export(Tied().eval(), (TOKENS,))
    mod, library = prepare(import_exported(exported, "tied")), folder / "tied.so"
    build_library(joined([mod, mod]), tvm.target.Target({"kind": "llvm", "opt-level": 0}), None, library)
    write_manifest(folder, "tied", [(library, Signature.of_exported(exported), mod)], {"kind": "llvm"}, threads=1)
    return library


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(weights, "_BESIDE", 100_000)
    return _compile(tmp_path)


@torch.no_grad()
def test_it_computes_the_same_wherever_it_runs(library: Path) -> None:
    tensors = load_file(weights.weights_file(library))
    assert sum(one.nbytes for one in tensors.values()) >= Tied().embedding.weight.nbytes
    rights = weights.weights_file(library).stat().st_mode & 0o077
    assert rights == library.stat().st_mode & 0o066, "who may read one may both"
    assert not any(one.tobytes() in library.read_bytes() for one in tensors.values()), "the library has none of them"
    expected = Tied()(TOKENS)
    tuned, path = load_tuned(library.parent), (str(library), file_sha256(library))
    runs = _libraries({"libraries": {"untuned": path, "untuned/main_1": path}})
    for outputs in (tuned(TOKENS), *([torch.from_numpy(x.numpy()) for x in on([TOKENS])()] for on in runs.values())):
        torch.testing.assert_close(list(outputs), list(expected))
    assert bench(tuned, seconds=0.1)[0].median > 0


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x")])
def test_weights_that_are_missing_or_changed_are_refused(library: Path, damage: Any) -> None:
    damage(weights.weights_file(library))
    message = r"tied.so.safetensors is missing, or has not the weights that were tuned"
    with pytest.raises(NetworkLoadError, match=message):
        load_tuned(library.parent)


def test_a_small_network_has_all_in_its_library_and_an_older_file_goes(library: Path, monkeypatch: Any) -> None:
    monkeypatch.undo()
    assert weights.weights_file(library).is_file()
    _compile(library.parent)
    assert not weights.weights_file(library).exists()
    load_tuned(library.parent)(TOKENS)


@pytest.mark.parametrize("room", [True, False])
@torch.no_grad()
def test_a_large_programs_weights_leave_the_memory_where_the_disk_has_room(room: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(weights, "LARGE", 100_000)
    monkeypatch.setattr(weights, "_WORTH_A_FILE", 1 << 14)
    exported = torch.export.export(Tied().eval(), (TOKENS,))
    before = {name: tensor.data_ptr() for name, tensor in exported.state_dict.items()}
    if not room:
        monkeypatch.setattr(weights.os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
    stored = weights.weights_on_disk(exported).state_dict
    moved = {name for name, tensor in stored.items() if tensor.data_ptr() != before[name]}
    assert moved == ({"embedding.weight", "layer.weight", "table"} if room else set())
    for ours, right in zip(exported.module()(TOKENS), Tied()(TOKENS), strict=True):
        assert torch.equal(ours, right)


def test_a_users_own_tensors_stay_where_they_are(network_of: Any, monkeypatch: Any) -> None:
    """Also those of half precision, which are cast."""
    monkeypatch.setattr(weights, "LARGE", 100_000)
    monkeypatch.setattr(weights, "_WORTH_A_FILE", 1 << 14)
    layers = torch.nn.Linear(256, 256).bfloat16(), torch.nn.Linear(256, 256)
    module = network_of(lambda half, table, x: half(x).float() @ table.weight, *layers)
    before = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    open_network(module, [torch.randn(1, 256).bfloat16()]).export()
    assert {name: tensor.data_ptr() for name, tensor in module.state_dict().items()} == before


def test_a_file_of_the_user_beside_the_library_stays(tmp_path: Path) -> None:
    own = tmp_path / "tied.safetensors"
    own.write_bytes(b"a checkpoint")
    _compile(tmp_path)
    assert own.read_bytes() == b"a checkpoint"

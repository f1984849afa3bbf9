"""What `open_network` takes: names, files and configs; and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tchub.hub.networks.errors import NetworkImportError, NetworkLoadError
from tchub.hub.networks.sources import open_network
from tiny_network import Tiny


def test_names_files_and_configs_are_networks(tmp_path: Path, pt2: Path) -> None:
    assert open_network("bert-tiny").origin == "suite"
    network = open_network(pt2)
    assert (network.name, network.origin) == ("tiny", "pt2")
    assert open_network(network) is network
    (x,) = network.inputs()
    expected = Tiny().eval()(x)
    assert all(torch.allclose(a, b) for a, b in zip(network.module()(x), expected, strict=True))


class Counting(torch.nn.Module):
    """Writes to a buffer, by itself and in batch norm's training mode, and to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(24)
        self.register_buffer("calls", torch.zeros(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.relu_()) + self.calls.add_(1.0)


def test_a_network_that_changes_its_state_or_its_input_is_refused_before_it_is_tuned(tmp_path: Path) -> None:
    x = torch.randn(2, 24)
    torch.export.save(torch.export.export(Counting(), (x,)), tmp_path / "net.pt2")
    with pytest.raises(NetworkImportError, match=r"net writes to .* a compiled network keeps no state") as caught:
        open_network(tmp_path / "net.pt2").relax_module()
    assert {"norm.running_mean", "calls", "x"} <= set(caught.value.fields["written"])
    assert "export it after .eval()" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("missing.pt2", None, NetworkLoadError),
        ("no-such-network", None, NetworkLoadError),
        ("broken.pt2", b"not a zip", NetworkImportError),
        ("broken.onnx", b"\x00\x01", NetworkImportError),
        ("notes.txt", b"hello", NetworkImportError),
        ("odd.json", b'{"a": 1}', NetworkImportError),
    ],
)
def test_what_is_no_network_is_said(tmp_path: Path, name: str, content: bytes | None, error: type) -> None:
    source = tmp_path / name if "." in name else name
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error) as found:
        open_network(source)
    assert found.value.remedy

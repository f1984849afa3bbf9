"""Results that take the memory of an argument which nothing reads afterwards."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.library import build_library
from torch import nn

Build = Callable[..., tuple[bytes, list[np.ndarray]]]


@pytest.fixture
def build(tmp_path: Path, target: Any, prepared: Any, run_library: Any) -> Build:
    """Return a library's bytes, which name its kernels, and what it computes."""

    def compiled(module: nn.Module, x: torch.Tensor, layout: str = LAYOUTS[0]) -> tuple[bytes, list[np.ndarray]]:
        path = tmp_path / "network.so"
        build_library(prepared(module.eval(), x, layout=layout), target, None, path)
        return path.read_bytes(), list(run_library(path, x))

    return compiled


class Stream(nn.Module):
    """Blocks that are added to a stream, as in a residual network."""

    def __init__(self, blocks: int = 2, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stream = self.first(x).relu()
        for block in self.blocks:
            stream = block(stream.relu() + 1) + stream
        return stream.mean((2, 3))


def test_what_a_block_adds_to_a_stream_is_stored_in_the_stream(build: Build) -> None:
    module, x = Stream(), torch.randn(1, 3, 16, 16)
    kernels, (output,) = build(module, x)
    assert b"_in_place" in kernels
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def kept(self: Any, x: torch.Tensor) -> torch.Tensor:
    stream = self.first(x).relu()
    added = self.blocks[0](stream + 1) + stream
    return self.blocks[1](added) * stream.mean((2, 3), keepdim=True)


def returned(self: Any, x: torch.Tensor) -> Any:
    stream = self.first(x).relu()
    return self.blocks[0](stream + 1) + stream, stream


def given(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def convolved(self: Any, x: torch.Tensor) -> torch.Tensor:
    stream = self.first(x).relu()
    return self.blocks[0](stream) + stream


def broadcast(self: Any, x: torch.Tensor) -> torch.Tensor:
    stream = self.first(x).amax((2, 3), keepdim=True)
    return self.blocks[0](x.repeat(1, 11, 1, 1)[:, :32]) + stream


def branched(self: Any, x: torch.Tensor) -> Any:
    stream = self.first(x).relu()
    other = torch.cond(x.sum() > 0, lambda s: s.clone(), lambda s: s * 2, (stream,))
    return self.blocks[0](stream + 1) + stream, other


@pytest.mark.parametrize(
    "forward",
    [kept, returned, given, convolved, broadcast, branched],
    ids=["read again", "an output", "an input", "read by its windows", "of another shape", "of a branch"],
)
def test_an_argument_that_is_needed_keeps_its_memory(
    forward: Callable[..., Any], build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stream, "forward", forward)
    module, x = Stream(), torch.rand(1, 3, 16, 16)
    before = x.clone()
    kernels, outputs = build(module, x, LAYOUTS[forward is branched])
    assert b"_in_place" not in kernels
    expected = module(x)
    for ours, theirs in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert torch.equal(x, before)

"""Batch norms are computed ahead: what follows weights becomes a part of them, with a bias between or not."""

import numpy as np
import pytest
import torch
from relax_kit import calls, compute, name_of
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.prepare import for_inference, lower
from torch import nn

IMAGE, ROW, VOLUME, TABLE = (2, 4, 6, 6), (2, 4, 9), (1, 4, 3, 4, 5), (3, 4)
FACTORS = ("multiply", "divide", "subtract", "nn.batch_norm")


def settled(norm: nn.Module) -> nn.Module:
    """Give a batch norm statistics, a factor and a term of its own for each channel."""
    torch.manual_seed(1)
    for value in norm.state_dict().values():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 2.0)
    return norm


@pytest.mark.parametrize(
    ("weighted", "norm", "shape"),
    [
        (nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), IMAGE),
        (nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8), IMAGE),
        (nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), ROW),
        (nn.Conv1d(4, 6, 3, bias=False), nn.BatchNorm1d(6, affine=False), ROW),
        (nn.Conv3d(4, 6, 2), nn.BatchNorm3d(6), VOLUME),
        (nn.ConvTranspose2d(4, 6, 2, stride=2), nn.BatchNorm2d(6), IMAGE),
        (nn.Linear(4, 6), nn.BatchNorm1d(6), TABLE),
        (nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), TABLE),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else "",
)
def test_a_batch_norm_becomes_a_part_of_the_weights_before_it(
    weighted: nn.Module, norm: nn.Module, shape: tuple[int, ...]
) -> None:
    graph, module, x = _prepared(nn.Sequential(weighted, settled(norm)), shape)
    assert not [name_of(call) for call in calls(graph, *FACTORS)]
    np.testing.assert_allclose(compute(lower(graph), x)[0], module(x).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("before", "channels", "shape"),
    [
        (nn.ReLU(), 4, IMAGE),
        (nn.ConvTranspose2d(4, 6, 2, groups=2), 6, IMAGE),  # whose weights count the channels of each group alone
        (nn.Sequential(nn.Linear(6, 5), nn.ReLU()), 4, IMAGE),
        (nn.Linear(6, 5), 4, IMAGE),  # along another axis than the weights' columns
    ],
    ids=("activation", "grouped", "between", "axis"),
)
def test_another_batch_norm_is_a_factor_and_a_term(before: nn.Module, channels: int, shape: tuple[int, ...]) -> None:
    graph, module, x = _prepared(nn.Sequential(before, settled(nn.BatchNorm2d(channels))), shape)
    assert [name_of(call) for call in calls(graph, *FACTORS)] == ["multiply"]
    np.testing.assert_allclose(compute(lower(graph), x)[0], module(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_batch_norm_of_doubles_stays_one_of_doubles() -> None:
    module, x = nn.Sequential(nn.ReLU(), settled(nn.BatchNorm2d(4))).double().eval(), torch.randn(IMAGE).double()
    graph = for_inference(open_network(module, (x,)).imported())
    np.testing.assert_allclose(compute(lower(graph), x)[0], module(x).detach(), rtol=1e-12)


def test_weights_whose_sum_is_read_elsewhere_stay() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 6, 3), settled(nn.BatchNorm2d(6))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.conv(x)
            return y, self.norm(y)

    graph, module, x = _prepared(Twice(), IMAGE)
    assert len(calls(graph, "nn.conv2d")) == 1
    for result, expected in zip(compute(lower(graph), x), module(x), strict=True):
        np.testing.assert_allclose(result, expected.detach(), rtol=1e-4, atol=1e-5)


def _prepared(module: nn.Module, shape: tuple[int, ...]) -> tuple[object, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(shape)
    return for_inference(open_network(module.eval(), (x,)).imported()), module, x

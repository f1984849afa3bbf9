"""Convolutions of one tensor that are added are one convolution, which computes the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import Computed, calls, compute
from tchub.hub.networks.sources import open_network
from tchub.hub.networks.transform.prepare import for_inference, lower
from torch import nn

IMAGE, VOLUME = (2, 8, 7, 6), (1, 8, 4, 5, 6)
CONVOLUTIONS = ("nn.conv2d", "nn.conv3d", "matmul")


def with_norm(module: nn.Module) -> nn.Module:
    """Return a module with a batch norm behind it, which has statistics, a factor and a term of its own."""
    norm = nn.BatchNorm2d(8)
    for value in norm.state_dict().values():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 2.0)
    return nn.Sequential(module, norm)


def of_channels(size: int) -> nn.Module:
    """Return a convolution of each channel alone."""
    return nn.Conv2d(8, 8, size, padding=size // 2, groups=8)


def branches(*parts: nn.Module) -> tuple[Any, list[nn.Module]]:
    """Return what gives several modules one tensor and adds their results, and the modules."""
    return lambda *args: torch.relu(sum(part(args[-1]) for part in args[:-1])), [*parts]


def prepared(shape: tuple[int, ...], function: Callable[..., Any], parts: list[nn.Module]) -> tuple[Any, Any, Any]:
    """Return the graph of a function of modules and a tensor, its result, and the tensor."""
    torch.manual_seed(0)
    module, x = Computed(function, *parts).eval(), torch.randn(shape)
    return for_inference(open_network(module, (x,)).imported()), module(x).detach(), x


JOINED = {
    "a block of RepVGG": branches(
        with_norm(nn.Conv2d(8, 8, 3, padding=1, bias=False)), with_norm(nn.Conv2d(8, 8, 1)), with_norm(nn.Identity())
    ),
    "a block of MobileOne": branches(*(with_norm(of_channels(size)) for size in (3, 3, 1)), with_norm(nn.Identity())),
    "a mixer of FastViT": (
        lambda a, b, scale, x: x + scale.weight.reshape(8, 1, 1) * (a(x) - b(x)),
        [with_norm(of_channels(3)), with_norm(nn.Identity()), nn.Linear(8, 1)],
    ),
    "a factor behind it": (
        lambda a, b, scale, x: scale.weight.reshape(8, 1, 1) * (a(x) + b(x)),
        [of_channels(3), of_channels(1), nn.Linear(8, 1)],
    ),
    "strides": branches(nn.Conv2d(8, 4, 3, 2, 1), nn.Conv2d(8, 4, 1, 2)),
    "groups, and the input": branches(
        nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.Conv2d(8, 8, 1, groups=2), nn.Identity()
    ),
    "kernels along an axis": branches(
        *(nn.Conv2d(8, 4, size, padding=(size[0] // 2, size[1] // 2)) for size in ((1, 3), (3, 3), (3, 1)))
    ),
    "an atrous kernel": branches(nn.Conv2d(8, 4, 3, padding=2, dilation=2), nn.Conv2d(8, 4, 1)),
}


@pytest.mark.parametrize(("function", "parts"), JOINED.values(), ids=JOINED)
def test_a_sum_of_convolutions_is_one(function: Any, parts: list[nn.Module]) -> None:
    graph, expected, x = prepared(IMAGE, function, parts)
    assert len(calls(graph, *CONVOLUTIONS)) == 1
    assert not calls(graph, "multiply", "subtract")
    assert len(calls(graph, "permute_dims")) == 2  # all between the input and the result is channels-last
    np.testing.assert_allclose(compute(lower(graph), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_a_sum_of_convolutions_of_a_volume_is_one() -> None:
    graph, expected, x = prepared(VOLUME, *branches(nn.Conv3d(8, 4, 3, padding=1), nn.Conv3d(8, 4, 1)))
    assert len(calls(graph, *CONVOLUTIONS)) == 1
    np.testing.assert_allclose(compute(lower(graph), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_each_of_several_sums_is_one_whoever_reads_it() -> None:
    def function(a: Any, b: Any, c: Any, d: Any, x: Any) -> Any:
        y = a(x) + b(x) + x
        y = torch.maximum(torch.tanh(y), torch.sin(y))
        return c(y) + d(y) + y

    graph, expected, x = prepared(IMAGE, function, [of_channels(size) for size in (3, 1, 5, 3)])
    assert len(calls(graph, *CONVOLUTIONS)) == 2
    assert len(calls(graph, "add")) == 4  # biases, and the inputs as they are
    np.testing.assert_allclose(compute(lower(graph), x)[0], expected, rtol=1e-4, atol=1e-5)


def test_what_else_is_added_stays() -> None:
    def function(a: Any, b: Any, c: Any, d: Any, x: Any) -> Any:
        y = torch.tanh(x)
        return a(x) - c(y) + 0.5 * y + b(x) - d(y)

    graph, expected, x = prepared(IMAGE, function, [of_channels(size) for size in (3, 1, 5, 3)])
    assert len(calls(graph, *CONVOLUTIONS)) == 2
    np.testing.assert_allclose(compute(lower(graph), x)[0], expected, rtol=1e-4, atol=1e-5)


def read_twice(a: nn.Module, b: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = a(x)
    return (y + b(x)) * y


APART = {
    "no kernel covers the other": (2, branches(*(nn.Conv2d(8, 4, s, padding="same") for s in ((1, 5), (5, 1))))),
    "other centres": (2, branches(nn.Conv2d(8, 4, 5, padding=1), nn.Conv2d(8, 4, 3, padding=0))),
    "other dilations": (2, branches(of_channels(3), nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8))),
    "other groups": (2, branches(of_channels(3), nn.Conv2d(8, 8, 3, padding=1))),
    "one that is read elsewhere": (2, (read_twice, [nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 1)])),
    "one convolution and its input": (1, branches(of_channels(3), nn.Identity())),
}


@pytest.mark.parametrize(("count", "network"), APART.values(), ids=APART)
def test_others_stay_as_they_are(count: int, network: tuple[Any, list[nn.Module]]) -> None:
    graph, expected, x = prepared(IMAGE, *network)
    assert len(calls(graph, *CONVOLUTIONS)) == count
    np.testing.assert_allclose(compute(lower(graph), x)[0], expected, rtol=1e-4, atol=1e-5)

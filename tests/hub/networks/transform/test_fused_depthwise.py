"""A convolution and the depthwise one behind it, as one function: what it computes is what PyTorch computes."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import compute
from tchub.hub.networks.alternatives import find_alternatives
from tchub.hub.networks.transform.fused_depthwise import DepthwiseShape, Window, depthwise_convolutions
from tchub.hub.networks.transform.prepare import lower
from test_attention import TARGET, check_programs, imported, tasks_of

ACTIVATIONS = {
    "relu6": torch.nn.ReLU6,
    "silu": torch.nn.SiLU,
    "hardswish": torch.nn.Hardswish,
    "none": torch.nn.Identity,
}


class Bottleneck(torch.nn.Module):
    """An inverted bottleneck with batch norms, as MobileNet and EfficientNet have it."""

    def __init__(self, activation: str = "relu6", channels: int = 64, **depthwise: Any) -> None:
        super().__init__()
        self.act = ACTIVATIONS[activation]()
        self.expand, self.norm = torch.nn.Conv2d(8, channels, 1, bias=False), torch.nn.BatchNorm2d(channels)
        self.filter = torch.nn.Conv2d(channels, channels, groups=channels, **{"kernel_size": 3, **depthwise})
        self.project = torch.nn.Conv2d(channels, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(self.act(self.filter(self.act(self.norm(self.expand(x))))))


@pytest.mark.parametrize(
    ("activation", "filters"),
    [
        ("relu6", {"padding": 1}),
        ("silu", {"kernel_size": 5, "stride": 2, "padding": 2}),
        ("hardswish", {"kernel_size": 7, "padding": 3}),
        ("none", {"kernel_size": (3, 1), "stride": (1, 2), "dilation": (2, 1), "bias": False}),
    ],
)
def test_a_network_with_it_computes_the_same(activation: str, filters: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module, x = Bottleneck(activation, **filters).eval(), torch.randn(2, 8, 24, 27)
    graph = imported(module, x)
    (shape,) = depthwise_convolutions(graph)
    mod = lower(graph, {shape})
    expected = module(x).detach().numpy()
    assert np.abs(compute(mod, x)[0] - expected).max() < 1e-5 * np.abs(expected).max()
    names = [var.name_hint for var in mod.functions]
    assert sum("expanded_depthwise" in name for name in names) == 1
    assert not any("conv2d" in name for name in names)


def stem(**first: Any) -> torch.nn.Module:
    """Return the first layers of such a network."""
    convolutions = torch.nn.Conv2d(3, 64, 3, **first), torch.nn.Conv2d(64, 64, 3, padding=1, groups=64)
    return torch.nn.Sequential(convolutions[0], torch.nn.ReLU6(), convolutions[1], torch.nn.ReLU6()).eval()


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_first_layer_reads_the_image_as_it_is(channels_last: bool, network_of: Any) -> None:
    module, x = stem(stride=1, padding=(2, 1)), torch.randn(1, 3, 24, 24)
    if channels_last:
        x = torch.randn(1, 24 * 24, 3)
        module = network_of(lambda first, x: first(x.unflatten(1, (24, 24)).permute(0, 3, 1, 2)), module)
    graph = imported(module, x)
    (shape,) = depthwise_convolutions(graph)
    assert shape == DepthwiseShape(
        1, 26, 24, 64, (26, 24), 3, Window((3, 3), (1, 1), (2, 1, 2, 1), (1, 1)),
        Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    )  # fmt: skip
    mod = lower(graph, {shape})
    expected = module(x).detach().numpy()
    assert np.abs(compute(mod, x)[0] - expected).max() < 1e-5 * np.abs(expected).max()
    calls = [name.rstrip("0123456789") for name in re.findall(r"call_tir\((?:cls\.)?(\w+)", mod["main"].script())]
    kernels = [name for name in calls if name != "reshape"]
    assert kernels == ["fused_expanded_depthwise_add_maximum_minimum", "transpose"]


SPACES = {
    "same": (Bottleneck(padding=1), 8),
    "strides": (Bottleneck(kernel_size=7, stride=2, padding=3), 8),
    "columns left out": (Bottleneck(stride=2), 8),
    "first layer": (stem(stride=2, padding=1), 3),
}


@pytest.mark.parametrize(("module", "inputs"), SPACES.values(), ids=SPACES)
def test_every_program_of_its_space_reads_scores_and_is_right(
    module: torch.nn.Module, inputs: int, result_of: Any
) -> None:
    """Bands of rows overlap by what a filter reads, the last columns too where a stride leaves some out."""
    size = 48 if inputs == 3 else 24
    graph = imported(module, torch.randn(1, inputs, size, size))
    added, (alternative,) = find_alternatives(graph, tasks_of(lower(graph)), TARGET, "net")
    (task,) = added
    assert dict(alternative.other) == {task.task_id: 1}
    assert sum(alternative.direct.values()) >= 2
    space = check_programs(task, result_of)
    assert len(space.slots) == 4  # vectors of channels, rows, columns, and columns of the expanded image
    assert space.size > 10


def shapes_of(module: torch.nn.Module, *shape: int) -> set[DepthwiseShape]:
    return depthwise_convolutions(imported(module, torch.randn(shape)))


def test_it_takes_images_that_are_large_enough_and_used_nowhere_else() -> None:
    class Twice(Bottleneck):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.act(self.norm(self.expand(x)))
            return self.filter(y) + y

    (shape,) = shapes_of(Bottleneck(padding=1), 1, 8, 24, 24)
    assert (shape.height, shape.inputs, shape.channels, shape.extents) == (24, 8, 64, (24, 24))
    assert not shapes_of(Bottleneck(padding=1), 1, 8, 16, 16)  # stays in the caches between two functions
    assert not shapes_of(Bottleneck(channels=68), 1, 8, 24, 24)  # no vector register divides the channels
    assert not shapes_of(Twice(padding=1), 1, 8, 24, 24)
    plain = Bottleneck()
    plain.filter = torch.nn.Conv2d(64, 64, 3)
    assert not shapes_of(plain, 1, 8, 24, 24)

"""Pools, resizing, grids and transposed convolutions of images and volumes: compiled networks beside PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from relax_kit import compute, prepare
from tchub.hub.networks import LAYOUTS
from tchub.hub.networks.errors import NetworkImportError
from tchub.hub.networks.sources import open_network
from torch import Tensor, nn
from torch.nn import functional as F

Equal = Callable[..., None]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_maxima_are_put_back_where_they_were(equal: Equal, layout: str) -> None:
    def segmented(x: Tensor) -> Any:
        small, first = F.max_pool2d(x, 2, return_indices=True)
        least, second = F.max_pool2d(small, 3, 2, 1, return_indices=True)
        wider = F.max_unpool2d(least, second, 3, 2, 1, output_size=small.shape[-2:])
        wide = F.max_unpool2d(wider, first, 2, output_size=x.shape[-2:])
        return wide, first, second, F.max_pool2d(x, (2, 3), (1, 2)), F.max_pool2d(x, 3, 2, ceil_mode=True)

    equal(segmented, torch.randn(2, 3, 9, 8), layout=layout)


def test_places_of_maxima_in_volumes_and_in_windows_that_are_apart_or_not_whole(equal: Equal) -> None:
    def pooled(x: Tensor) -> Any:
        image = x[:, 0].relu()
        apart = F.max_pool2d(image, 2, dilation=2, return_indices=True)
        return (
            *apart,
            *F.max_pool2d(image, (3, 2), 2, (1, 0), ceil_mode=True, return_indices=True),
            F.max_pool2d(image.log(), 3, 2, 1, return_indices=True)[1],  # some windows hold -inf alone
            *F.max_pool3d(x, 2, return_indices=True),
            *F.adaptive_max_pool3d(x.relu(), (3, 2, 4), return_indices=True),
        )

    equal(pooled, torch.randn(1, 2, 4, 5, 6))


def test_images_are_padded_pooled_and_resized(equal: Equal) -> None:
    def images(x: Tensor) -> Any:
        padded = F.pad(x, (1, 2, 2, 0), mode="reflect"), F.pad(x, (1, 2, 2, 0), mode="replicate")
        pooled = F.adaptive_max_pool2d(x, 4), F.avg_pool2d(x, 2, divisor_override=3), F.max_pool2d(x, 2, dilation=2)
        resized = (
            F.interpolate(x, size=(7, 9)),
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
        )
        pooled = *pooled, *F.adaptive_max_pool2d(x.relu(), (4, 5), return_indices=True)
        pooled = *pooled, F.adaptive_avg_pool2d(x, (4, 5)), F.adaptive_avg_pool2d(x, 9)
        return *padded, *pooled, *resized, F.group_norm(x, 2), F.unfold(x, 3), F.selu(x)

    equal(images, torch.randn(1, 2, 6, 8))


def test_averages_divide_by_what_is_asked_for_and_round_up(equal: Equal) -> None:
    def averages(x: Tensor) -> Any:
        return (
            F.avg_pool2d(x, 2, ceil_mode=True, divisor_override=3),
            F.avg_pool2d(x, 3, 2, 1, True, False, 5),
            F.avg_pool2d(x, 3, 3, 1, True, divisor_override=7),  # no window begins in the last border
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, divisor_override=5),
            F.avg_pool3d(x[None], 2, ceil_mode=True, divisor_override=3),
            F.avg_pool2d(x, 50_000, ceil_mode=True, divisor_override=3),
            F.avg_pool2d(x[0], 3, 2, divisor_override=5),  # of an image alone, as the next ones
            F.avg_pool1d(x[0, 0], 3, 2),
            F.avg_pool3d(x, 2, divisor_override=3),
        )

    equal(averages, torch.randn(1, 4, 7, 9))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_windows_larger_than_the_image_are_of_its_size(equal: Equal, layout: str) -> None:
    """As EfficientNet's, whose head averages a window of as many pixels as there are channels."""

    def pooled(x: Tensor) -> Any:
        head = F.avg_pool2d(x, 50_000, ceil_mode=True), F.avg_pool2d(x, (50_000, 2), padding=1, ceil_mode=True)
        return *head, F.max_pool2d(x, 50_000, ceil_mode=True), F.avg_pool1d(x[0], 50_000, ceil_mode=True)

    equal(pooled, torch.randn(1, 3, 7, 9) + 1, layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_keep_the_small_deviation_of_large_numbers(layout: str, network_of: Any) -> None:
    """An image of 100 give or take 0.1, in which TVM's own norms leave no digit right."""
    learnt = nn.InstanceNorm2d(8, track_running_stats=True)
    parts = nn.GroupNorm(4, 8), nn.GroupNorm(8, 8, affine=False), nn.InstanceNorm2d(8, affine=True), learnt

    def norms(*parts_and_x: Any) -> Any:
        *parts, x = parts_and_x
        weight = x.reshape(1, 16, -1)  # as standardised weights are
        own = F.batch_norm(x, None, None, training=True), F.batch_norm(weight, None, None, training=True)
        return *own, *(part(x) for part in parts), F.group_norm(x.mean((2, 3)), 4)

    network, x = network_of(norms, *parts).eval(), 0.1 * torch.randn(2, 8, 9, 7) + 100
    for part in (parts[0], parts[2]):
        nn.init.normal_(part.weight)
        nn.init.normal_(part.bias)
    ours = compute(prepare(open_network(network, (x,)).imported(), layout), x)
    with torch.no_grad():
        exact = network.double()(x.double())
    for number, (one, right) in enumerate(zip(ours, exact, strict=True)):
        np.testing.assert_allclose(one, right, rtol=1e-3, atol=1e-3 * right.abs().max(), err_msg=f"output {number}")


def test_norms_of_half_precision_are_computed_in_single(equal: Equal) -> None:
    """Squares of 400 are beyond float16; a weight may be of another type than the image."""
    weight = torch.rand(6)

    def normed(x: Tensor) -> Any:
        half = x.to(torch.float16)
        normalised = F.group_norm(half, 2), F.group_norm(half, 2, weight, weight)
        return tuple(each.float() for each in normalised)

    equal(normed, 400 * torch.randn(2, 6, 5, 4))


def test_a_norm_that_learns_when_it_is_called_is_refused(network_of: Any) -> None:
    own = nn.BatchNorm2d(6, affine=False)  # of which the statistics alone are taken

    def learning(own: Any, x: Tensor) -> Tensor:
        return F.instance_norm(x, own.running_mean, own.running_var, use_input_stats=True) + own.running_mean[0]

    with pytest.raises(NetworkImportError, match=r"writes to .*running_mean, .*running_var"):
        open_network(network_of(learning, own).eval(), (torch.randn(2, 6, 5, 4),)).imported()


def test_volumes_are_sampled_at_the_places_of_a_grid(equal: Equal) -> None:
    ways = ("bilinear", "zeros", False), ("nearest", "border", True)
    ways = *ways, ("bilinear", "reflection", False), ("bilinear", "reflection", True)

    def sampled(x: Tensor, grid: Tensor) -> Any:
        return tuple(F.grid_sample(x, grid, *way) for way in ways)

    equal(sampled, torch.randn(2, 2, 4, 5, 6), torch.rand(2, 3, 2, 2, 3) * 3 - 1.5)


def test_images_shrink_and_grow_smoothly_by_cubic_weights(equal: Equal) -> None:
    def resized(x: Tensor) -> Any:
        return [F.interpolate(x, size=size, mode="bicubic", antialias=True) for size in ((4, 5), (13, 8), (3, 20))]

    equal(resized, torch.randn(1, 2, 9, 11))


def test_transposed_convolutions_of_volumes(equal: Equal) -> None:
    convolution = nn.ConvTranspose3d(4, 6, (3, 2, 4), stride=(2, 1, 3), padding=1, output_padding=(1, 0, 1), groups=2)
    equal(convolution, torch.randn(1, 4, 4, 3, 3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_transposed_convolution_between_others_keeps_its_own_layout(equal: Equal, layout: str) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 4, 2, 1, groups=2), nn.Conv2d(4, 2, 3))
    equal(layers, torch.randn(1, 3, 10, 10), layout=layout)

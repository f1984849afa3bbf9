"""Networks with random weights have outputs that a check can compare."""

from __future__ import annotations

import torch
from tchub.hub.networks.transformers_config import settle_batch_norms
from torch import nn


def test_a_deep_untrained_network_keeps_its_activations_near_one() -> None:
    torch.manual_seed(0)
    layers = [
        layer for _ in range(30) for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    ]
    network, x = nn.Sequential(*layers).eval(), torch.randn(1, 8, 6, 6)
    assert float(network(x).std()) < 1e-6
    assert 1e-2 < float(settle_batch_norms(network, x)(x).std()) < 1e2


def test_a_norm_of_one_number_a_channel_is_settled_over_its_channels() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(64).eval()
    x = 0.01 * torch.randn(1, 64, 1, 1)
    assert 0.01 < float(settle_batch_norms(norm, x)(x).std()) < 10


def test_networks_without_statistics_are_left_alone() -> None:
    linear = nn.Linear(4, 4)
    before = linear.weight.clone()
    assert torch.equal(settle_batch_norms(linear, torch.randn(1, 4)).weight, before)
    untracked = nn.BatchNorm1d(4, track_running_stats=False).eval()
    assert settle_batch_norms(untracked, torch.randn(2, 4)) is untracked

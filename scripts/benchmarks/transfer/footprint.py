"""What a model costs to store and to run, and what sharing it among devices by a head for each adds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tchub.zoo.adapt.layers import in_head
from tchub.zoo.models import CostModel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Footprint:
    """Size and work of a model that serves some devices.

    Attributes:
        parameters: trained numbers, exactly.
        flops: floating-point operations that score one program for all devices, counted by PyTorch on a real
            forward pass: products of matrices, convolutions and attention, without element-wise operations.
    """

    parameters: int
    flops: float


def head_parameters(model: CostModel) -> int:
    """Return the trained numbers of a network's head."""
    return sum(p.numel() for name, p in model.named_parameters() if in_head(name))


def footprint(model: CostModel, features: np.ndarray, devices: int = 1) -> Footprint:
    """Return the footprint of a network, with a head for each device where there are several.

    The trunk counts once. A network without heads of devices, such as a knowledge base, costs the same for any
    number of them: leave `devices` at 1.

    Args:
        model: a network of the zoo.
        features: (N, rows, width) programs, N >= 1; the work is their mean.
        devices: number of heads.
    """
    whole, head = _count_flops(model, features)
    more = devices - 1
    return Footprint(model.parameter_count() + more * head_parameters(model), (whole + more * head) / len(features))


def _count_flops(model: CostModel, features: np.ndarray) -> tuple[int, int]:
    """Operations of a forward pass, and those of them in the head."""
    weight, was_training = next(model.parameters()), model.training
    model.eval()
    x = torch.from_numpy(features).to(weight.device, weight.dtype)
    # Attention and recurrences in their plain forms, of whose parts PyTorch knows the work.
    with (
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),  # pyright: ignore[reportArgumentType]
        FlopCounterMode(display=False) as counter,
    ):
        model(x)
    model.train(was_training)
    counts = {name: sum(operations.values()) for name, operations in counter.get_flop_counts().items()}
    head = [n for n in counts if in_head(n) and not (n.rpartition(".")[0] in counts and in_head(n.rpartition(".")[0]))]
    return counter.get_total_flops(), sum(counts[name] for name in head)

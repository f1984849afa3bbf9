"""Networks of one quantised product, what they compute exactly, and what their programs compute."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import tvm
from relax_kit import build, linked, relax_of
from tchub.hub.device.host_facts import read_host_facts
from tchub.hub.device.saturation import saturating
from tchub.hub.device.tile_registers import byte_factors, with_tile_registers
from tchub.hub.device.weight_prefetch import prefetch_weights
from tchub.hub.networks.tasks import TuningTask
from tchub.hub.networks.transform.prepare import for_inference, lower
from tchub.hub.search.candidates import random_candidates
from tchub.zoo.tile_instructions import TILES, VECTORS, Factors
from tile_kit import X86, tile_tasks
from torch import nn
from torch.nn import functional
from tvm.target import Target

Pair = tuple[Factors, ...]
UNSIGNED, SIGNED = (0, 255), (-128, 127)


def codes(x: torch.Tensor, scale: float, zero: int, limits: tuple[int, int] = UNSIGNED) -> torch.Tensor:
    """Return the whole numbers that a tensor is quantised to."""
    return ((x / scale).round() + zero).clamp(*limits)


class Quantised(nn.Module):
    """A product of quantised data and weights with a bias, whose result is quantised, too.

    Args:
        product: of data and weights.
        weights: their extents; each output has a scale of its own.
        zero: point of the data; limits: of their numbers; shift: zero point of the result.
    """

    def __init__(
        self,
        product: Callable[..., torch.Tensor],
        weights: tuple[int, ...],
        zero: int = 7,
        limits: tuple[int, int] = UNSIGNED,
        shift: int = 3,
    ) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.whole = torch.from_numpy(random.integers(-127, 128, weights).astype(np.float32))
        self.whole.view(weights[0], -1)[:, 0] = 127
        self.scales = torch.from_numpy(random.uniform(1e-3, 2e-3, weights[0]).astype(np.float32))
        self.bias = torch.from_numpy(random.integers(-500, 500, weights[0]).astype(np.float32))
        self.product, self.zero, self.limits, self.shift = product, zero, limits, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ones = [1] * (self.whole.ndim - 1)
        weights = self.whole * self.scales.reshape(-1, *ones)
        data = (codes(x, 0.05, self.zero, self.limits) - self.zero) * 0.05
        result = self.product(data, weights, self.bias * (self.scales * 0.05))
        return (codes(result, 0.1, self.shift, self.limits) - self.shift) * 0.1

    def exact(self, x: torch.Tensor) -> np.ndarray:
        """Return the result as ONNX Runtime rounds it: sums of whole numbers, which are scaled once."""
        data = (codes(x, 0.05, self.zero, self.limits) - self.zero).double()
        sums = self.product(data, self.whole.double(), self.bias.double()).float()
        factor = (self.scales * np.float32(0.05)) / np.float32(0.1)
        rounded = (sums * factor.reshape(-1, *[1] * (sums.ndim - 2 if self.whole.ndim > 2 else 0))).round() + self.shift
        return ((rounded.clamp(*self.limits) - self.shift) * 0.1).numpy()


def conv(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda x, w, b: functional.conv2d(x, w, b, **options)


CASES: dict[str, tuple[Callable[[], Quantised], tuple[int, ...]]] = {
    "rows of no tile": (lambda: Quantised(functional.linear, (72, 40)), (1, 37, 40)),
    "several batches": (lambda: Quantised(functional.linear, (32, 64)), (3, 10, 64)),
    "a thousand terms": (lambda: Quantised(functional.linear, (64, 1056)), (70, 1056)),
    "rows that are read where they lie": (lambda: Quantised(functional.linear, (64, 128), 0), (64, 128)),
    "of either sign": (lambda: Quantised(functional.linear, (48, 64), 0, SIGNED), (32, 64)),
    "of either sign, shifted": (lambda: Quantised(functional.linear, (48, 64), -9, SIGNED), (32, 64)),
    "3x3": (lambda: Quantised(conv(padding=1), (64, 32, 3, 3), 0), (1, 32, 14, 14)),
    "3x3 with a zero point around it": (lambda: Quantised(conv(padding=1), (32, 48, 3, 3), 100), (2, 48, 9, 7)),
    "3x3 of stride 2": (lambda: Quantised(conv(padding=1, stride=2), (32, 32, 3, 3), 0), (1, 32, 15, 12)),
    "of a few channels": (lambda: Quantised(conv(padding=3, stride=2), (32, 3, 7, 7), 120), (1, 3, 32, 31)),
    "of a few channels, 3x3": (
        lambda: Quantised(conv(padding=2, stride=2, dilation=(2, 1)), (32, 3, 3, 3), 9),
        (2, 3, 17, 20),
    ),
    "1x1": (lambda: Quantised(conv(), (40, 24, 1, 1)), (1, 24, 8, 9)),
    "1x1 of stride 2": (lambda: Quantised(conv(stride=2), (48, 32, 1, 1)), (1, 32, 10, 10)),
}


def prepared(module: nn.Module, *inputs: torch.Tensor, of_bytes: Pair = ()) -> Any:
    return for_inference(relax_of(module, *inputs), of_bytes=of_bytes)


def lowered(module: nn.Module, *inputs: torch.Tensor, of_bytes: Pair) -> Any:
    return lower(prepared(module, *inputs, of_bytes=of_bytes))


@cache
def imported_case(case: str) -> Any:
    """Return the Relax module of a case: many tests compile it for several instructions."""
    make, shape = CASES[case]
    return relax_of(make(), torch.randn(shape))


@cache
def lowered_case(case: str, of_bytes: Pair) -> Any:
    return lower(for_inference(imported_case(case), of_bytes=of_bytes))


GRAVITON2 = {"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}
INSTRUCTIONS: dict[str, tuple[Pair, dict[str, Any], str, str]] = {
    "tiles": (TILES, X86, "amx_int8", "tdpb"),
    "vectors": (VECTORS[16], X86 | {"mcpu": "cascadelake"}, "avx512_vnni", "vpdpbusd"),
    "short vectors": (VECTORS[8], X86 | {"mcpu": "alderlake"}, "avx_vnni", "vpdpbusd"),
    "Arm's vectors": (VECTORS[4], GRAVITON2, "asimddp", "sdot"),
}
"""Factors, the target of a CPU that multiplies them, its flag and the instruction."""


def check_programs(mod: Any, instructions: str, count: int) -> None:
    """Check that programs of a network's product compute the same; on a CPU without the instructions they compile."""
    of_bytes, cpu, flag, instruction = INSTRUCTIONS[instructions]
    target = Target(cpu | {"num-cores": 2, "opt-level": 0})
    assert byte_factors(target) == of_bytes
    (task,) = tile_tasks(mod)
    untuned = _computed(task, build(task.mod))
    for one in random_candidates(task, target, count):
        code = tvm.tirx.build(with_tile_registers(saturating(prefetch_weights(one.mod, target), target)), target=target)
        assert instruction in code.inspect_source("s")
        if flag in read_host_facts().flags:
            np.testing.assert_array_equal(_computed(task, linked(code)), untuned)


def _computed(task: TuningTask, library: Any) -> np.ndarray:
    """Return what a task's program computes of random numbers."""
    random = np.random.default_rng(0)
    args = []
    for param in task.mod["main"].params:
        shape, dtype = [int(n) for n in param.ty.shape], str(param.ty.dtype)
        limits = {"uint8": UNSIGNED, "int8": SIGNED, "int32": (-99, 99), "uint32": (0, 1 << 32)}.get(dtype)
        values = random.integers(*limits, shape) if limits else random.uniform(1e-4, 1e-3, shape)
        args.append(tvm.runtime.tensor(values.astype(dtype)))
    library["main"](*args)
    return args[-1].numpy()

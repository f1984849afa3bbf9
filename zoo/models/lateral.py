"""Laterals, which join a column to a knowledge base: their layers, and what each adds (papers: TCL, equation 7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import CostModel, ModelConfig
from .errors import ModelConfigError
from .registry import get_architecture

# Where alpha starts: so small that the column begins as it would alone, but not 0, where U and V had no gradient.
ALPHA = 0.05
# Weights of a network that is built for one traced pass; no checkpoint has more (`checkpoint.MAX_WEIGHT_BYTES`).
_MAX_TRACED = 64 << 20


class Lateral(nn.Module):
    """alpha * U relu(V h + c), which equation 7 adds to a layer of the column before its nonlinearity.

    U and V have a small rank: two TCLs take the 0.7 MB that the paper gives for base and column together, so that
    nothing is left there for full matrices.
    """

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.v = nn.Linear(inputs, rank)  # V and c
        self.u = nn.Linear(rank, outputs, bias=False)
        self.alpha = nn.Parameter(torch.full((outputs,), ALPHA))

    def forward(self, h: Tensor) -> Tensor:
        """Map (..., inputs) of the base to (..., outputs)."""
        return self.alpha * self.u(functional.relu(self.v(h)))


@contextmanager
def watched(model: nn.Module, names: Iterable[str], note: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Call `note` with the name and the input of some layers whenever they run, while inside."""

    def hook(name: str, _layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        note(name, args[0])

    handles = [model.get_submodule(name).register_forward_pre_hook(partial(hook, name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def joined(layer: nn.Module, lateral: nn.Module, h: Tensor) -> Iterator[None]:
    """Add the lateral of h to the layer's output, while inside."""
    handle = layer.register_forward_hook(lambda _layer, _args, out: out + lateral(h))
    try:
        yield
    finally:  # a hook that stayed would tie the copies of a model to each other
        handle.remove()


@lru_cache(maxsize=64)
def lateral_layers(arch: str, config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a network that take a lateral, in order: name to (inputs, outputs).

    Found by one pass over two programs of ones, so they follow from the config alone. Left out are layers that
    read the raw features, in which there is no old knowledge (nothing with a gradient reaches them), and those
    that run more than once in a pass or never.

    Raises:
        ModelConfigError: the network is larger than any checkpoint may be.
    """
    with torch.device("meta"):
        model = get_architecture(arch).model(config)
    if model.parameter_count() > _MAX_TRACED:
        raise ModelConfigError(
            f"{arch}: {model.parameter_count()} weights are more than a knowledge base may have",
            remedy="make the sizes smaller",
        )
    model = model.to_empty(device="cpu").eval()
    for tensor in (*model.parameters(), *model.buffers()):
        nn.init.ones_(tensor)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    fits = _trace(model, list(layers), torch.ones(2, 3, config.width, device="cpu"))
    return {name: (layer.in_features, layer.out_features) for name, layer in layers.items() if fits.get(name)}


def _trace(model: CostModel, names: list[str], x: Tensor) -> dict[str, bool]:
    """Return the layers that ran: whether each ran once at most in a pass, on input that weights have changed."""
    fits: dict[str, bool] = {}
    for run in (model.describe, model.forward_heads):
        ran: list[tuple[str, bool]] = []
        with watched(model, names, lambda name, h, ran=ran: ran.append((name, h.requires_grad))), torch.enable_grad():
            run(x)
        times = Counter(name for name, _ in ran)
        for name, learnt in ran:
            fits[name] = fits.get(name, True) and learnt and times[name] == 1
    return fits

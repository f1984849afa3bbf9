"""A knowledge base and an active column of one architecture, joined by laterals (papers: TCL, section 6)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import MAX_DEVICES, CostModel, Loss, ModelConfig
from .context import ContextModel
from .errors import ModelConfigError
from .registry import Architecture, create, get_architecture, register_derived

SUFFIX = "-kb"
PAPER = "TCL, section 6"
# Where alpha starts: so small that the column begins as it would alone, but not 0, where U and V had no gradient.
ALPHA = 0.05
# Weights of a network that is built for one traced pass; no checkpoint has more (`checkpoint.MAX_WEIGHT_BYTES`).
_MAX_TRACED = 64 << 20
ColumnStart = Literal["base", "previous", "random"]


class ProgressiveNetwork(CostModel):
    """A base that keeps what it knows of all devices, and a column that learns the next (TCL, section 6).

    The base runs without a gradient, and the input h_{i-1} of each of its linear layers reaches the same layer of
    the column through a `Lateral` (equation 7). Its own weights and the Fisher diagonal of what it has learnt are
    all that it needs to keep old devices (elastic weight consolidation). Every network X of the zoo has an `X-kb`.

    The config is X's with two more settings: `lateral`, the rank of U and V, and `column`, whether scores are the
    column's (a device is learnt, or was: the base is frozen) or the base's (a published base, or one that is taught:
    column and laterals are frozen). What is frozen does not drop anything in training either.

    Attributes:
        of: the architecture of both parts.
        kb, column: the base and the column; lateral: by layer; fisher: see `fisher_diagonal`.
        devices: the descriptions of the devices learnt, see `known_devices`; empty where none is read.
    """

    of: ClassVar[Architecture]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        settings = config.as_dict()
        rank, answers = settings.pop("lateral"), settings.pop("column")
        own = self.of.config(**settings)
        self.kb, self.column = self.of.model(own), self.of.model(own)
        shapes = lateral_layers(self.of.name, own)
        self.lateral = nn.ModuleDict({_plain(name): Lateral(*shape, rank) for name, shape in shapes.items()})
        self._layers = tuple(shapes)
        self.fisher = nn.Module()
        for name, weight in self.kb.named_parameters():
            self.fisher.register_buffer(_plain(name), torch.zeros_like(weight, requires_grad=False))
        slot = self.kb.device_slot(torch.empty(1, 2, config.width, device="meta"))
        self.devices = nn.Module()
        if slot is not None:
            self.devices.register_buffer("rows", torch.zeros(MAX_DEVICES, slot.shape[1]))
        self._let(answers)

    @classmethod
    def around(cls, model: CostModel, lateral: int = 16, seed: int | None = None) -> "ProgressiveNetwork":
        """Return a knowledge base whose base is this model, its column a copy; the weights' Fisher diagonal is 0.

        Raises:
            ModelConfigError: the model is a knowledge base or an ensemble already.
        """
        settings = model.config.as_dict() | {"lateral": lateral, "column": True}
        network = create(model.arch + SUFFIX, seed=seed, **settings)
        assert isinstance(network, ProgressiveNetwork)
        for part in (network.kb, network.column):
            part.load_state_dict(model.state_dict())
        weight = next(model.parameters())
        return network.to(weight.device, weight.dtype).train(model.training)

    # The phases

    def learning(self) -> Self:
        """Freeze the base; column and laterals train and answer (equation 8)."""
        return self._let(True)

    def distilling(self) -> Self:
        """Freeze column and laterals; the base trains and answers (equation 9)."""
        return self._let(False)

    def _let(self, column: bool) -> Self:
        self.config = replace(self.config, **{"column": column})
        self.kb.requires_grad_(not column)
        self.column.requires_grad_(column)
        self.lateral.requires_grad_(column)
        return self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        (self.kb if self._column_answers else self.column).eval()
        return self

    def new_column(self, start: ColumnStart = "base", seed: int = 0) -> None:
        """Begin a column for another device, from the base's weights, those of the device before, or random ones.

        Laterals are drawn anew, except after `previous`.
        """
        if start == "previous":
            return
        fresh = create(self.arch, seed=seed, **self.config.as_dict())
        assert isinstance(fresh, ProgressiveNetwork)
        self.lateral.load_state_dict(fresh.lateral.state_dict())
        self.column.load_state_dict(fresh.column.state_dict() if start == "random" else self.kb.state_dict())
        if start == "random":  # the scales of columns are no weights: they are those of the base's devices
            self.column.load_state_dict(dict(self.kb.named_buffers()), strict=False)

    def fisher_diagonal(self) -> dict[str, Tensor]:
        """Return by the name of a weight of the base, in its shape, how much the devices learnt so far depend on it."""
        return {name: self.fisher.get_buffer(_plain(name)) for name, _ in self.kb.named_parameters()}

    def note_device(self, features: Tensor) -> None:
        """Keep the description of the device that programs (N, rows, width) were measured on."""
        slot = self.device_slot(features)
        if slot is None or not len(slot):
            return
        rows = self.devices.get_buffer("rows")
        row = slot[0].to(rows)
        if not (rows == row).all(dim=1).any():
            rows.copy_(torch.cat([row[None], rows[:-1]]))

    def known_devices(self) -> Tensor | None:
        """Return the descriptions of the devices learnt, latest first, (K, columns); None without any."""
        if not list(self.devices.buffers()):
            return None
        rows = self.devices.get_buffer("rows")
        filled = rows[rows.any(dim=1)]
        return filled if len(filled) else None

    # Methods of every cost model, by the part that answers

    def forward(self, x: Tensor) -> Tensor:
        return self._ask("forward", x)

    def forward_heads(self, x: Tensor) -> Tensor:
        return self._ask("forward_heads", x)

    def describe(self, x: Tensor) -> Tensor:
        return self._ask("describe", x)

    def prepare(self, features: Tensor) -> None:
        self.kb.prepare(features)
        self.column.prepare(features)

    def device_slot(self, x: Tensor) -> Tensor | None:
        return self.kb.device_slot(x)

    def admit(self, features: Tensor) -> None:
        self.kb.admit(features)
        self.column.admit(features)

    def training_loss(self, rows: Tensor, labels: Tensor, mask: Tensor, loss: Loss, rng: np.random.Generator) -> Tensor:
        return self._answering.training_loss(rows, labels, mask, loss, rng)

    def bound_loss(self, rows: Tensor, bounds: Tensor) -> Tensor:
        return self._answering.bound_loss(rows, bounds)

    @property
    def _column_answers(self) -> bool:
        return bool(getattr(self.config, "column"))  # noqa: B009 (the config's class is made at import)

    @property
    def _answering(self) -> CostModel:
        return self.column if self._column_answers else self.kb

    def _ask(self, method: str, x: Tensor) -> Tensor:
        if not self._column_answers:
            return getattr(self.kb, method)(x)
        seen: dict[str, Tensor] = {}
        with watched(self.kb, self._layers, seen.__setitem__), torch.no_grad():
            getattr(self.kb, method)(x)
        with ExitStack() as joints:
            for name, h in seen.items():
                joints.enter_context(joined(self.column.get_submodule(name), self.lateral[_plain(name)], h))
            return getattr(self.column, method)(x)


class ContextProgressiveNetwork(ProgressiveNetwork, ContextModel):
    """A `ProgressiveNetwork` of context models: the part that answers corrects its scores by measured programs."""

    def condition(self, scores: Tensor, context: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
        return self._process.condition(scores, context, measured)

    def correct(self, scores: Tensor, embeddings: Tensor, context: Tensor, level: Tensor, weights: Tensor) -> Tensor:
        return self._process.correct(scores, embeddings, context, level, weights)

    @property
    def _process(self) -> ContextModel:
        assert isinstance(self._answering, ContextModel)  # `register_knowledge_bases` chose the class by this
        return self._answering


def register_knowledge_bases() -> None:
    """Make `X-kb` known for every network X that is registered by now."""
    register_derived(
        "knowledge base", ProgressiveNetwork, ContextProgressiveNetwork,
        ending=SUFFIX, settings={"lateral": 16, "column": True}, paper=PAPER,
    )  # fmt: skip


def _plain(name: str) -> str:
    """Return a layer's or a weight's name as that of a submodule, which has no dots."""
    return name.replace(".", "-")


# Laterals, which join a column to the base: their layers, and what each adds (equation 7)


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

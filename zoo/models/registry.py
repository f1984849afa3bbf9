"""Architectures by name. A model's file registers its class; `create` builds one from plain settings.

Of every network `X` there is also a knowledge base `X-kb` and an ensemble `X-ensemble`, see `register_derived`.
"""

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass
from typing import Any, Literal, TypeVar, cast

import torch

from .base import CostModel, ModelConfig
from .context import ContextModel
from .errors import ModelConfigError

# Above any sensible size, below what would let a hostile config exhaust memory.
MAX_SIZE = 8192
# These count layers, which take time to build even where they take no memory, or rows that see each other, whose
# cost is their square.
MAX_REPEATS = 64
# Each member of an ensemble is a whole network.
MAX_MEMBERS = 8
_MOST = dict.fromkeys(("layers", "residuals", "heads", "steps", "rows"), MAX_REPEATS) | {"members": MAX_MEMBERS}

Kind = Literal["model", "knowledge base", "ensemble"]


@dataclass(frozen=True)
class Architecture:
    """One entry of the registry.

    Attributes:
        name: the first half of a checkpoint's name, e.g. "tcl" in "tcl-epyc".
        model: class taking one `config`.
        config: its config dataclass.
        schemas: its feature schemas, the usual one first.
        paper: where it is described.
        kind: "model", or a combination of several networks: a "knowledge base" (see `progressive`) or an "ensemble".
        base: the architecture of these networks; empty for a model.
    """

    name: str
    model: type[CostModel]
    config: type[ModelConfig]
    schemas: tuple[str, ...]
    paper: str
    kind: Kind = "model"
    base: str = ""


M = TypeVar("M", bound=CostModel)
_ARCHITECTURES: dict[str, Architecture] = {}


def register(
    name: str,
    config: type[ModelConfig],
    *,
    schemas: tuple[str, ...],
    paper: str,
    kind: Kind = "model",
    base: str = "",
) -> Callable[[type[M]], type[M]]:
    """Make a model known as `name`; a class decorator."""

    def add(model: type[M]) -> type[M]:
        model.arch = name
        _ARCHITECTURES[name] = Architecture(name, model, config, schemas, paper, kind, base)
        return model

    return add


def with_defaults(config: type[ModelConfig], **defaults: Any) -> type[ModelConfig]:
    """Return a config with other defaults, or further settings."""
    settings = [(name, type(value), value) for name, value in defaults.items()]
    return make_dataclass(config.__name__, settings, bases=(config,), frozen=True)


def register_derived(
    kind: Kind,
    plain: type[CostModel],
    in_context: type[CostModel],
    *,
    ending: str,
    settings: dict[str, Any],
    paper: str,
) -> None:
    """Make a combination of several networks known for every network X that is registered by now.

    Args:
        kind: the combination; paper: where it is described.
        plain, in_context: its classes, in which `of` is the `Architecture` of X; the latter for context models.
        ending: of its name, after X; settings: what its config has besides X's, with their defaults.
    """
    for name in list_architectures():
        base = get_architecture(name)
        parent = in_context if issubclass(base.model, ContextModel) else plain
        attributes = {"of": base, "__module__": plain.__module__, "__doc__": f"The {kind} of `{name}`."}
        model = cast("type[CostModel]", type(base.model.__name__ + parent.__name__, (parent,), attributes))
        config = with_defaults(base.config, **settings)
        register(name + ending, config, schemas=base.schemas, paper=paper, kind=kind, base=name)(model)


def list_architectures(kind: Kind = "model") -> list[str]:
    """Return the names that `create` takes, sorted: those that recipes train, or of knowledge bases or ensembles."""
    return sorted(name for name, known in _ARCHITECTURES.items() if known.kind == kind)


def get_architecture(name: str) -> Architecture:
    """Return the entry of one name.

    Raises:
        ModelConfigError: with the nearest names.
    """
    if name not in _ARCHITECTURES:
        known = sorted(_ARCHITECTURES)
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
        nearest = f"; nearest: {', '.join(near)}" if near else ""
        names = ", ".join(list_architectures())
        raise ModelConfigError(
            f"no architecture is called {name!r:.80}{nearest}",
            remedy=f"use one of: {names} (also with -kb or -ensemble); a newer tchub may know it",
        )
    return _ARCHITECTURES[name]


def make_config(arch: str, settings: dict[str, Any]) -> ModelConfig:
    """Return the architecture's config from plain settings, each of the right type and a sane size.

    Raises:
        ModelConfigError: no such architecture or setting, a wrong type, or a size out of its range (`most_of`).
    """
    cls = get_architecture(arch).config
    kinds = {f.name: type(f.default) for f in fields(cls)}
    for name, value in settings.items():
        _check_setting(arch, kinds, name, value)
    return cls(**settings)


def most_of(setting: str) -> int:
    """Return the largest value of a whole number of a config; the least is 1."""
    return _MOST.get(setting, MAX_SIZE)


def create(arch: str, *, seed: int | None = None, **config: Any) -> CostModel:
    """Return a new model with random weights, drawn apart from all else given a seed; see `make_config` for errors."""
    make = get_architecture(arch).model
    if seed is None:
        return make(make_config(arch, config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(make_config(arch, config))


def _check_setting(arch: str, kinds: dict[str, type], name: str, value: object) -> None:
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, n=1) or sorted(kinds)
        raise ModelConfigError(f"{arch} has no setting {name!r:.80}", remedy=f"did you mean: {', '.join(near)}?")
    kind, most = kinds[name], most_of(name)
    # A whole number is a fine float; a bool is not a fine number.
    fits = type(value) is kind or (kind is float and type(value) is int)
    in_range = {int: lambda v: 0 < v <= most, float: lambda v: 0 <= v < math.inf}.get(kind, lambda _: True)
    if not fits or not in_range(value):
        names = {int: f"a whole number from 1 to {most}", float: "a finite number, 0 or more"}
        wanted = names.get(kind, f"of type {kind.__name__}")
        raise ModelConfigError(f"{arch}: setting {name!r} is {value!r:.80}", remedy=f"make it {wanted}")

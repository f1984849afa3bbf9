"""Architectures by name. A model's file registers its class; `create` builds one from plain settings."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from .base import CostModel, ModelConfig
from .errors import ModelConfigError, UnknownArchitectureError

# Above any sensible size, below what would let a hostile config exhaust memory.
MAX_SIZE = 8192
# These count layers, which take time to build even where they take no memory, or rows that see each other, whose
# cost is their square.
MAX_REPEATS = 64
# Each member of a committee is a whole network.
MAX_MEMBERS = 8
_MOST = dict.fromkeys(("layers", "residuals", "heads", "steps", "rows"), MAX_REPEATS) | {"members": MAX_MEMBERS}

Weights = Literal["safetensors", "xgboost", "lightgbm"]
Kind = Literal["model", "knowledge base", "committee"]


@dataclass(frozen=True)
class Architecture:
    """One entry of the registry.

    Attributes:
        name: the first half of a checkpoint's name, e.g. "tcl" in "tcl-epyc".
        model: class taking one `config`.
        config: its config dataclass.
        inputs: what its features describe, "primitives" or "statements".
        schemas: feature schemas it was made for, the first being the usual one.
        paper: where it is described.
        weights: the kind of file that holds what it learnt; all but the first are a `TreeModel`'s.
        kind: "model", or what is made of several networks, a "knowledge base" (see `progressive`) or a "committee".
        base: the architecture of these networks; empty for a model.
    """

    name: str
    model: type[CostModel]
    config: type[ModelConfig]
    inputs: str
    schemas: tuple[str, ...]
    paper: str
    weights: Weights = "safetensors"
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
    inputs: str = "primitives",
    weights: Weights = "safetensors",
    kind: Kind = "model",
    base: str = "",
) -> Callable[[type[M]], type[M]]:
    """Class decorator: makes a model known as `name`."""

    def add(model: type[M]) -> type[M]:
        model.arch = name
        _ARCHITECTURES[name] = Architecture(name, model, config, inputs, schemas, paper, weights, kind, base)
        return model

    return add


def list_architectures() -> list[str]:
    """Names that `create` takes and recipes may train, sorted."""
    return _names("model")


def list_knowledge_bases() -> list[str]:
    """Names that `create` takes of knowledge bases, one for every network, sorted (see `progressive`)."""
    return _names("knowledge base")


def list_committees() -> list[str]:
    """Names that `create` takes of committees, one for every network, sorted (see `committee`)."""
    return _names("committee")


def _names(kind: Kind) -> list[str]:
    return sorted(name for name, known in _ARCHITECTURES.items() if known.kind == kind)


def get_architecture(name: str) -> Architecture:
    """The entry of one name.

    Raises:
        UnknownArchitectureError: with the nearest names.
    """
    if name not in _ARCHITECTURES:
        known = sorted(_ARCHITECTURES)
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
        nearest = f"; nearest: {', '.join(near)}" if near else ""
        names = ", ".join(list_architectures())
        raise UnknownArchitectureError(
            f"no architecture is called {name!r:.80}{nearest}",
            remedy=f"use one of: {names} (networks also with -kb or -committee); a newer tchub may know it",
            arch=name,
            known=known,
        )
    return _ARCHITECTURES[name]


def make_config(arch: str, settings: dict[str, Any]) -> ModelConfig:
    """The architecture's config from plain settings, each of the right type and a sane size.

    Raises:
        UnknownArchitectureError: no such architecture.
        ModelConfigError: an unknown setting, a wrong type, or a size outside out of its range (`most_of`).
    """
    cls = get_architecture(arch).config
    kinds = {f.name: type(f.default) for f in fields(cls)}
    for name, value in settings.items():
        _check_setting(arch, kinds, name, value)
    return cls(**settings)


def most_of(setting: str) -> int:
    """What a whole number of a config may be at most; the least is 1."""
    return _MOST.get(setting, MAX_SIZE)


def create(arch: str, **config: Any) -> CostModel:
    """A new model with random weights; see `make_config` for what is refused."""
    return get_architecture(arch).model(make_config(arch, config))


def _check_setting(arch: str, kinds: dict[str, type], name: str, value: object) -> None:
    if name not in kinds:
        near = difflib.get_close_matches(name, kinds, n=1) or sorted(kinds)
        raise ModelConfigError(
            f"{arch} has no setting {name!r:.80}",
            remedy=f"did you mean: {', '.join(near)}?",
            arch=arch,
            setting=name,
        )
    kind, most = kinds[name], most_of(name)
    # A whole number is a fine float; a bool is not a fine number.
    fits = type(value) is kind or (kind is float and type(value) is int)
    in_range = {int: lambda v: 0 < v <= most, float: lambda v: 0 <= v < math.inf}.get(kind, lambda _: True)
    if not fits or not in_range(value):
        names = {int: f"a whole number from 1 to {most}", float: "a finite number, 0 or more"}
        wanted = names.get(kind, f"of type {kind.__name__}")
        raise ModelConfigError(
            f"{arch}: setting {name!r} is {value!r:.80}",
            remedy=f"make it {wanted}",
            arch=arch,
            setting=name,
        )

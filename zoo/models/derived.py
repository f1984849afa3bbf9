"""Architectures that are made of several networks of another one: every network X has each kind of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import Any, cast

from .base import CostModel
from .informed import ContextModel
from .registry import Kind, get_architecture, list_architectures, register


def register_derived(
    kind: Kind,
    plain: type[CostModel],
    in_context: type[CostModel],
    *,
    endings: tuple[str, str],
    settings: Sequence[tuple[str, type, Any]],
    paper: str,
) -> None:
    """Makes a kind known for every network X that is registered by now, with a class of its own as attribute `of`.

    Args:
        kind: what is made of the networks.
        plain: the class of it; in_context: of networks that take measured programs as context.
        endings: of its name, after X, and of the names of its classes, after X's.
        settings: (name, type, default) of what its config has besides X's.
        paper: where it is described.
    """
    suffix, letters = endings
    home = {"__module__": plain.__module__}
    for name in list_architectures():
        base = get_architecture(name)
        if base.weights != "safetensors":
            continue
        config = make_dataclass(
            f"{base.config.__name__}{letters}", settings, bases=(base.config,), frozen=True, namespace=home
        )
        config.__doc__ = f"`{base.config.__name__}`, and: {', '.join(setting for setting, _, _ in settings)}."
        parent = in_context if issubclass(base.model, ContextModel) else plain
        facts = home | {"of": base, "__doc__": f"A {kind} of `{name}`."}
        made = cast("type[CostModel]", type(f"{base.model.__name__}{letters}", (parent,), facts))
        told = {"schemas": base.schemas, "paper": paper, "inputs": base.inputs}
        register(name + suffix, config, **told, kind=kind, base=name)(made)

"""A card's text, from config.json and metrics.json and nothing else; and whether a text still agrees with them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ..zoo.devices import Device, get_device
from ..zoo.errors import TchubError
from .metadata import metadata
from .schema import CardData

MISSING = "[More Information Needed]"


def render_card(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """The card as Markdown with a YAML head.

    Args:
        config: the checkpoint's config.json.
        metrics: its metrics.json; {} when nothing was evaluated, and the card says so.

    Raises:
        CardError: a field of either has the wrong type.
    """
    data = CardData.from_files(config, metrics, _spec(config))
    return _environment().get_template("card.md.j2").render(card=data, metadata=metadata(data)).rstrip() + "\n"


def check_card(text: str, config: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[str]:
    """The lines by which a card differs from what its files say, `-` in the card and `+` as it should be.

    Empty when they agree.
    """
    wanted = render_card(config, metrics)
    lines = difflib.unified_diff(text.splitlines(), wanted.splitlines(), "card", "files", lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"known": _known, "score": _score, "count": _count, "cell": _cell, "each": _each}
    return environment


def _spec(config: Mapping[str, Any]) -> dict[str, tuple[float | None, str]]:
    """The spec sheet of the config's own device, or of its family; {} when neither is known."""
    try:
        own = config.get("device")
        device = get_device(str(config.get("family"))) if own is None else Device.from_dict(own, "config.json")
    except TchubError:
        return {}
    return {name: (value, device.spec.sources[name]) for name, value in device.spec.values().items()}


def _known(value: object) -> str:
    """The value, or the words for a missing one."""
    return MISSING if value is None or value in ("", (), {}) else str(value)


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _each(values: Sequence[str]) -> str:
    return ", ".join(values) if values else MISSING

"""A card's text, from config.json and metrics.json and nothing else; and whether a text still agrees with them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from ..zoo.devices import Device, get_device
from ..zoo.errors import TchubError
from .devices import KINDS
from .fields import read_required
from .metadata import metadata
from .papers import entry, papers_of
from .plots import plots_of
from .schema import CardData, Training
from .scores import TITLES, Scores

MISSING = "[More Information Needed]"
_GAP = re.compile(r"\n{3,}")


def render_card(config: Mapping[str, Any], metrics: Mapping[str, Any], plots: str = "plots") -> str:
    """The card as Markdown with a YAML head.

    Args:
        config: the checkpoint's config.json.
        metrics: its metrics.json; {} when nothing was evaluated, and the card says so.
        plots: folder of the plots' files as the card names it, see `draw`.

    Raises:
        CardError: a field of either has the wrong type.
    """
    data = CardData.from_files(config, metrics, _spec(config))
    drawn = {plot.file: {"words": plot.words, "path": f"{plots}/{plot.file}"} for plot in plots_of(metrics)}
    text = (
        _environment()
        .get_template("card.md.j2")
        .render(
            card=data,
            run=data.evaluation,
            curves=data.curves,
            tuning=data.tuning,
            plots=drawn,
            metadata=metadata(data),
            papers=papers_of(data.arch),
            own_entry=_own_entry(data),
            shares=_shares(data.training),
            **{"from": data.origin},
        )
    )
    return _GAP.sub("\n\n", text).strip() + "\n"


def check_card(text: str, config: Mapping[str, Any], metrics: Mapping[str, Any], plots: str = "plots") -> list[str]:
    """The lines by which a card differs from what its files say, `-` in the card and `+` as it should be.

    Empty when they agree.
    """
    wanted = render_card(config, metrics, plots)
    lines = difflib.unified_diff(text.splitlines(), wanted.splitlines(), "card", "files", lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.globals["titles"] = TITLES
    environment.filters |= {
        "known": _known,
        "at": _at,
        "plus_minus": _plus_minus,
        "count": _count,
        "cell": _cell,
        "code": _code,
        "sentence": _sentence,
        "score": _score,
        "alt": _alt,
    }
    return environment


def _spec(config: Mapping[str, Any]) -> dict[str, tuple[float | None, str]]:
    """The spec sheet of the config's own device, or of its family; {} when neither is known, or it is of several."""
    family, own = read_required(config, "family"), config.get("device")
    if family in KINDS:
        return {}
    try:
        device = get_device(family) if own is None else Device.from_dict(own, "config.json")
    except TchubError:
        return {}
    return {name: (value, device.spec.sources[name]) for name, value in device.spec.values().items()}


def _known(value: object) -> str:
    """The value, or the words for a missing one."""
    return MISSING if value is None or value in ("", (), {}) else str(value)


def _at(line: Scores, name: str) -> str:
    """One score of a line, with its spread where there is one."""
    value, deviation = getattr(line, name), line.spread.get(name)
    return _score(value) if value is None or deviation is None else _plus_minus((value, deviation))


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plus_minus(told: tuple[float, float]) -> str:
    return f"{told[0]:.3f} ± {told[1]:.3f}"


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _alt(words: str) -> str:
    """Words within the brackets of a picture."""
    return words.replace("[", "(").replace("]", ")").replace("\n", " ")


def _code(values: Sequence[str]) -> str:
    """Names in Markdown's code marks: `a`, `b`."""
    return ", ".join(f"`{value}`" for value in values)


def _sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _own_entry(data: CardData) -> str:
    """The checkpoint's own BibTeX entry."""
    fields = {"title": f"tchub: {data.name}", "author": data.authors and f"{{{data.authors}}}", "version": data.version}
    return entry("misc", data.name, fields)


def _shares(training: Training) -> list[str]:
    """What was taken of the target's training programs, where that is not all."""
    texts = []
    if training.tasks_fraction is not None and training.tasks_fraction < 1:
        texts.append(f"Share: {training.tasks_fraction:.0%} of the target's training tasks")
    if training.programs_fraction == 0:
        texts.append("Share: nothing of the target was learnt from (zero-shot)")
    elif training.programs_fraction is not None and training.programs_fraction < 1:
        texts.append(f"Share: {training.programs_fraction:.0%} of the target's training programs, at random")
    if training.programs_per_task:
        texts.append(f"Share: at most {training.programs_per_task:,} programs a task")
    return texts

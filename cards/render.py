"""The text of a card, rendered from config.json and metrics.json alone, and the check that a text agrees with them."""

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
from .metadata import metadata
from .metrics import TITLES, MeanScore, ScoreLine
from .plots import plots_of
from .schema import CardConfig, CardData, TrainingFacts, bibtex_entry, papers_of

MISSING = "[More Information Needed]"
_GAP = re.compile(r"\n{3,}")


def render_card(config: Mapping[str, Any], metrics: Mapping[str, Any], plots: str = "plots") -> str:
    """Return the card as Markdown with a YAML head.

    Args:
        config: the checkpoint's config.json.
        metrics: its metrics.json; {} when nothing was evaluated, and the card says so.
        plots: folder of the plots' files as the card names it, see `draw`.

    Raises:
        CardError: a field of either has the wrong type.
    """
    data = CardData.from_files(config, metrics)
    drawn = {plot.file: {"description": plot.description, "path": f"{plots}/{plot.file}"} for plot in plots_of(metrics)}
    text = (
        _environment()
        .get_template("card.md.j2")
        .render(
            card=data,
            config=data.config,
            run=data.metrics,
            curves=data.metrics.curves,
            spec=_spec(data, config.get("device")),
            plots=drawn,
            metadata=metadata(data),
            papers=papers_of(data.config.arch),
            own_entry=_own_entry(data.config),
            shares=_shares(data.config.training),
            **{"from": data.origin},
        )
    )
    return _GAP.sub("\n\n", text).strip() + "\n"


def check_card(text: str, config: Mapping[str, Any], metrics: Mapping[str, Any], plots: str = "plots") -> list[str]:
    """Return the lines by which a card differs from its files, `-` in the card and `+` as rendered; [] if none do."""
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


def _spec(data: CardData, own: Any) -> dict[str, tuple[float | None, str]]:
    """Return the spec sheet of the config's own device, or of its family; {} if neither is known, or it has several."""
    if data.is_knowledge_base:
        return {}
    try:
        device = get_device(data.config.family) if own is None else Device.from_dict(own, "config.json")
    except TchubError:
        return {}
    return {name: (value, device.spec.sources[name]) for name, value in device.spec.values().items()}


def _known(value: object) -> str:
    """Return the value, or the text for a missing one."""
    return MISSING if value is None or value in ("", (), {}) else str(value)


def _at(line: ScoreLine, name: str) -> str:
    """Return one score of a line, with its spread where there is one."""
    score = getattr(line, name)
    spread = isinstance(score, MeanScore) and score.mean is not None and score.stdev is not None
    return _plus_minus(score) if spread else _score(line.value(name))


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _plus_minus(score: MeanScore) -> str:
    return f"{score.mean:.3f} ± {score.stdev:.3f}"


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _alt(text: str) -> str:
    """Return the text as it may stand in the brackets of a picture."""
    return text.replace("[", "(").replace("]", ")").replace("\n", " ")


def _code(values: Sequence[str]) -> str:
    """Return names as Markdown code: `a`, `b`."""
    return ", ".join(f"`{value}`" for value in values)


def _sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _own_entry(config: CardConfig) -> str:
    """Return the checkpoint's own BibTeX entry."""
    authors = config.lineage.authors
    fields = {"title": f"tchub: {config.name}", "author": authors and f"{{{authors}}}", "version": config.version}
    return bibtex_entry("misc", config.name, fields)


def _shares(training: TrainingFacts) -> list[str]:
    """Return the share of the target's training programs that was taken, where that is not all."""
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

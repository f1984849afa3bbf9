"""Render the text of a card from config.json and metrics.json alone, and check that a text agrees with them."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCardData

from ..zoo.devices import Device, get_device
from ..zoo.errors import TchubError
from .metrics import HEADS, TITLES, MeanScore, ScoreLine
from .plots import plots_of
from .schema import CardData, papers_of

MISSING = "[More Information Needed]"
_GAP = re.compile(r"\n{3,}")


def render_card(config: Mapping[str, Any], metrics: Mapping[str, Any], plots: str = "plots") -> str:
    """Return the card as Markdown with YAML front matter.

    Args:
        config: the checkpoint's config.json.
        metrics: its metrics.json; {} if nothing was evaluated, which the card then states.
        plots: folder of the plots' files, as a path in the card; see `draw`.

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
            **{"from": data.origin},
        )
    )
    return _GAP.sub("\n\n", text).strip() + "\n"


def check_card(text: str, config: Mapping[str, Any], metrics: Mapping[str, Any], plots: str = "plots") -> list[str]:
    """Return the lines in which a card differs from its files: `-` in the card, `+` as rendered; [] if none differ."""
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
    environment.globals |= {"titles": TITLES, "heads": HEADS}
    environment.filters |= {"known": _known, "count": _count, "cell": _cell, "score": _score}
    return environment


def _spec(data: CardData, own: Any) -> dict[str, tuple[float | None, str]]:
    """Return the spec sheet of the config's own device or of its family; {} if unknown, or for a knowledge base."""
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


def _score(value: float | MeanScore | None) -> str:
    """Return a score, with its spread where there is one."""
    if not isinstance(value, MeanScore):
        return "-" if value is None else f"{value:.3f}"
    return _score(value.mean) + (f" ± {value.stdev:.3f}" if None not in (value.mean, value.stdev) else "")


def _count(value: int | None) -> str:
    return MISSING if value is None else f"{value:,}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


# The YAML front matter, in the form that the Hugging Face Hub reads

# A task of the Hub's list, which has none for ranking tensor programs.
TASK = "tabular-regression"
_NAMES = {"top1": "top-1 score", "top5": "top-5 score", "pairwise": "pairwise accuracy"}


@cache
def hub_licences() -> frozenset[str]:
    """Return the licence ids that the Hub accepts."""
    return frozenset(tomllib.loads(Path(__file__).with_name("hub_licences.toml").read_text())["known"])


def hub_licence(spdx: str | None) -> tuple[str | None, str | None]:
    """Return `license` and `license_name` of a card; a licence that the Hub does not know is `other`.

    Args:
        spdx: an SPDX id, such as `Apache-2.0` or `GPL-3.0-only`; None when there is none.
    """
    if spdx is None:
        return None, None
    name = spdx.lower().removesuffix("-only").removesuffix("-or-later")
    return (name, None) if name in hub_licences() else ("other", spdx.lower())


def metadata(data: CardData) -> str:
    """Return the YAML between the two `---` lines (without them).

    It has library_name, licence, tags (with `measured` or `transferred`), datasets, and a model-index with the
    checkpoint's scores.
    """
    config, origin = data.config, data.origin.data
    tags = ["tchub", "tvm", "metaschedule", "cost-model", "auto-tuning", config.arch, f"device:{config.family}"]
    datasets = [corpus.name for corpus in data.config.corpora if corpus.name and "/" in corpus.name]
    licence, licence_name = hub_licence(config.lineage.weights_licence)
    base = config.lineage.base
    card = ModelCardData(
        model_name=config.name,
        library_name="tchub",
        license=licence,
        license_name=licence_name,
        pipeline_tag=TASK,
        tags=[*tags, origin] if origin else tags,
        datasets=datasets or None,
        base_model=base if base and "/" in base else None,
        eval_results=_results(data) or None,
        data_licence=", ".join(data.licences) or None,
        data_origin=origin,
        device_family=config.family,
        checkpoint_version=config.version,
        feature_schema=config.feature_schema,
    )
    return card.to_yaml().strip()


def _results(data: CardData) -> list[EvalResult]:
    """Return the scores of each split; for a knowledge base also those of each device."""
    run = data.metrics
    corpus = run.corpus or data.corpus.name or "unknown"
    lines = [(corpus, run.split, run.model), (corpus, "validation", run.validation)]
    lines += [(device.corpus, run.split, device.now) for device in run.devices]
    return [
        EvalResult(
            task_type=TASK,
            task_name="ranking the programs of a task",
            dataset_type=corpus,
            dataset_name=corpus,
            dataset_split=split,
            metric_type=key,
            metric_name=_NAMES[key],
            metric_value=_rounded(line, key),
        )
        for corpus, split, line in lines
        if line is not None
        for key in _NAMES
        if _rounded(line, key) is not None
    ]


def _rounded(line: ScoreLine, key: str) -> float | None:
    value = line.value(key)
    return None if value is None else round(value, 4)

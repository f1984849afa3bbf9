"""The pages' HTML: Jinja templates that escape everything but what `markdown` made, which is safe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ...cards.plots import Plot
from ..registry import Entry
from ..registry.listing import TITLES, CatalogueItem, by_family, comparable, kind_of, searchable
from ..text import data_text, number_text, score_text, size_text
from .markdown import card_html

_TEMPLATES = Path(__file__).parent / "templates"
_ASSETS = ("catalogue.css", "catalogue.js")
_KINDS = {"cpu": "CPU", "gpu": "GPU", "": "other device"}
# A comparison holds as many columns as one can still read.
MOST_COMPARED = 4


def assets() -> dict[str, bytes]:
    """The style sheet and the script: file name -> content."""
    return {name: (_TEMPLATES / name).read_bytes() for name in _ASSETS}


def index_page(title: str, records: Mapping[str, Mapping[str, Any]], listed: Sequence[CatalogueItem]) -> str:
    """The page with search, filters, the table and the comparison.

    Args:
        records: `CatalogueItem.as_dict()` by name.
    """
    groups = by_family(one.entry for one in listed)
    ordered = [entry for _, entries in groups for entry in entries]
    return _render(
        "index.html.j2",
        title=title,
        records=records,
        groups=[(family, entries, _judged([records[e.name] for e in entries])) for family, entries in groups],
        data=[_browsed(entry, records[entry.name]) for entry in ordered],
        families=[(family, _family_title(entries[0])) for family, entries in groups],
        architectures=[(arch, arch) for arch in sorted({entry.arch for entry in ordered})],
    )


def checkpoint_page(
    title: str, one: CatalogueItem, record: Mapping[str, Any], family: Sequence[Entry], plots: Mapping[str, Plot]
) -> str:
    """One checkpoint's page.

    Args:
        record: its `as_dict()`.
        family: its family's checkpoints, itself included.
        plots: by path from the catalogue's folder.
    """
    others = [entry.name for entry in family if entry.name != one.entry.name]
    columns = [key for key in TITLES if any(line[key] is not None for line in record["results"])]
    return _render(
        "checkpoint.html.j2",
        title=title,
        one=one,
        r=record,
        family=family,
        compared=[one.entry.name, *others][:MOST_COMPARED],
        sources=[(text, address(text, one.entry.revision)) for text in one.entry.sources],
        plots=plots,
        titles=TITLES,
        columns=columns,
        best={key: max(line[key] for line in record["results"] if line[key] is not None) for key in columns},
        card=Markup(card_html(one.card, {f"plots/{plot.file}": plot.title for plot in plots.values()})),
    )


def address(source: str, revision: str | None) -> str | None:
    """Where a browser finds a source: http(s) as it is, on the Hub the pinned commit; None for anything else."""
    if source.startswith(("https://", "http://")):
        return source
    if source.startswith("hf://"):
        return f"https://huggingface.co/{source.removeprefix('hf://')}/tree/{revision or 'main'}"
    return None


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(release=metadata.version("tchub"), **values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # facts keep their order
    environment.filters |= {
        "number": number_text,
        "score": score_text,
        "size": size_text,
        "data": lambda data: data_text(data, device=False),
        "family_title": _family_title,
        "lede": _lede,
    }
    return environment


def _browsed(entry: Entry, record: Mapping[str, Any]) -> dict[str, Any]:
    """What the script of the index page needs of a checkpoint."""
    told = ("name", "page", "family", "arch", "kind", "origin", "parameters", "size", "scores", "seeds", "judged_on")
    search = " ".join([searchable(entry), *record["aliases"]])
    return {key: record[key] for key in (*told, "facts")} | {"search": search}


def _judged(records: Sequence[Mapping[str, Any]]) -> str:
    """On what the checkpoints of a family were judged."""
    if not records[0]["judged_on"]:
        return ""
    return f"judged on {records[0]['judged_on']}" if comparable(records) else "each judged on programs of its own"


def _family_title(entry: Entry) -> str:
    kind = _KINDS[kind_of(entry)]
    return f"{kind} knowledge bases" if entry.is_knowledge_base else f"{entry.family}, {kind}"


def _lede(entry: Entry) -> str:
    kinds = f"{_KINDS[kind_of(entry)]}s"
    if entry.is_knowledge_base:
        return f"Ranks tensor programs for {kinds}. It has learnt several: a start for a further one."
    return f"Ranks tensor programs for {kinds} of the family {entry.family}."

"""The pages' HTML: Jinja templates that escape everything but cards, whose Markdown is made safe here.

A card is data: no HTML of its own, no script, no link but to http(s), no picture but the page's own figures.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token
from markupsafe import Markup

from ...cards import Plot
from ..registry import Entry
from ..registry.listing import TITLES, CatalogueItem, by_family, comparable, kind_of, searchable
from ..text import data_text, number_text, score_text, size_text

_TEMPLATES = Path(__file__).parent / "templates"
_KINDS = {"cpu": "CPU", "gpu": "GPU", "": "other device"}
# A reader can still read so many columns of a comparison.
MOST_COMPARED = 4
# Facts of a checkpoint that the script of the index page needs.
_BROWSED = ("name", "page", "family", "arch", "kind", "origin", "parameters", "size", "scores", "seeds", "judged_on")
_BROWSED += ("facts",)
_HEAD = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
# The page has a title, and a heading for the card.
_DEEPER = {"h1": "h3", "h2": "h3", "h3": "h4", "h4": "h5", "h5": "h6", "h6": "h6"}


def assets() -> dict[str, bytes]:
    """Return the style sheet and the script: file name -> content."""
    return {name: (_TEMPLATES / name).read_bytes() for name in ("catalogue.css", "catalogue.js")}


def index_page(title: str, records: Mapping[str, Mapping[str, Any]], listed: Sequence[CatalogueItem]) -> str:
    """Return the page with search, filters, the table and the comparison; `records`: `as_dict()` of each, by name."""
    groups = by_family(one.entry for one in listed)
    ordered = [entry for _, entries in groups for entry in entries]
    data = [{key: records[e.name][key] for key in _BROWSED} | {"search": searchable(e)} for e in ordered]
    return _render(
        "index.html.j2",
        title=title,
        records=records,
        groups=[(family, entries, _judged([records[e.name] for e in entries])) for family, entries in groups],
        data=data,
        families=[(family, _family_title(entries[0])) for family, entries in groups],
        architectures=[(arch, arch) for arch in sorted({entry.arch for entry in ordered})],
    )


def checkpoint_page(
    title: str, one: CatalogueItem, record: Mapping[str, Any], family: Sequence[Entry], plots: Mapping[str, Plot]
) -> str:
    """Return one checkpoint's page, of its `as_dict()`, its family (itself included), and plots by path."""
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
    """Return a source's web address: http(s) as it is, on the Hub the pinned commit; None for anything else."""
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


def _judged(records: Sequence[Mapping[str, Any]]) -> str:
    """Return in words which programs judged the checkpoints of a family."""
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


def card_html(text: str, figures: Mapping[str, str] | None = None) -> str:
    """Return the card's Markdown as HTML, without its YAML head and its title; HTML in it is shown as text.

    A picture becomes a link to its figure on the page (`figures`: address in the card, which is its id too -> title),
    any other its description.
    """
    parser = _parser()
    tokens = parser.parse(_HEAD.sub("", text))
    titled = bool(tokens) and tokens[0].tag == "h1"
    return parser.renderer.render(list(_safe(tokens[3:] if titled else tokens, figures or {})), parser.options, {})


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    # A table or a line of code may be wider than a phone: it scrolls by itself, by keys too.
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll" tabindex="0" role="group"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("fence", _code)
    parser.add_render_rule("code_block", _code)
    return parser


def _code(_renderer: Any, tokens: Sequence[Token], index: int, *_: Any) -> str:
    return f'<pre tabindex="0"><code>{escapeHtml(tokens[index].content)}</code></pre>\n'


def _safe(tokens: Sequence[Token], figures: Mapping[str, str]) -> Iterator[Token]:
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = _DEEPER[token.tag]
        elif token.attrGet("style"):
            # The page's own policy refuses styles in the text; a column's alignment becomes a class.
            token.attrs = {"class": str(token.attrGet("style")).rpartition(":")[2]}
        if token.children:
            token.children = list(_safe_inline(token.children, figures))
        yield token


def _safe_inline(tokens: Sequence[Token], figures: Mapping[str, str]) -> Iterator[Token]:
    linked = False
    for token in tokens:
        if token.type == "link_open":
            linked = str(token.attrGet("href")).lower().startswith(("http://", "https://"))
            token.attrSet("rel", "noreferrer")
        if token.type == "image":
            yield from _figure(str(token.attrGet("src")), token.content, {} if linked else figures)
        elif linked or not token.type.startswith("link_"):
            yield token
        if token.type == "link_close":
            linked = False


def _figure(address: str, description: str, figures: Mapping[str, str]) -> Iterator[Token]:
    if address not in figures:
        yield Token("text", "", 0, content=description)
        return
    yield Token("link_open", "a", 1, attrs={"href": f"#{address}"})
    yield Token("text", "", 0, content=f"Plot: {figures[address]}")
    yield Token("link_close", "a", -1)

"""Cards as HTML. A card is data: no HTML of its own, no script, no link but to http(s), no picture."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.token import Token

_HEAD = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
# The page has a title, and a heading for the card.
_DEEPER = {"h1": "h3", "h2": "h3", "h3": "h4", "h4": "h5", "h5": "h6", "h6": "h6"}


def card_html(text: str, figures: Mapping[str, str] | None = None) -> str:
    """The card's Markdown as HTML, without its YAML head and its title.

    HTML in it is shown as text.

    Args:
        figures: what the page shows as figures: picture's address in the card, which is the figure's id too -> title.
            Such a picture becomes a link to the figure, any other its description.
    """
    parser = _parser()
    tokens = _without_title(parser.parse(_HEAD.sub("", text)))
    return parser.renderer.render(list(_safe(tokens, figures or {})), parser.options, {})


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


def _without_title(tokens: Sequence[Token]) -> Sequence[Token]:
    titled = bool(tokens) and tokens[0].tag == "h1"
    return tokens[3:] if titled else tokens


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


def _figure(address: str, words: str, figures: Mapping[str, str]) -> Iterator[Token]:
    if address not in figures:
        yield Token("text", "", 0, content=words)
        return
    yield Token("link_open", "a", 1, attrs={"href": f"#{address}"})
    yield Token("text", "", 0, content=f"Plot: {figures[address]}")
    yield Token("link_close", "a", -1)

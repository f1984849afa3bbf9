"""A page as its elements, for tests: read by the standard library's parser."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

_EMPTY = {"meta", "link", "input", "img", "br", "hr"}


@dataclass
class Element:
    """One element with its attributes, its text (of children too) and its depth."""

    tag: str
    attributes: dict[str, str]
    text: str = ""

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]

    def get(self, name: str) -> str | None:
        return self.attributes.get(name)


@dataclass
class Page(HTMLParser):
    """All elements of a page in their order; raises when tags are not closed in order."""

    source: str
    elements: list[Element] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.source)
        self.close()
        assert not self._open, [element.tag for element in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in _EMPTY:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> closes <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements of a tag with these attributes."""
        return [e for e in self.elements if e.tag == tag and attributes.items() <= e.attributes.items()]

    def one(self, tag: str, **attributes: str) -> Element:
        """The only one."""
        (element,) = self.all(tag, **attributes)
        return element

    def links(self) -> list[str]:
        """Every address that the page leads to or loads."""
        return [e[name] for e in self.elements for name in ("href", "src") if name in e.attributes]

    def data(self) -> Any:
        """The JSON for the script."""
        return json.loads(self.one("script", type="application/json").text)


def page(path: Path) -> Page:
    return Page(path.read_text())


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    return ((path, page(path)) for path in sorted(site.rglob("*.html")))

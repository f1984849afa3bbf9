"""Papers to cite for an architecture, from `papers.toml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec


class Paper(msgspec.Struct, frozen=True):
    """A paper, as a line of text and as BibTeX.

    Attributes:
        authors: full names, in their order; venue: where it appeared; kind: the type of its BibTeX entry.
        architectures: those that it describes; method: end of the names of what is made of several networks by it.
    """

    authors: tuple[str, ...]
    title: str
    venue: str
    year: int
    key: str = ""
    kind: str = "inproceedings"
    architectures: tuple[str, ...] = ()
    method: str | None = None

    @property
    def text(self) -> str:
        """One line: the first author or two, title, venue and year."""
        first, *others = [_short(name) for name in self.authors]
        names = first if not others else f"{first}, {others[0]}" if len(others) == 1 else f"{first} et al"
        return f"{names}. {self.title}. {self.venue}, {self.year}."

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        where = "booktitle" if self.kind == "inproceedings" else "journal"
        authors = " and ".join(self.authors)
        fields = {"author": authors, "title": f"{{{self.title}}}", where: self.venue, "year": self.year}
        return entry(self.kind, self.key, fields)


def entry(kind: str, key: str, fields: dict[str, object]) -> str:
    """Return a BibTeX entry of some fields, without those that are empty."""
    lines = [f"  {name} = {{{value}}}" for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", ",\n".join(lines), "}"])


def _short(name: str) -> str:
    *given, family = name.split()
    return " ".join([*(f"{word[0]}." for word in given), family])


@cache
def _papers() -> tuple[Paper, ...]:
    text = Path(__file__).with_name("papers.toml").read_bytes()
    papers = msgspec.toml.decode(text, type=dict[str, Paper])
    return tuple(msgspec.structs.replace(paper, key=key) for key, paper in papers.items())


def network_of(arch: str) -> str:
    """Return the architecture of the networks that a composed architecture is made of; any other as it is."""
    suffixes = [paper.method for paper in _papers() if paper.method and arch.endswith(paper.method)]
    return arch.removesuffix(suffixes[0]) if suffixes else arch


def papers_of(arch: str) -> tuple[Paper, ...]:
    """Return the papers to cite for an architecture, that of the networks first; none for tchub's own."""
    own = [paper for paper in _papers() if network_of(arch) in paper.architectures]
    methods = [paper for paper in _papers() if paper.method and arch.endswith(paper.method)]
    return tuple(dict.fromkeys([*own, *methods]))

"""The catalogue in a real browser, from a file: search, filters, order, comparison, an address to share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue_page import Catalogue, chromium
from tchub.hub.registry import Entry, describe
from tchub.hub.site.build import build
from toy_checkpoints import make_registry, write_toy

pytestmark = pytest.mark.browser

# name -> top-1, parameters: both orders differ, and from the one by name.
TOYS = {
    "tcl-epyc": (0.70, 500),
    "tilenet-epyc": (0.80, 400),
    "tlp-epyc": (0.60, 900),
    "tcl-xeon": (0.50, 300),
    "tilenet-t4": (0.90, 700),
    "tcl-a100": (0.55, 200),
}
BY_FAMILY = ["tilenet-epyc", "tcl-epyc", "tlp-epyc", "tcl-xeon", "tcl-a100", "tilenet-t4"]
FOUR = BY_FAMILY[:4]


def publish_toy(folder: Path, name: str, top1: float, parameters: int) -> Entry:
    """A checkpoint of the family in its name; that of xeon was measured on no device of its own."""
    family = name.partition("-")[2]
    kind = "cpu" if family in ("epyc", "xeon") else "gpu"
    features = "nest" if name.startswith("tilenet") else "tcl"
    lineage: dict[str, Any] = {"weights_licence": "Apache-2.0", "data": "measured", "measured_on": [family]}
    if family == "xeon":
        lineage |= {"data": "transferred", "measured_on": []}
    corpus = {"name": family, "programs": 1200, "tasks": 10, "licence": "GPL-3.0" if family == "t4" else "MIT"}
    training = {"parameters": parameters, "corpus": corpus}
    write_toy(folder, name, feature_schema=f"{features}-{kind}", lineage=lineage, training=training)
    scores = {"top1": top1, "top5": 0.95, "pairwise": 0.8}
    metrics = {"format": 1, "corpus": family, "tasks": 9, "programs": 900, "results": {"model": scores}}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return describe(folder, name, "1.0.0")


@pytest.fixture(scope="module")
def index_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of six checkpoints of four families, with cards."""
    folder = tmp_path_factory.mktemp("site")
    entries = [publish_toy(folder / "wheel" / name / "1.0.0", name, *numbers) for name, numbers in TOYS.items()]
    return build(make_registry(folder, *entries, wheel=folder / "wheel"), folder / "out").path / "index.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def index(browser: Any, index_page: Path) -> Iterator[Catalogue]:
    """The index page, opened anew; afterwards the browser is as it was, and nothing was logged or fetched."""
    catalogue = Catalogue(browser, index_page)
    catalogue.open()
    yield catalogue
    catalogue.allow_scripts(True)
    assert catalogue.complaints() == []
    assert catalogue.requested() == []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("tilenet", ["tilenet-epyc", "tilenet-t4"]),
        ("amd epyc TCL-epyc", ["tcl-epyc"]),
        ("gpl", ["tilenet-t4"]),
        ("no such thing", []),
    ],
)
def test_search_finds_names_devices_and_licences(index: Catalogue, words: str, names: list[str]) -> None:
    assert index.text("count") == "6 checkpoints"
    index.type("q", words)
    assert index.rows() == names
    assert index.text("count") == f"{len(names)} checkpoint{'s' if len(names) != 1 else ''} of 6"
    assert index.shown("none") == (not names)


def test_filters_narrow_what_the_search_left(index: Catalogue) -> None:
    index.type("q", "tcl")
    index.choose("kind", "cpu")
    assert index.rows() == ["tcl-epyc", "tlp-epyc", "tcl-xeon"]  # tlp-epyc reads features called tcl-cpu
    index.choose("origin", "measured")
    index.choose("arch", "tcl")
    assert index.rows() == ["tcl-epyc"]
    index.choose("family", "xeon")
    assert index.rows() == []
    index.click("button[type=reset]")
    assert index.rows() == BY_FAMILY


def test_columns_sort_both_ways_scores_from_the_best(index: Catalogue) -> None:
    for number, (column, reverse) in enumerate((("top1", True), ("parameters", False))):
        ordered = sorted(TOYS, key=lambda name, number=number: TOYS[name][number], reverse=reverse)
        for expected in (ordered, ordered[::-1]):
            index.sort(column)
            assert index.rows() == expected
    index.sort("family")
    assert index.rows() == BY_FAMILY


def test_the_address_keeps_the_view_so_that_it_can_be_shared(index: Catalogue) -> None:
    index.type("q", "tcl cpu")
    index.choose("origin", "measured")
    index.sort("top1")
    index.pick("tcl-epyc", "tlp-epyc")
    shared, rows = index.run("return location.href"), index.rows()
    index.open()
    assert index.rows() == BY_FAMILY
    index.open(shared.partition("#")[2])
    assert index.rows() == rows
    assert index.compared() == ["tcl-epyc", "tlp-epyc"]


@pytest.mark.parametrize(
    "fragment", ["sort=evil&compare=a,b,,tcl-epyc", "compare=%3Cscript%3E&q=%3Cb%3E", "%&=&sort=-", "main"]
)
def test_a_broken_address_does_no_harm(index: Catalogue, fragment: str) -> None:
    index.open(fragment)
    assert index.compared() == []
    assert set(index.rows()) in (set(BY_FAMILY), set())


def test_up_to_four_are_compared_and_the_best_of_one_family_is_marked(index: Catalogue) -> None:
    index.pick(*FOUR, "tilenet-t4")
    assert index.compared() == FOUR
    assert index.text("chosen") == "Four at most: take one out before you add tilenet-t4."
    assert index.comparison()["top-1"] == ["0.800", "0.700", "0.600", "0.500"], "of two families none is"
    index.click("#clear")
    index.pick("tcl-epyc", "tilenet-epyc")
    assert index.comparison()["top-1"] == ["0.700", "0.800 (highest)"]


def test_without_scripts_it_is_a_plain_table(index: Catalogue) -> None:
    index.allow_scripts(False)
    index.open()
    assert index.rows() == BY_FAMILY
    assert not index.run("return document.querySelector('form').getClientRects().length")

"""The catalogue in a real browser, from a file: search, filters, order, comparison, keys, themes, narrow screens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogue_page import Catalogue
from chromium import chromium, programs
from tchub.hub.registry import Entry, describe
from tchub.hub.site.build import build
from toy_checkpoints import make_registry, write_toy

pytestmark = pytest.mark.browser

# name -> top-1, top-5, pairwise, parameters: the four orders differ, and from the one by name.
TOYS = {
    "tcl-epyc": (0.70, 0.95, 0.81, 500),
    "tilenet-epyc": (0.80, 0.90, 0.82, 400),
    "tlp-epyc": (0.60, 0.93, 0.83, 900),
    "tcl-xeon": (0.50, 0.91, 0.70, 300),
    "tilenet-t4": (0.90, 0.99, 0.60, 700),
    "tcl-a100": (0.55, 0.94, 0.75, 200),
}
BY_FAMILY = ["tilenet-epyc", "tcl-epyc", "tlp-epyc", "tcl-xeon", "tcl-a100", "tilenet-t4"]
FOUR = BY_FAMILY[:4]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Entry]:
    wheel = tmp_path_factory.mktemp("wheel")
    return {name: toy(wheel / name / "1.0.0", name, *numbers) for name, numbers in TOYS.items()}


@pytest.fixture(scope="module")
def site(entries: dict[str, Entry], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six checkpoints of four families, with cards."""
    programs()
    folder = tmp_path_factory.mktemp("site")
    wheel = tmp_path_factory.getbasetemp() / "wheel0"
    return build(make_registry(folder, *entries.values(), wheel=wheel), folder / "out").path


@pytest.fixture
def index(browser: Any, site: Path) -> Iterator[Catalogue]:
    """The index page, opened anew; afterwards the browser is as it was, and nothing was logged or fetched."""
    catalogue = Catalogue(browser, site / "index.html")
    catalogue.open()
    yield catalogue
    catalogue.scripts(True)
    assert catalogue.complaints() == []
    assert catalogue.requested() == []


def toy(folder: Path, name: str, top1: float, top5: float, pairwise: float, parameters: int) -> Entry:
    family = name.partition("-")[2]
    kind = "cpu" if family in ("epyc", "xeon") else "gpu"
    features = "nest" if name.startswith("tilenet") else "tcl"
    corpus = {"name": family, "programs": 1200, "tasks": 10, "licence": "GPL-3.0" if family == "t4" else "MIT"}
    lineage = {
        "weights_licence": "Apache-2.0",
        "data": "transferred" if family == "xeon" else "measured",
        "measured_on": [] if family == "xeon" else [family],
    }
    write_toy(
        folder, name, feature_schema=f"{features}-{kind}", lineage=lineage,
        training={"parameters": parameters, "corpus": corpus},
    )  # fmt: skip
    scores = {"top1": top1, "top5": top5, "pairwise": pairwise}
    rows = [{"corpus": other, "metrics": scores} for other in ("here", "there")] if family == "t4" else []
    metrics = {"format": 1, "corpus": family, "tasks": 9, "programs": 900, "results": {"model": scores}}
    (folder / "metrics.json").write_text(json.dumps(metrics | {"transfer": rows}))
    return describe(folder, name, "1.0.0")


# Search, filters, order


def test_all_are_shown_by_family_first(index: Catalogue) -> None:
    assert index.rows() == BY_FAMILY
    assert index.text("count") == "6 checkpoints"
    assert index.groups() == ["epyc", "xeon", "a100", "t4"]


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


@pytest.mark.parametrize("column", ["name", "top1", "parameters"])
def test_every_column_sorts_both_ways(index: Catalogue, column: str) -> None:
    number = ("top1", "top5", "pairwise", "parameters").index(column) if column != "name" else None
    sign = 1 if column == "parameters" else -1
    value = {name: name if number is None else sign * TOYS[name][number] for name in TOYS}.__getitem__
    scores = column == "top1"
    index.sort(column)
    assert index.rows() == sorted(sorted(TOYS), key=value)
    assert index.sorted_by() == {column: "descending" if scores else "ascending"}
    assert index.groups() == []
    index.sort(column)
    assert [value(name) for name in index.rows()] == sorted(map(value, TOYS), reverse=True)
    assert index.sorted_by() == {column: "ascending" if scores else "descending"}
    index.sort("family")
    assert index.rows() == BY_FAMILY
    assert index.sorted_by() == {"family": "ascending"}


def test_the_address_keeps_the_view_so_that_it_can_be_shared(index: Catalogue) -> None:
    index.type("q", "tcl cpu")
    index.choose("origin", "measured")
    index.sort("top5")
    index.pick("tcl-epyc", "tlp-epyc")
    shared, rows = index.run("return location.href"), index.rows()
    assert "#q=tcl+cpu&origin=measured&sort=top5&compare=tcl-epyc,tlp-epyc" in shared
    index.open()
    assert index.rows() == BY_FAMILY
    index.open(shared.partition("#")[2])
    assert index.rows() == rows
    assert index.compared() == ["tcl-epyc", "tlp-epyc"]
    assert index.run("return document.querySelector('[name=q]').value") == "tcl cpu"


@pytest.mark.parametrize(
    "fragment", ["sort=evil&compare=a,b,,tcl-epyc", "compare=%3Cscript%3E&q=%3Cb%3E", "%&=&sort=-", "main"]
)
def test_a_broken_address_does_no_harm(index: Catalogue, fragment: str) -> None:
    index.open(fragment)
    assert index.compared() == []
    assert set(index.rows()) in (set(BY_FAMILY), set())


# Comparison


def test_four_are_compared_and_the_fifth_is_refused_aloud(index: Catalogue) -> None:
    index.pick(*FOUR)
    assert index.compared() == FOUR
    index.pick("tilenet-t4")
    assert index.picked() == FOUR
    assert index.text("chosen") == "Four at most: take one out before you add tilenet-t4."
    assert index.element("chosen").get_attribute("role") == "status"


def test_a_comparison_marks_the_highest_score_of_one_family(index: Catalogue) -> None:
    index.pick("tcl-epyc", "tilenet-epyc")
    assert not index.shown("apart")
    lines = index.comparison()
    assert lines["top-1"] == ["0.700", "0.800 (highest)"]
    assert lines["pairwise"] == ["0.810", "0.820 (highest)"]
    assert lines["judged on"] == ["epyc, 9 tasks, 900 programs"] * 2
    assert lines["architecture"] == ["tcl", "tilenet"]
    assert list(lines)[:5] == ["top-1", "top-5", "pairwise", "judged on", "architecture"]
    index.click("#clear")
    index.pick("tcl-epyc", "tilenet-t4")
    assert index.shown("apart")
    assert index.comparison()["top-1"] == ["0.700", "0.900"]


# Keys and screen readers


def test_everything_can_be_done_by_keys_with_the_focus_in_sight(index: Catalogue) -> None:
    index.press("tab")
    assert index.focused() == "Skip to content"
    index.press("enter")
    index.tab_to("Search")
    index.write("epyc")
    index.tab_to("Top-5")
    index.press("enter")
    assert index.rows() == ["tcl-epyc", "tlp-epyc", "tilenet-epyc"]
    for name in ("tcl-epyc", "tlp-epyc"):
        index.tab_to(f"Compare {name}")
        index.press("space")
    index.tab_to("Compare")
    index.press("enter")
    assert index.focused() == "Comparison"
    index.tab_to("Remove tlp-epyc from the comparison")
    index.press("enter")
    assert index.picked() == ["tcl-epyc"]
    assert index.focused() == "Compare tlp-epyc"


# Themes, screens, paper, no script


def test_without_scripts_it_is_a_plain_table(index: Catalogue) -> None:
    index.scripts(False)
    index.open()
    assert index.rows() == BY_FAMILY
    assert not index.run("return document.querySelector('form').getClientRects().length")
    assert not index.run("return document.querySelectorAll('#zoo input, #zoo button').length")


# One checkpoint


def test_a_checkpoint_is_reached_by_its_name_and_its_commands_are_copied(index: Catalogue) -> None:
    index.follow("tr[data-name='tilenet-t4'] a", "tilenet-t4.html")
    assert index.run("return document.querySelector('h1').textContent").strip() == "tilenet-t4 1.0.0"
    index.run("for (const image of document.images) image.loading = 'eager'")  # lazy ones wait to be scrolled to
    assert index.until("return [...document.images].every(image => image.complete && image.naturalWidth > 0)")
    index.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    index.click("[aria-label='Copy: tchub pull tilenet-t4@1.0.0']")
    assert index.until("return document.querySelector('.copy').textContent === 'Copied'")
    copied = index.browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == "tchub pull tilenet-t4@1.0.0"

"""The catalogue in a real browser, from a file: search, filters, order, comparison, an address to share."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from tchub.hub.registry import Entry, describe
from tchub.hub.site.build import build
from toy_checkpoints import make_registry, write_toy

pytestmark = pytest.mark.browser

_OPTIONS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1280,900",
)  # fmt: skip
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


class Catalogue:
    """The index page in a browser."""

    def __init__(self, browser: Any, index: Path) -> None:
        self.browser = browser
        self.index = index

    def open(self, fragment: str = "") -> None:
        """Load the page anew, with a fragment after `#`."""
        self.browser.get("about:blank")  # the same address with another `#` would not load anew
        self.browser.get(f"{self.index.as_uri()}#{fragment}")

    def all(self, selector: str) -> list[Any]:
        """The elements that are in sight."""
        return [one for one in self.browser.find_elements(By.CSS_SELECTOR, selector) if one.is_displayed()]

    def rows(self) -> list[str]:
        return [row.get_attribute("data-name") for row in self.all("#zoo tr[data-name]")]

    def compared(self) -> list[str]:
        """The columns of the comparison; none while it is hidden."""
        return [link.text for link in self.all("#comparison thead a")]

    def top1(self) -> str:
        """Its line of the top-1 scores."""
        row = next(row for row in self.all("#comparison tbody tr") if row.text.startswith("top-1"))
        return " ".join(row.text.split())

    def text(self, id: str) -> str:
        return self.browser.find_element(By.ID, id).text

    def click(self, selector: str) -> None:
        element = self.browser.find_element(By.CSS_SELECTOR, selector)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def type(self, text: str) -> None:
        self.browser.find_element(By.NAME, "q").send_keys(text)

    def choose(self, field: str, value: str) -> None:
        Select(self.browser.find_element(By.NAME, field)).select_by_value(value)

    def sort(self, column: str) -> None:
        self.click(f"th[data-sort={column}] button")

    def pick(self, *names: str) -> None:
        for name in names:
            self.click(f"tr[data-name='{name}'] input")

    def allow_scripts(self, on: bool) -> None:
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    def requested(self) -> list[str]:
        """The addresses beyond this machine that were asked for since this was last called."""
        events = [json.loads(line["message"])["message"] for line in self.browser.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if address.startswith(("http", "ws"))]


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
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalogue]:
    """The catalogue of six checkpoints of four families, in a browser that logs its console and its network."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.fail(
            "chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver); "
            "to leave these tests out: -m 'not browser'"
        )
    folder = tmp_path_factory.mktemp("site")
    entries = [publish_toy(folder / "wheel" / name / "1.0.0", name, *numbers) for name, numbers in TOYS.items()]
    site = build(make_registry(folder, *entries, wheel=folder / "wheel"), folder / "out").path
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for option in (*_OPTIONS, f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=Service(executable_path=driver)) as browser:
        yield Catalogue(browser, site / "index.html")


@pytest.fixture
def index(opened: Catalogue) -> Iterator[Catalogue]:
    """The index page, opened anew; afterwards the browser is as it was, and nothing was logged or fetched."""
    opened.open()
    yield opened
    opened.allow_scripts(True)
    assert opened.browser.get_log("browser") == []
    assert opened.requested() == []


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("tilenet", ["tilenet-epyc", "tilenet-t4"]),
        ("amd epyc TCL-epyc", ["tcl-epyc"]),
        ("gpl", ["tilenet-t4"]),
        ("no such thing", []),
    ],
)
def test_search_finds_names_devices_and_licences(index, query, names):
    index.type(query)
    assert index.rows() == names
    assert index.text("count") == f"{len(names)} checkpoint{'s' if len(names) != 1 else ''} of 6"
    assert bool(index.all("#none")) == (not names)


def test_filters_narrow_what_the_search_left(index):
    index.type("tcl")
    index.choose("kind", "cpu")
    assert index.rows() == ["tcl-epyc", "tlp-epyc", "tcl-xeon"]  # tlp-epyc reads features called tcl-cpu
    index.choose("origin", "measured")
    index.choose("arch", "tcl")
    assert index.rows() == ["tcl-epyc"]
    index.choose("family", "xeon")
    assert index.rows() == []
    index.click("button[type=reset]")
    assert index.rows() == BY_FAMILY


def test_columns_sort_both_ways_scores_from_the_best(index):
    for number, (column, reverse) in enumerate((("top1", True), ("parameters", False))):
        ordered = sorted(TOYS, key=lambda name, number=number: TOYS[name][number], reverse=reverse)
        for expected in (ordered, ordered[::-1]):
            index.sort(column)
            assert index.rows() == expected


def test_the_address_keeps_the_view_so_that_it_can_be_shared(index):
    index.type("tcl cpu")
    index.choose("origin", "measured")
    index.sort("top1")
    index.pick("tcl-epyc", "tlp-epyc")
    shared, rows = index.browser.current_url, index.rows()
    index.open()
    assert index.rows() == BY_FAMILY
    index.open(shared.partition("#")[2])
    assert index.rows() == rows
    assert index.compared() == ["tcl-epyc", "tlp-epyc"]


@pytest.mark.parametrize(
    "fragment", ["sort=evil&compare=a,b,,tcl-epyc", "compare=%3Cscript%3E&q=%3Cb%3E", "%&=&sort=-"]
)
def test_a_broken_address_does_no_harm(index, fragment):
    index.open(fragment)
    assert index.compared() == []
    assert set(index.rows()) in (set(BY_FAMILY), set())


def test_up_to_four_are_compared_and_the_best_of_one_family_is_marked(index):
    index.pick(*FOUR, "tilenet-t4")
    assert index.compared() == FOUR
    assert index.text("chosen") == "Four at most: take one out before you add tilenet-t4."
    assert index.top1() == "top-1 0.800 0.700 0.600 0.500", "of two families none is"
    index.click("#clear")
    index.pick("tcl-epyc", "tilenet-epyc")
    assert index.top1() == "top-1 0.700 0.800 (highest)"


def test_without_scripts_it_is_a_plain_table(index):
    index.allow_scripts(False)
    index.open()
    assert index.rows() == BY_FAMILY
    assert index.all("form") == []

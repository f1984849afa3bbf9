"""The catalogue as a person uses it in a real headless Chromium, driven by its own driver; nothing is downloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

_OPTIONS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1280,900",
)  # fmt: skip
_IN_SIGHT = "const inSight = (e) => e.getClientRects().length > 0;"


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser with a profile of its own, which keeps a log of its console and its network."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.fail(
            "chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver); "
            "to leave these tests out: -m 'not browser'"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for option in (*_OPTIONS, f"user-data-dir={profile}"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    try:
        yield browser
    finally:
        browser.quit()


class Catalogue:
    """The index page.

    Args:
        browser: a selenium driver. index: the file index.html.
    """

    def __init__(self, browser: Any, index: Path) -> None:
        self.browser = browser
        self.index = index

    def open(self, fragment: str = "") -> None:
        """Load the page anew, with a fragment after `#`."""
        self.browser.get("about:blank")  # the same address with another `#` would not load anew
        self.browser.get(self.index.as_uri() + (f"#{fragment}" if fragment else ""))
        WebDriverWait(self.browser, 5, poll_frequency=0.05).until(
            lambda _: self.run("return document.readyState === 'complete'")
        )

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    # What is in sight

    def rows(self) -> list[str]:
        return self.run(
            f"{_IN_SIGHT} return [...document.querySelectorAll('#zoo tr[data-name]')].filter(inSight)"
            ".map(row => row.dataset.name)"
        )

    def text(self, id: str) -> str:
        return self.browser.find_element(By.ID, id).text

    def shown(self, id: str) -> bool:
        return self.browser.find_element(By.ID, id).is_displayed()

    def compared(self) -> list[str]:
        """The columns of the comparison; none while it is hidden."""
        return self.run(
            f"{_IN_SIGHT} return [...document.querySelectorAll('#comparison thead a')].filter(inSight)"
            ".map(link => link.textContent)"
        )

    def comparison(self) -> dict[str, list[str]]:
        """Its lines from top to bottom: title -> cells."""
        lines = self.run(
            "return [...document.querySelectorAll('#comparison tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return {title: cells for title, *cells in lines}

    # What is done

    def click(self, selector: str) -> None:
        element = self.browser.find_element(By.CSS_SELECTOR, selector)
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def type(self, field: str, text: str) -> None:
        self.browser.find_element(By.NAME, field).send_keys(text)

    def choose(self, field: str, value: str) -> None:
        Select(self.browser.find_element(By.NAME, field)).select_by_value(value)

    def sort(self, column: str) -> None:
        self.click(f"th[data-sort={column}] button")

    def pick(self, *names: str) -> None:
        for name in names:
            self.click(f"tr[data-name='{name}'] input")

    def allow_scripts(self, on: bool) -> None:
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    # What it did since it was last asked

    def complaints(self) -> list[str]:
        """What the browser's console says."""
        return [line["message"] for line in self.browser.get_log("browser")]

    def requested(self) -> list[str]:
        """The addresses beyond this machine that were asked for."""
        events = [json.loads(line["message"])["message"] for line in self.browser.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if address.startswith(("http", "ws"))]

"""A real headless Chromium for tests of pages, driven by its own driver; nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
    "disable-component-update", "disable-sync", "window-size=1280,900",
)  # fmt: skip


def programs() -> tuple[str, str]:
    """Chromium and its driver; a test that needs them fails without."""
    found = shutil.which("chromium"), shutil.which("chromedriver")
    if not (found[0] and found[1]):
        pytest.fail(
            "chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver); "
            "to leave these tests out: -m 'not browser'"
        )
    return found[0], found[1]


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser with a profile of its own, which keeps a log of its console and its network."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    binary, driver = programs()
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

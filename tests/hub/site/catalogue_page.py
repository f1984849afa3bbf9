"""The catalogue as a person uses it in a browser: what is in sight, and what is done to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

_KEYS = {"tab": Keys.TAB, "enter": Keys.ENTER, "space": Keys.SPACE}
_IN_SIGHT = "const inSight = (e) => e.getClientRects().length > 0;"


class Catalogue:
    """The index page, and what it leads to.

    Args:
        browser: a selenium driver. index: the file index.html.
    """

    def __init__(self, browser: Any, index: Path) -> None:
        self.browser = browser
        self.index = index

    # Going there

    def open(self, fragment: str = "") -> None:
        """The index page, with a fragment after `#`."""
        self.browser.get("about:blank")  # the same address with another `#` would not load anew
        self.browser.get(self.index.as_uri() + (f"#{fragment}" if fragment else ""))
        self._wait_for("index.html")

    def follow(self, selector: str, name: str) -> None:
        """Click a link, which leads to the page of this file name."""
        self.click(selector)
        self._wait_for(name)

    def _wait_for(self, name: str) -> None:
        self.until(f"return location.pathname.endsWith('/{name}') && document.readyState === 'complete'")

    # Running and asking

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def until(self, script: str) -> bool:
        """Whether a condition comes true within some seconds."""
        return WebDriverWait(self.browser, 5, poll_frequency=0.05).until(lambda _: self.run(script))

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.browser.execute_cdp_cmd(name, parameters)

    # What is in sight

    def rows(self) -> list[str]:
        return self.run(
            f"{_IN_SIGHT} return [...document.querySelectorAll('#zoo tr[data-name]')].filter(inSight)"
            ".map(row => row.dataset.name)"
        )

    def groups(self) -> list[str]:
        """The families that have a heading."""
        return self.run(
            f"{_IN_SIGHT} return [...document.querySelectorAll('#zoo tr.family')].filter(inSight)"
            ".map(row => row.parentElement.dataset.family)"
        )

    def sorted_by(self) -> dict[str, str]:
        return self.run(
            "return Object.fromEntries([...document.querySelectorAll('th[aria-sort]')]"
            ".map(head => [head.dataset.sort, head.getAttribute('aria-sort')]))"
        )

    def element(self, id: str) -> Any:
        return self.browser.find_element(By.ID, id)

    def text(self, id: str) -> str:
        return self.element(id).text

    def shown(self, id: str) -> bool:
        return self.element(id).is_displayed()

    def picked(self) -> list[str]:
        """The checkpoints with a tick."""
        return self.run("return [...document.querySelectorAll('#zoo :checked')].map(b => b.closest('tr').dataset.name)")

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

    def press(self, key: str) -> None:
        self.write(_KEYS[key])

    def write(self, text: str) -> None:
        self.browser.switch_to.active_element.send_keys(text)

    def focused(self) -> str:
        """The name of what has the focus, as a screen reader would say it."""
        node = self.command("Runtime.evaluate", expression="document.activeElement")["result"]["objectId"]
        (first, *_) = self.command("Accessibility.getPartialAXTree", objectId=node, fetchRelatives=False)["nodes"]
        return first["name"]["value"]

    def tab_to(self, name: str) -> None:
        """Press Tab until the focus is there; each stop on the way must be seen to have it."""
        for _ in range(80):
            self.press("tab")
            style = self.run("return getComputedStyle(document.activeElement).outlineStyle")
            assert style != "none", self.focused()
            if self.focused() == name:
                return
        raise AssertionError(f"no key leads to {name}")

    # How it is looked at

    def scripts(self, on: bool) -> None:
        self.command("Emulation.setScriptExecutionDisabled", value=not on)

    # What it did

    def complaints(self) -> list[str]:
        """What the browser's console says since it was last asked."""
        return [line["message"] for line in self.browser.get_log("browser")]

    def requested(self) -> list[str]:
        """The addresses beyond this machine that were asked for since it was last asked."""
        events = [json.loads(line["message"])["message"] for line in self.browser.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [address for address in sent if address.startswith(("http", "ws"))]

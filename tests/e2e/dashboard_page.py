"""The dashboard in headless Chromium, as its viewers use it: what they read, press and type, not how the page
is made."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from machine import BROWSER, DRIVER
from waiting import DEADLINE_SECONDS, wait_until

DESKTOP, PHONE = (1440, 1120), (390, 844)


class Page:
    """One tab that shows a dashboard."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def resize(self, size: tuple[int, int], *, whole: bool = False) -> None:
        """As on a screen of that size; `whole`: as high as the page is."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        if whole:
            needed = self.script("return document.documentElement.scrollHeight")
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**metrics, "height": needed})

    def system_scheme(self, scheme: str) -> None:
        """What the system prefers: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def text(self, selector: str) -> str:
        """What can be read there; "" where nothing is shown."""
        shown = (
            "const e = document.querySelector(arguments[0]); return e?.checkVisibility() ? e.innerText : ''"
        )
        return str(self.script(shown, selector))

    def link(self) -> str:
        return str(self.script("return document.body.dataset.link"))

    def press(self, selector: str) -> None:
        self.script("document.querySelector(arguments[0]).click()", selector)

    def keys(self, *keys: str) -> None:
        """Typed to whatever has the focus."""
        from selenium.webdriver.common.action_chains import ActionChains  # noqa: PLC0415

        ActionChains(self.driver).send_keys(*keys).perform()

    def until(self, condition: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
        """The first true value of a condition."""
        return wait_until(condition, lambda: f"{what}; the page says:\n{self.text('body')}", seconds=seconds)

    def errors(self) -> list[str]:
        """What the browser complained of, but lost connections."""
        log = self.driver.get_log("browser")
        return [
            entry["message"] for entry in log if entry["level"] == "SEVERE" and entry["source"] != "network"
        ]

    def save(self, path: Path) -> None:
        """A picture of what is shown."""
        assert self.driver.save_screenshot(str(path))


@contextlib.contextmanager
def browser(directory: Path) -> Iterator[Page]:
    """A browser for the length of the block, with its profile in `directory`."""
    from selenium import webdriver  # noqa: PLC0415

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={directory}",
    ):
        options.add_argument(flag)
    if os.geteuid() == 0:  # as in containers, where Chromium's own sandbox cannot be
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        page = Page(driver)
        page.resize(DESKTOP)
        yield page
    finally:
        driver.quit()

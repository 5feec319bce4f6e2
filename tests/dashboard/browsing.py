"""A real browser for tests: Chromium, driven by Playwright, which contacts no other server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
CHARTS = {"": 1, "machines": 0, "rounds": 2, "trust": 0, "credit": 2, "health": 0, "my-machine": 0}
"""How many charts each page has when there is something to draw."""
PEER_CHARTS = 3
SECONDS_MAX = 60


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield the browser; skips the test if there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        pytest.skip("Playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def open_page(browser: Browser, url: str, width: int = 1280, dark: bool = False) -> Page:
    """Open a new page at this address, and wait until Streamlit has drawn it."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light")
    page.set_default_timeout(1000 * SECONDS_MAX)
    page.goto(url)
    page.wait_for_selector("h2")
    return page


MARKS = "svg .mark-group path, svg .mark-rule, svg .mark-line"
COUNT_DRAWN = f"""() => [...document.querySelectorAll('[data-testid=stVegaLiteChart]')]
    .map(one => one.querySelector('{MARKS}') !== null)"""


def drawn(page: Page, charts: int) -> None:
    """Wait until the page has so many charts with marks in each."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

    try:
        page.wait_for_function(
            f"count => (all => all.length === count && all.every(Boolean))(({COUNT_DRAWN})())", arg=charts
        )
    except PlaywrightTimeoutError:
        found = page.evaluate(COUNT_DRAWN)
        raise AssertionError(f"{page.url}: {charts} charts wanted, drawn: {found}; {page.inner_text('body')}") from None

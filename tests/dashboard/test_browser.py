"""The dashboard in a real browser, on the demo and on views of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import write_view
from peer.machine.limits import Limits, PeerSettings
from tests.dashboard.browsing import CHARTS, PEER_CHARTS, chromium, drawn, open_page
from tests.dashboard.one_peer import running_peer
from tests.dashboard.serving import TOKEN, dashboard, pages
from tests.dashboard.views import view_named

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

NARROW = 390
CUT_TEXTS = """[...document.querySelectorAll('[data-testid=stVegaLiteChart] svg')].flatMap(chart =>
    [...chart.querySelectorAll('.role-legend text, .role-axis-label text')].filter(one =>
        (one.closest('.role-legend') || one.textContent.includes(':')) && getComputedStyle(one).opacity !== '0' &&
        one.getBoundingClientRect().right > chart.getBoundingClientRect().right
    ).map(one => one.textContent))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def demo_url(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dashboard("--demo", "--demo-peers", "6", temporary=tmp_path_factory.mktemp("demo")) as served:
        yield served.url


def test_every_page_is_drawn_and_asks_nobody_else(browser: Browser, demo_url: str) -> None:
    page = open_page(browser, demo_url)
    hosts: set[str | None] = set()
    errors: list[str] = []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
    page.on("pageerror", lambda error: errors.append(str(error)))
    for name, charts in CHARTS.items():
        page.goto(f"{demo_url}/{name}")
        page.wait_for_selector("h2")
        drawn(page, charts)
        assert page.locator("[data-testid=stException]").count() == 0
    assert errors == []
    assert hosts - {None} == {"127.0.0.1"}
    rules = "[...document.styleSheets].flatMap(one => [...one.cssRules]).map(one => one.cssText)"
    assert '[data-stale="true"] { opacity: 1 !important; }' in page.evaluate(rules)  # nothing fades on a busy machine
    page.close()


def test_an_update_keeps_every_element(browser: Browser, demo_url: str) -> None:
    """New data goes into the charts that are there: nothing is taken off the page, so nothing flickers."""
    page = open_page(browser, demo_url)
    drawn(page, CHARTS[""])
    page.evaluate(
        "document.querySelectorAll('[data-testid=stVegaLiteChart] svg, [data-testid=stMetric]')"
        ".forEach(one => { one.dataset.kept = 'yes' })"
    )
    before = page.locator("[data-testid=stMetric]").all_inner_texts()
    page.wait_for_function(
        "old => [...document.querySelectorAll('[data-testid=stMetric]')].some((one, i) => one.innerText !== old[i])",
        arg=before,
    )
    charts, metrics = (page.locator(f"[data-testid={one}]").count() for one in ("stVegaLiteChart", "stMetric"))
    assert page.locator("[data-testid=stVegaLiteChart] svg[data-kept]").count() == charts
    assert page.locator("[data-testid=stMetric][data-kept]").count() == metrics
    page.close()


def test_a_narrow_dark_screen_does_not_scroll_sideways(browser: Browser, demo_url: str) -> None:
    page = open_page(browser, demo_url, width=NARROW, dark=True)
    for name, charts in CHARTS.items():
        page.goto(f"{demo_url}/{name}")
        page.wait_for_selector("h2")
        drawn(page, charts)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW
        assert page.evaluate(CUT_TEXTS) == []
    background = page.evaluate("getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor")
    assert max(int(part) for part in background[4:-1].split(",")[:3]) < 64
    page.close()


def test_strangers_words_do_nothing(browser: Browser, tmp_path: Path) -> None:
    write_view(tmp_path / "view.json", view_named("hostile"))
    with pages(tmp_path / "view.json") as url:
        page = open_page(browser, url)
        dialogs: list[str] = []
        asked: set[str | None] = set()
        page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: asked.add(urlsplit(request.url).hostname))
        for name, charts in {**CHARTS, "machines?peer=%3Cb%3E12D3KooW": PEER_CHARTS}.items():
            page.goto(f"{url}/{name}")
            page.wait_for_selector("h2")
            drawn(page, charts)
            for unwanted in (
                "a[href^=javascript]",
                "img[src=x]",
                "a[href*=example]",
                ".katex",
                "main script",
                "main b",
            ):
                assert page.locator(unwanted).count() == 0, (name, unwanted)
        assert dialogs == []
        assert asked - {None} == {"127.0.0.1"}
        assert page.locator("[data-testid=stText]", has_text="<").count() > 0  # shown as it is
        page.close()


def test_a_network_that_is_gone_is_said_to_be(browser: Browser, demo: NetworkView, tmp_path: Path) -> None:
    path = tmp_path / "view.json"
    write_view(path, demo.model_copy(update={"network_seen_unix_seconds": None}))
    with pages(path) as url:
        page = open_page(browser, url)
        page.get_by_text("nothing heard yet").wait_for()
        write_view(path, demo)  # heard years ago
        page.get_by_text("network gone, last seen").wait_for()
        page.close()


def test_a_typed_limit_outlives_updates(browser: Browser, tmp_path: Path) -> None:
    write_view(tmp_path / "view.json", NetworkView())
    with running_peer(tmp_path) as asked, pages(tmp_path / "view.json", tmp_path) as url:
        page = open_page(browser, f"{url}/my-machine?token={TOKEN}")
        page.get_by_text("All limits").click()
        field = page.get_by_role("spinbutton", name="Upload, Mbit per second")
        field.fill("0.5")
        looks = len(asked)
        while len(asked) < looks + 6:  # an update has four questions at most
            page.wait_for_timeout(100)
        assert float(field.input_value()) == 0.5
        page.get_by_role("button", name="Apply").click()
        page.get_by_text("Nothing was changed: upload_mbit and download_mbit must be at least 1").wait_for()
        assert float(field.input_value()) == 0.5
        field.fill("2")
        page.get_by_role("button", name="Apply").click()
        page.get_by_text("Changed, and kept for the next start.").wait_for()
        assert PeerSettings.load(tmp_path).limits == Limits(upload_mbit=2.0)
        page.close()


def test_a_row_leads_to_the_peer(browser: Browser, demo: NetworkView, tmp_path: Path) -> None:
    write_view(tmp_path / "view.json", demo)
    with pages(tmp_path / "view.json") as url:
        page = open_page(browser, f"{url}/machines")
        drawn(page, CHARTS["machines"])
        page.locator("[data-testid=stDataFrame]").click(position={"x": 18, "y": 52})  # the mark of the first row
        page.wait_for_url("**/machines?peer=*")
        first = max(demo.peers, key=lambda one: one.credited_tokens)
        assert page.url.endswith(first.peer_id)
        page.get_by_text(first.name).first.wait_for()
        page.get_by_role("button", name="All machines").click()
        page.wait_for_url("**/machines")
        page.close()

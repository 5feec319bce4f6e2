"""The dashboard over a real swarm, in a real browser.

Loss falls, a cheat is banned, a peer whose owner allows less pauses, and a killed peer is shown as gone.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.views.control import limits, snapshot
from peer.machine.limits import PeerSettings
from tests.dashboard.browsing import chromium, open_page
from tests.dashboard.serving import dashboard
from tests.real.conftest import Swarm, swarm

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["swarm"]  # the fixture

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.swarm, pytest.mark.timeout(600)]

START_SECONDS_MAX = 90
GONE_SECONDS_MAX = 9 + 5  # one presence lifetime of the local preset, plus five seconds


def loss_on(page: Page, below: float = 1e9) -> float:
    """Return the loss shown on the page, once it is below this."""
    found = page.wait_for_function(  # in one call: an update may show the old and the new for a moment
        """below => [...document.querySelectorAll('[data-testid=stMetric]')]
            .filter(one => one.innerText.includes('Loss'))
            .map(one => parseFloat(one.innerText.split('\\n').pop()))
            .find(loss => loss < below)""",
        arg=below,
        timeout=1000 * START_SECONDS_MAX,
    )
    return float(found.json_value())


def cell_on(page: Page, text: str) -> str:
    """Return the text of the table cell that begins so. Tables are painted; their text for screen readers is read."""
    found = page.wait_for_function(
        """text => [...document.querySelectorAll('[data-testid=stDataFrame] [role=gridcell]')]
            .map(one => one.textContent)
            .find(cell => cell.startsWith(text))""",
        arg=text,
        timeout=1000 * START_SECONDS_MAX,
    )
    return str(found.json_value())


def limits_are_obeyed(page: Page, url: str, data: Path) -> None:
    """Check that the page shows it when a peer's owner changes a limit and changes it back."""
    peer_id = snapshot(data).peer_id
    page.goto(f"{url}/machines?peer={peer_id}")
    paused = page.get_by_text(f"{peer_id[-8:]}: paused: its disk limit is reached")
    limits(data, ["disk_gigabytes=0.000001"])
    paused.wait_for(timeout=1000 * START_SECONDS_MAX)
    assert PeerSettings.load(data).limits.disk_gigabytes == 1e-6
    limits(data, ["disk_gigabytes=0"])
    paused.wait_for(state="hidden", timeout=1000 * START_SECONDS_MAX)


def test_a_living_swarm_is_shown_as_it_is(swarm: Swarm) -> None:
    with chromium() as browser:
        swarm.start(5, 4000, "--data", str(swarm.data), "--attack", "false_results:1")
        swarm.read_until_certified()
        host, victim = swarm.data / "host", snapshot(swarm.data / "peer-3")
        culprit = snapshot(swarm.data / "peer-5").peer_id
        with dashboard("--data", str(host), temporary=swarm.folder) as served:
            page = open_page(browser, served.url)
            page.get_by_text("live", exact=True).wait_for(timeout=1000 * START_SECONDS_MAX)
            first = loss_on(page)
            loss_on(page, below=first)
            page.goto(f"{served.url}/trust")
            reason = cell_on(page, "signed a result of partition")
            assert cell_on(page, "signed by this key; checked by the observer")
            page.goto(f"{served.url}/machines?peer={culprit}")
            page.get_by_text(f"{culprit[-8:]}: banned: {reason}").wait_for()
            page.goto(f"{served.url}/my-machine?token={served.token}")
            page.get_by_text("there is nothing to pause").wait_for()
            limits_are_obeyed(page, served.url, swarm.data / "peer-2")
            page.goto(f"{served.url}/machines?peer={victim.peer_id}")
            page.get_by_text(f"{victim.peer_id[-8:]}: ").wait_for()
            os.kill(victim.pid, signal.SIGKILL)
            page.get_by_text(f"{victim.peer_id[-8:]}: gone").wait_for(timeout=1000 * GONE_SECONDS_MAX)
        swarm.process.send_signal(signal.SIGINT)
        report = swarm.finish()
        assert report["agreement"]
        assert [ban["peer"] for ban in report["bans"]] == [culprit]

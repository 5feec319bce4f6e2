"""`python -m tests.dashboard.screenshots`: pictures of every page of the demo, for the README and docs/dashboard.md."""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from dashboard.demo.people import make_people
from tests.dashboard.browsing import CHARTS, PEER_CHARTS, chromium, drawn, open_page
from tests.dashboard.serving import dashboard

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img"
PHONE = (390, 844)
SHOTS = (  # name, address, width, dark
    ("run", "", 1280, False),
    ("network", "network", 1280, False),
    ("rounds", "rounds", 1280, False),
    ("trust", "trust", 1280, False),
    ("credit", "credit", 1280, False),
    ("dark", "network", 1280, True),
    ("narrow", "network", PHONE[0], False),
)
HEIGHT_MAX = 2200
DEMO_PEERS, DEMO_SEED = 12, 1  # what `muster dashboard --demo` has
SETTLE_MILLISECONDS = 2500  # fonts, and a table's first paint on its canvas


def shoot(page: Page, path: Path, width: int) -> None:
    """Save the whole page, on a phone the first screen, in 256 colours for size."""
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    height = page.evaluate("document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight")
    page.set_viewport_size({"width": width, "height": min(height + 8, HEIGHT_MAX if width > PHONE[0] else PHONE[1])})
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.wait_for_function("!document.querySelector('[data-stale=true]')")  # no update is under way
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    picture.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    somebody = make_people(DEMO_PEERS, DEMO_SEED)[2].peer_id
    with (
        chromium() as browser,
        tempfile.TemporaryDirectory() as name,
        dashboard("--demo", temporary=Path(name)) as served,
    ):
        shots = [(*shot, CHARTS[shot[1]]) for shot in SHOTS]
        shots.append(("peer", f"network?peer={somebody}", 1280, False, PEER_CHARTS))
        for shot, address, width, dark, charts in shots:
            page = open_page(browser, f"{served.url}/{address}", width, dark)
            drawn(page, charts)
            shoot(page, folder / f"dashboard-{shot}.png", width)
            page.close()


if __name__ == "__main__":
    main()

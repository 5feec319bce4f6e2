"""`python -m tests.dashboard.screenshots`: pictures of the demo's pages, for README and docs/how-to/dashboard.md."""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from coordinator.views.network_view import NetworkView
from coordinator.views.snapshot import FragmentStatus, PeerSnapshot
from coordinator.views.view_file import write_view
from dashboard.demo.people import make_people
from tests.checkout import ROOT
from tests.dashboard.browsing import CHARTS, PEER_CHARTS, chromium, drawn, open_page
from tests.dashboard.one_peer import running_peer
from tests.dashboard.serving import TOKEN, dashboard, pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES = ROOT / "docs" / "img"
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


def shoot_my_peer(browser: Browser, path: Path) -> None:
    """The page of one's own peer, which a demo has not: one that only its control socket makes look alive."""
    peer_id = make_people(DEMO_PEERS, DEMO_SEED)[2].peer_id
    mine = PeerSnapshot(
        peer_id=peer_id,
        run_id="",
        name="brisk-wren",
        role="learner",
        state="training",
        note="rounds in flight for fragments 4",
        celsius=61.0,
        gpu_watts=212.0,
        pid=1,
        wall_seconds=5400.0,
        steps=10_660,
        steps_per_second=1.97,
        loss=2.417,
        bytes_sent=393 << 20,
        bytes_received=401 << 20,
        peers_live=9,
        credited_tokens={peer_id: 10_321_920},
        fragments=tuple(
            FragmentStatus(
                version=71,
                held_version=71,
                head="",
                state="",
                phase="in a round" if one == 4 else "idle",
                reason="no certificate in time" if one == 4 else "",
            )
            for one in range(6)
        ),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_view(folder / "view.json", NetworkView())
        with running_peer(folder, mine), pages(folder / "view.json", folder) as url:
            page = open_page(browser, f"{url}/my-peer?token={TOKEN}")
            page.get_by_text("Apply").wait_for()
            shoot(page, path, page.viewport_size["width"] if page.viewport_size else 0)
            page.close()


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
        shoot_my_peer(browser, folder / "dashboard-my-peer.png")


if __name__ == "__main__":
    main()

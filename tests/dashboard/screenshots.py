"""`python -m tests.dashboard.screenshots ADDRESS`: pictures of every page of a running dashboard, wide and narrow.

ADDRESS is the line that `muster dashboard` prints, with its token. The pictures in `docs/img` are of a `muster swarm`
of four peers, seen from one of them.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from PIL import Image

from tests.dashboard.browsing import chromium, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGES = ("run", "my-machine", "machines", "credit", "health", "rounds", "trust")
TOGGLES = {"run": "More figures", "machines": "Picture of the groups"}  # pressed for a second picture
PATHS = {"run": ""}  # the default page has no name in the address
WIDE, NARROW = 1280, 390
HEIGHT_MAX = 3000
CONTENT_HEIGHT = "document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight"
SETTLE_MILLISECONDS = 2500  # fonts, and a table's first paint on its canvas


def shoot(page: Page, path: Path) -> None:
    """Save the whole page, in 256 colours for size."""
    width = page.viewport_size["width"] if page.viewport_size else WIDE
    before, height = -1, 0
    while height != before:  # parts that come into sight may grow
        page.wait_for_timeout(SETTLE_MILLISECONDS)
        before, height = height, page.evaluate(CONTENT_HEIGHT)
        page.set_viewport_size({"width": width, "height": min(height + 8, HEIGHT_MAX)})
    page.wait_for_timeout(SETTLE_MILLISECONDS)
    page.wait_for_function("!document.querySelector('[data-stale=true]')")  # no update is under way
    picture = Image.open(io.BytesIO(page.screenshot(animations="disabled"))).convert("RGB")
    picture.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="what `muster dashboard` printed")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--dark", action="store_true", help="as on a dark screen")
    parser.add_argument("pages", nargs="*", default=PAGES, help="some pages only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    at = urlsplit(options.address)
    with chromium() as browser:
        for name in options.pages:
            for width, suffix in ((WIDE, ""), (NARROW, "-narrow")):
                page = open_page(
                    browser, f"{at.scheme}://{at.netloc}/{PATHS.get(name, name)}?{at.query}", width, options.dark
                )
                shoot(page, options.out / f"dashboard-{name}{suffix}.png")
                if name in TOGGLES:
                    page.get_by_text(TOGGLES[name]).click()
                    shoot(page, options.out / f"dashboard-{name}-more{suffix}.png")
                page.close()


if __name__ == "__main__":
    main()

"""Measures the server's time for one update of every page with 1,000 peers, and the time until the demo is drawn.

Run `python tests/bench/bench_dashboard.py`; prints one JSON object. An update is a whole run of the page's script on a
view that has just been written, including reading it; CPU and wall times are medians. `--no-browser` leaves out the
first paint, which needs Chromium and Playwright.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import write_view
from tests.dashboard.browsing import CHARTS, chromium, drawn, open_page
from tests.dashboard.serving import dashboard
from tests.dashboard.test_pages import PAGES, app
from tests.dashboard.views import DEMO_SECONDS, demo_view

UPDATES = 7
VISITS = 4


def update_seconds(page: str, view: NetworkView, folder: Path) -> dict[str, float]:
    """Return the median CPU and wall seconds of one update of a page."""
    at = app(page, view, folder).run()
    cpu, wall = [], []
    for _ in range(UPDATES):
        write_view(folder / "view.json", view)
        cpu_before, wall_before = time.process_time(), time.perf_counter()
        at.run()
        wall.append(time.perf_counter() - wall_before)
        cpu.append(time.process_time() - cpu_before)
    assert not at.exception
    return {"cpu_seconds": round(statistics.median(cpu), 3), "wall_seconds": round(statistics.median(wall), 3)}


def first_paint(peers: int, folder: Path) -> dict[str, object]:
    """Measure the demo: seconds from the command to its address, from opening the page to figures and drawn charts.

    The first visit is by a browser with an empty cache.
    """
    with chromium() as browser:
        started = time.perf_counter()
        with dashboard("--demo", "--demo-peers", str(peers), temporary=folder) as served:
            ready = time.perf_counter()
            paints = []
            for _ in range(VISITS):
                asked = time.perf_counter()
                page = open_page(browser, served.url)
                page.wait_for_selector("[data-testid=stMetric]")
                figures = time.perf_counter() - asked
                drawn(page, CHARTS[""])
                paints.append({"figures": round(figures, 2), "charts": round(time.perf_counter() - asked, 2)})
                page.close()
    return {"command_to_address": round(ready - started, 2), "first_visit": paints[0], "next_visits": paints[1:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--no-browser", action="store_true")
    arguments = parser.parse_args()
    view = demo_view(arguments.peers, DEMO_SECONDS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result: dict[str, object] = {
            "peers": arguments.peers,
            "view_megabytes": round(len(view.model_dump_json()) / 1e6, 1),
            "update": {page: update_seconds(page, view, folder) for page in PAGES},
        }
        if not arguments.no_browser:
            result["demo_seconds"] = first_paint(arguments.peers, folder)
        result["load"] = os.getloadavg()[0]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()

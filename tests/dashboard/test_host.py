"""A real host that serves the dashboard: its pages live as long as it does, and nothing is left when it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from coordinator.views.control import snapshot
from tests.dashboard.browsing import chromium, open_page
from tests.dashboard.serving import free_port

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.browser, pytest.mark.timeout(300)]

END_SECONDS_MAX = 60.0
START_SECONDS_MAX = 90.0


def descendants(pid: int) -> set[int]:
    """Return the process ids of its children, their children and so on."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = {int(one) for task in tasks for one in (task / "children").read_text().split()}
    return children.union(*map(descendants, children))


def public_page(port: int) -> str:
    """Return the public page, once there is one."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                return str(answer.read().decode())
        except OSError:  # the port is not open yet, or there is no page yet
            select.select([], [], [], 0.2)
    raise AssertionError("there is no page")


def test_a_host_serves_the_pages_and_takes_them_with_it() -> None:
    port, page_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as name, chromium() as browser:  # pytest's own is too long for sockets
        data = Path(name, "host")
        command = [sys.executable, "-m", "peer.cli", "host", "--data", str(data), "--dashboard-port", str(port)]
        command += ["--page-port", str(page_port)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "TMPDIR": name}
        ) as process:
            try:
                assert process.stdout is not None
                line = next((one for one in process.stdout if one.startswith("dashboard: ")), "")
                address, _, token = line.strip().partition("/?token=")
                assert address == f"dashboard: http://127.0.0.1:{port}"
                page = open_page(browser, f"http://127.0.0.1:{port}/my-machine?token={token}")
                page.get_by_text(f"…{snapshot(data).peer_id[-8:]}: hosting").wait_for()
                page.get_by_text("there is nothing to pause").wait_for()
                assert "0% done" in public_page(page_port)
                started = [os.pidfd_open(pid) for pid in descendants(process.pid)]
                process.send_signal(signal.SIGINT)
                process.send_signal(signal.SIGINT)
                assert process.wait(END_SECONDS_MAX) == 0
            finally:
                process.kill()
        for child in started:
            assert select.select([child], [], [], END_SECONDS_MAX)[0]
            os.close(child)
        for served in (port, page_port):
            with pytest.raises(OSError, match="refused"):
                urllib.request.urlopen(f"http://127.0.0.1:{served}")
        assert [path for path in Path(name).iterdir() if path.name.startswith("muster-dashboard-")] == []

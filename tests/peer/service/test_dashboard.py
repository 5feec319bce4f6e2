"""The dashboard process beside a host: its output is passed on, it is restarted, and it ends with the host."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dht.errors import UsageError
from peer.cli import main
from peer.service.dashboard import PagesAt, PublicPage, keep_running, tethered

PYTHON = (3, 11)
LASTING = "import os, signal; print(os.getpid(), flush=True); signal.pause()"


async def watched(code: str, enough: Callable[[list[str]], bool], folder: Path) -> list[str]:
    """Return the lines that a kept-running process says until they are enough; then cancel the watcher."""
    lines: list[str] = []
    satisfied = asyncio.Event()

    def say(line: str) -> None:
        lines.append(line)
        if enough(lines):
            satisfied.set()

    keeping = asyncio.create_task(keep_running([sys.executable, "-I", "-S", "-c", code], folder, say, 0.0))
    await satisfied.wait()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    return lines


def test_a_dashboard_that_ends_is_told_and_started_again(tmp_path: Path) -> None:
    lines = asyncio.run(watched("print('no room')", lambda lines: len(lines) == 4, tmp_path))
    assert lines == 2 * ["no room", "the dashboard has ended; it starts again in 0 seconds"]


def test_it_ends_with_whoever_watches(tmp_path: Path) -> None:
    lines = asyncio.run(watched(LASTING, bool, tmp_path))
    with pytest.raises(ProcessLookupError):
        os.kill(int(lines[0]), 0)
    assert len(lines) == 1


def test_a_dashboard_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    lines = asyncio.run(watched("", lambda lines: len(lines) == 2, tmp_path / "nowhere"))
    assert lines[0] == "the dashboard cannot be started: No such file or directory"


def test_a_module_runs_on_a_tether_of_ours() -> None:
    assert tethered(["peer.cli", "dashboard"])[4:] == [str(os.getpid()), sys.executable, "-m", "peer.cli", "dashboard"]


def test_where_nobody_can_listen_is_said() -> None:
    with pytest.raises(UsageError, match=r"an IP address such as 127\.0\.0\.1, not at 'everywhere'"):
        PagesAt(8501, "everywhere").check()
    assert PagesAt(8501, "::1").url == "http://[::1]:8501"


def test_a_host_whose_dashboard_has_no_port_does_not_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main.run(["host", "--data", str(tmp_path / "host"), "--dashboard-port", port], PYTHON) == 2
    captured = capsys.readouterr()
    assert port in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "host").exists()


def test_where_the_page_goes_is_passed_on() -> None:
    assert PublicPage().arguments() == []
    both = PublicPage(Path("/var/www"), PagesAt(8080, "0.0.0.0"))
    assert both.arguments() == ["--page", "/var/www", "--page-port", "8080", "--page-listen", "0.0.0.0"]


def test_a_host_whose_page_has_no_port_does_not_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = ["host", "--data", str(tmp_path / "host"), "--page-port"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main.run([*begin, port], PYTHON) == 2
        assert port in capsys.readouterr().err
    assert main.run([*begin, port, "--dashboard-port", port], PYTHON) == 2
    assert "--dashboard-port, --page-port need a port each" in capsys.readouterr().err
    assert main.run([*begin, port, "--page-listen", "nowhere"], PYTHON) == 2
    assert "not at 'nowhere'" in capsys.readouterr().err
    assert not (tmp_path / "host").exists()

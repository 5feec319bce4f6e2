"""`muster dashboard` as a process, for tests and screenshots."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS_MAX = 60.0
TOKEN = "a-token-of-the-test-as-long-as-real-ones"
END_SECONDS_MAX = 20.0


@dataclass(frozen=True)
class Served:
    """A running dashboard with its address."""

    process: subprocess.Popen[str]
    url: str
    token: str = ""

    def children(self) -> set[int]:
        """Return the process ids of its children."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        lists = [(task / "children").read_text().split() for task in tasks.iterdir()]
        return {int(one) for found in lists for one in found}


@contextmanager
def pages(view: Path, data: Path | None = None) -> Iterator[str]:
    """Serve only the pages, over a view that the caller writes; yields their address."""
    port = free_port()
    command = [sys.executable, "-m", "dashboard.serve", "--view", str(view), "--port", str(port)]
    if data is not None:
        (data / "token").write_text(TOKEN)
        command += ["--data", str(data), "--token-file", str(data / "token")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_SECONDS_MAX
            while not _answers(port):
                assert process.poll() is None
                assert time.monotonic() < deadline
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        select.select([], [], [], 0.1)
        return False
    return True


def free_port() -> int:
    """Return a port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def dashboard(*arguments: str, temporary: Path) -> Iterator[Served]:
    """Run `muster dashboard` until the block ends; its temporary files go to the folder `temporary`."""
    port = free_port()
    command = [sys.executable, "-m", "peer.cli", "dashboard", *arguments, "--port", str(port), "--headless"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        yield Served(process, f"http://127.0.0.1:{port}", line.strip().partition("?token=")[2])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_SECONDS_MAX)

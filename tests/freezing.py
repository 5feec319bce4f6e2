"""Processes that stop in the middle of everything, and live on: what their peers see of a machine that has vanished."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def freeze(child: int) -> None:
    """Stop a child process; returns once all of its threads have stopped."""
    os.kill(child, signal.SIGSTOP)
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)


@contextmanager
def frozen(child: int) -> Iterator[None]:
    """Its connections stay, and nothing comes over them any more."""
    freeze(child)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)

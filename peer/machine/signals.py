"""Signals that end a process from outside while asyncio runs: Ctrl-C, and those of `kill` or a service manager."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(numbers: Collection[signal.Signals], handler: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Within the block, call `handler` in the running loop for each of these signals, instead of their usual effect."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

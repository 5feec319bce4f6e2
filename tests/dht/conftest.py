"""Identities, rules and an event loop for the tests of `dht`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dht.identity import Identity

RUN_ID = bytes(range(32))
ALICE, BOB, CAROL, DAVE = (Identity(bytes([number]) * 32) for number in (1, 2, 3, 4))
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for a module, so that real nodes can outlive a test."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, which pytest's own does not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)

"""What every test of a peer's shell needs, whichever command it runs in its own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from peer.cli_log import CHATTY


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands configure logging for a whole process; a test run has to go on as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET)

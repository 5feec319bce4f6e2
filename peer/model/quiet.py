"""Contexts that silence `transformers` while models are made, loaded or written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hide the warnings of `transformers` within the block: we check for ourselves, and may disagree."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def without_bars() -> Iterator[None]:
    """Disable the progress bars of `transformers` within the block."""
    from transformers.utils import logging

    drawn = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if drawn:
            logging.enable_progress_bar()


@contextmanager
def quietly() -> Iterator[None]:
    """Hide progress bars and developer warnings; for commands, where no other code runs at the same time."""
    with without_bars(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield

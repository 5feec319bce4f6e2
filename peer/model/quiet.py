"""Making, loading and writing models without what `transformers` says on its own account."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unheard() -> Iterator[None]:
    """What `transformers` warns of meanwhile is not shown: we look for it ourselves, and may say the opposite."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def without_bars() -> Iterator[None]:
    """Within, `transformers` draws no bars; afterwards it does as before."""
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
    """Without warnings for its developers either; for a command, where nothing else runs beside."""
    with without_bars(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield

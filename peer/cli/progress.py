"""What is done before the first step, for whoever looks on: a bar in a terminal, now and then a line elsewhere."""

from __future__ import annotations

import os
import sys

from peer.data.tally import Loading

BAR_CHARACTERS = 24
SHARE_BETWEEN_LINES = 0.25


class ProgressBar:
    """`peer.data.tally.Tell` for people; writes to the standard error, which no script reads."""

    def __init__(self) -> None:
        self._doing = ""
        self._share = 0.0
        self._open = False  # whether a bar stands in the last line

    def __call__(self, doing: str, share: float | None) -> None:
        terminal = sys.stderr.isatty()
        if terminal and share is not None:
            self._bar(doing, share)
        elif doing != self._doing or (share or 0.0) >= self._share + SHARE_BETWEEN_LINES:
            self._line(doing if share is None else f"{doing}: {share:.0%}")
        else:
            return
        self._doing, self._share = doing, share or 0.0

    def _bar(self, doing: str, share: float) -> None:
        done = round(BAR_CHARACTERS * share)
        sys.stderr.write(f"\r{doing} [{'#' * done}{'.' * (BAR_CHARACTERS - done)}] {share:4.0%}")
        self._open = share < 1
        if not self._open:
            sys.stderr.write("\n")
        sys.stderr.flush()

    def _line(self, text: str) -> None:
        sys.stderr.write(("\n" if self._open else "") + f"{text}\n")
        sys.stderr.flush()
        self._open = False


def loading(threads: int) -> Loading:
    """How a command loads text: with a bar, and with so many threads; 0 for all cores."""
    return Loading(ProgressBar(), threads or len(os.sched_getaffinity(0)))

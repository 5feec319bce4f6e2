"""Progress for people: a bar in a terminal, an occasional line elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from peer.data.tally import Loading

if TYPE_CHECKING:
    from peer.lab.report import CurvePoint
    from peer.lab.session import Show
    from peer.service.trackers import Tracking

BAR_CHARACTERS = 24
SHARE_BETWEEN_LINES = 0.25
LAB_RUN = "lab"  # all other runs are baselines


class ProgressBar:
    """A `peer.data.tally.Tell` for people. It writes to standard error, which no script reads."""

    def __init__(self) -> None:
        self._stage = self._part = self._doing = ""
        self._share = 0.0
        self._open = False  # whether the last line holds an unfinished bar

    def begin(self, stage: str) -> None:
        """Note the stage that a start has reached; `stage` tells it, nothing is written."""
        self._stage, self._part = stage, ""

    @property
    def stage(self) -> str:
        """The current stage of a start, with its progress; empty before the first."""
        return f"{self._stage} ({self._part})" if self._part else self._stage

    def __call__(self, doing: str, share: float | None) -> None:
        self._part = "" if share is None else f"{doing}, {share:.0%}"
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
    """Return how a command loads text: with a progress bar, and with so many threads; 0 for all cores."""
    return Loading(ProgressBar(), threads or len(os.sched_getaffinity(0)))


@contextmanager
def shown(steps: int, plain: bool) -> Iterator[Show]:
    """Yield the callback that shows the runs: as progress bars, or as a line per evaluation if `plain`."""
    if plain:
        yield _print_points
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[loss]}")) as progress:
        tasks: dict[str, Any] = {}

        def show(name: str, step: int, points: list[CurvePoint]) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=steps, loss="")
            progress.update(tasks[name], completed=step)
            for point in points:
                progress.update(tasks[name], loss=f"{point.eval_loss:.4f} nats")

        yield show


@contextmanager
def drawn(show: Show, tracking: Tracking | None, run: str, learners: int) -> Iterator[Show]:
    """Yield a callback that also sends the lab's own curve to the tracker; `show` itself without one."""
    if tracking is None:
        yield show
        return
    from peer.service.tracking import TrackerThread

    thread = TrackerThread(tracking, run, typer.echo)

    def show_and_draw(name: str, step: int, points: list[CurvePoint]) -> None:
        show(name, step, points)
        for point in points if name == LAB_RUN else ():
            numbers = {"held_out_loss": point.eval_loss, "tokens": point.tokens, "versions": point.versions}
            numbers |= {"peers": learners} | ({} if point.train_loss is None else {"loss": point.train_loss})
            thread.note(round(point.step), numbers)

    try:
        yield show_and_draw
    finally:
        thread.close()


def _print_points(name: str, step: int, points: list[CurvePoint]) -> None:
    for point in points:
        typer.echo(f"{name}: step {point.step:g}, {point.tokens:,} tokens, held out {point.eval_loss:.4f}")

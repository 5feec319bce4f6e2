"""The terminal view of a run: lines about the whole, then a row per peer, as many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coordinator.views import quantity
from peer.machine.sparkline import sparkline

LABEL_CHARACTERS = 13  # "kind of data" is the longest
SPARKLINE_CHARACTERS = 32
AROUND_LINES = 4  # headings, an empty line, and where the cursor stands


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. Numbers (`is_number`) are right-aligned; cells longer than `width_max` are cut."""

    heading: str
    is_number: bool = False
    width_max: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one peer; empty last cells may be left out."""

    cells: Sequence[str]
    style: str | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Lines and a table to draw. Cells are plain text, because strangers choose some of it."""

    lines: Sequence[Text]
    columns: Sequence[Column]
    rows: Sequence[Row]

    def draw(self, rows_max: int) -> RenderableType:
        """Draw the lines and at most so many rows; the last one says how many more there are."""
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
        shown = self.rows if len(self.rows) <= rows_max else self.rows[: max(0, rows_max - 1)]
        for at, one in enumerate(self.columns):
            cells = [one.heading, *(row.cells[at] for row in shown if at < len(row.cells))]
            table.add_column(
                one.heading,
                justify="right" if one.is_number else "left",
                no_wrap=True,
                min_width=max(map(len, cells)) if one.is_number else None,  # half a number says nothing
                max_width=one.width_max,
            )
        for row in shown:
            table.add_row(*map(Text, row.cells), style=row.style)
        if len(shown) < len(self.rows):
            table.add_row("…", f"{len(self.rows) - len(shown)} more")
        return Group(*self.lines, Text(), table)


def labelled(label: str, text: str, style: str = "") -> Text:
    """Return one line with a label."""
    return Text(f"{label:<{LABEL_CHARACTERS - 1}} {text}", style=style)


def loss_line(losses: Sequence[float]) -> Text:
    """Return a line with the curve of held-out losses and the newest one."""
    curve = sparkline(losses, SPARKLINE_CHARACTERS)
    return labelled("held out", f"{curve} {quantity.loss(losses[-1] if losses else None)}")


class LiveView:
    """Redraws a picture in place, with `screen` on the terminal's alternate screen. A context manager."""

    def __init__(self, console: Console, screen: bool = False) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=not screen, screen=screen)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, picture: Picture) -> None:
        around = len(picture.lines) + AROUND_LINES
        self._live.update(picture.draw(max(1, self._console.height - around)), refresh=True)

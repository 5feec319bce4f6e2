"""Plots of the planner: pages (.html, which load their drawing script from the web) and pictures (.png)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dht.errors import LocalError, UsageError
from peer.plan.tables import Table

WIDTH, HEIGHT = 560, 320
COLOURS = (  # twelve that differ from white and from each other: Table 13 has as many rows
    *("#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#eeca3b"),
    *("#b279a2", "#ff9da6", "#9d755d", "#bab0ac", "#1b1b1b", "#2c2c9e"),
)
LEGEND = "line: ours; circle: the paper's"
NO_PICTURES = "pictures need vl-convert-python: pip install vl-convert-python, or ask for .html"


def table_plot(tables: Sequence[Table], log: bool, path: Path) -> None:
    """Plot tables one below another: our numbers as lines, the paper's as circles. Raises UsageError or LocalError."""
    import altair

    charts = []
    for table in tables:
        columns = list(dict.fromkeys(cell.column for cell in table.cells))
        base = altair.Chart(
            {"values": [row for cell in table.cells for row in _points(cell.row, cell.column, cell.ours, cell.paper)]},
            width=WIDTH,
            height=HEIGHT,
            title=table.title,
        ).encode(
            x=altair.X("column:N", sort=columns, title=table.across, axis=altair.Axis(labelAngle=0)),
            y=altair.Y("value:Q", title=table.title, scale=altair.Scale(type="log" if log else "linear")),
            color=altair.Color("row:N", sort=None, title=LEGEND, scale=altair.Scale(range=COLOURS)),
        )
        charts.append(
            base.transform_filter("datum.source === 'ours'").mark_line()
            + base.transform_filter("datum.source === 'paper'").mark_point(size=60, filled=False)
        )
    write(altair.vconcat(*charts), path)


def _points(row: str, column: str, ours: str, paper: str | None) -> list[dict[str, object]]:
    points: list[dict[str, object]] = [{"row": row, "column": column, "source": "ours", "value": float(ours)}]
    if paper is not None:
        points.append({"row": row, "column": column, "source": "paper", "value": float(paper)})
    return points


def lines_plot(rows: Sequence[dict[str, object]], title: str, path: Path) -> None:
    """Plot useful compute against line speed, one line per method. Raises UsageError or LocalError."""
    import altair

    chart = (
        altair.Chart({"values": list(rows)}, width=WIDTH, height=HEIGHT, title=title)
        .mark_line(point=True)
        .encode(
            x=altair.X("mbit:Q", scale=altair.Scale(type="log"), title="median uplink, Mbit/s"),
            y=altair.Y("useful:Q", scale=altair.Scale(domain=[0, 1]), title="useful share of compute"),
            color=altair.Color("method:N", sort=None, title=None),
        )
    )
    write(chart, path)


def check_format(path: Path) -> None:
    """Raise UsageError for a format that cannot be written here; call it before long work begins."""
    if path.suffix not in (".html", ".png"):
        raise UsageError(f"a plot is a .html or a .png file, not {path.name}")
    if path.suffix == ".png" and find_spec("vl_convert") is None:
        raise UsageError(NO_PICTURES)


def write(chart: Any, path: Path) -> None:
    """Save a chart; raises UsageError for a format that cannot be written here, LocalError if the disk refuses."""
    check_format(path)
    try:
        chart.save(str(path))
    except (ImportError, ValueError):
        raise UsageError(NO_PICTURES) from None
    except OSError as error:
        raise LocalError(f"nothing can be written to {path}: {error.strerror}") from None

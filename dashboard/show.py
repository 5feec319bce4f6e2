"""The parts of a page: status, figures, charts, tables. They show strangers' text plain or escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import streamlit as st

from coordinator.views.network_view import SENTENCE_CHARACTERS_MAX
from dashboard.charts import Spec
from dashboard.frames.rows import Row
from dashboard.frames.run import alert
from dashboard.source import SeenView
from dashboard.text import ago, escaped, plain

UPDATE_SECONDS = 2.0  # between two updates of an open page
TABLE_ROWS_SHOWN = 12
UNKNOWN_CELL = "–"
ROW_PIXELS = 35
FIGURE_PIXELS = 158


def status(seen: SeenView, alerts: bool = True) -> None:
    """Show which run this is, how fresh its view is, and what needs attention now."""
    view = seen.view
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.text(f"{plain(view.name) or 'no run yet'}  {view.run_id[:12]}")
        if view.demo:
            st.badge("demo: simulated", color="violet")
        if view.finished:
            st.badge("finished", color="green")
        elif seen.age_seconds is None:
            st.badge("nothing heard yet", color="gray")
        elif seen.left:
            st.badge(escaped(f"everybody has left, {ago(seen.age_seconds)}"), color="gray")
        elif seen.silent:
            st.badge(escaped(f"network gone, last seen {ago(seen.age_seconds)}"), color="red")
        else:
            st.badge("live", color="green")
    if view.note and not view.demo and not view.finished:  # after the end it is normal that no peer answers
        st.text(plain(view.note, SENTENCE_CHARACTERS_MAX))
    if alerts and (told := alert(view)):
        st.warning(escaped(told, SENTENCE_CHARACTERS_MAX))


def figures(values: Mapping[str, str], helps: Mapping[str, str] | None = None) -> None:
    """Show a row of figures under their labels; it wraps on a narrow screen."""
    with st.container(horizontal=True, gap="small"):
        for name, value in values.items():
            explanation = (helps or {}).get(name)
            st.metric(
                escaped(name),
                escaped(value),
                help=None if explanation is None else escaped(explanation),
                border=True,
                width=FIGURE_PIXELS,
            )


def chart(rows: Sequence[Row], spec: Spec, key: str, nothing: str = "Nothing to draw yet.") -> None:
    """Show a chart of these rows, or the line `nothing` if there are none."""
    with st.container(key=f"chart-{key}"):
        if rows:
            st.vega_lite_chart(list(rows), spec, key=key, width="stretch")
        else:
            st.text(nothing)


def table(rows: Sequence[Row], columns: Mapping[str, Any], key: str, nothing: str = "Nothing yet.") -> None:
    """Show a table with these columns, or the line `nothing` if it has no rows."""
    if rows:
        st.dataframe(
            [{column: row[column] for column in columns} for row in rows],
            column_config=dict(columns),
            hide_index=True,
            height=table_height(len(rows)),
            placeholder=UNKNOWN_CELL,
            key=key,
        )
    else:
        st.text(nothing)


def table_height(rows: int) -> int:
    """Return the height in pixels of a table with its heading; long tables scroll."""
    return ROW_PIXELS * (1 + min(rows, TABLE_ROWS_SHOWN)) + 3


def words(title: str, width: Literal["small", "medium", "large"] | int | None = None) -> Any:
    """Return a column of text."""
    return st.column_config.TextColumn(title, width=width)


def number(title: str, form: str = "localized") -> Any:
    """Return a column of numbers."""
    return st.column_config.NumberColumn(title, format=form)


def share(title: str, highest: float) -> Any:
    """Return a column of shares in percent with bars, of which the highest is full."""
    return st.column_config.ProgressColumn(title, format="%.1f", min_value=0, max_value=highest or 1.0)


def time_of_day(title: str) -> Any:
    """Return a column of times in the reader's time zone."""
    return st.column_config.DatetimeColumn(title, format="HH:mm:ss", timezone=st.context.timezone)

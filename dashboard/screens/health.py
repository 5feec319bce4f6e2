"""The page about problems, in words only."""

from __future__ import annotations

import streamlit as st

from coordinator.views.network_view import SENTENCE_CHARACTERS_MAX
from dashboard import show
from dashboard.frames import health
from dashboard.source import Source
from dashboard.text import ago, escaped


def page(source: Source) -> None:
    """Draw the page."""
    st.header("Health")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        show.status(seen, alerts=False)
        found = health.problems(seen.view)
        gone_too_soon = seen.silent and not seen.left and not seen.view.finished
        if gone_too_soon and seen.age_seconds is not None:
            found.insert(0, f"The network is silent; it was last heard {ago(seen.age_seconds)}.")
        for problem in found:
            st.warning(escaped(problem, SENTENCE_CHARACTERS_MAX))
        if not found:
            st.success("No problems.")
        st.text("How rounds went, and what proves a ban, is under Advanced.")

    body()

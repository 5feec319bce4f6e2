"""Who contributed how much. Every figure is a sum over certificates, none is a claim."""

from __future__ import annotations

import streamlit as st

from dashboard import charts, show
from dashboard.frames import credit
from dashboard.source import Source


def page(source: Source) -> None:
    """The page."""
    st.header("Credit")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        show.status(seen)
        st.text("Tokens in certified versions, recomputed from the certificates; each token counts once.")
        rows = credit.leaderboard(seen.view)
        highest = max((float(str(row["share"])) for row in rows), default=1.0)
        columns = {
            "place": show.number("Place"),
            "peer": show.words("Peer"),
            "team": show.words("Team"),
            "tokens": show.number("Certified tokens"),
            "share": st.column_config.ProgressColumn("Share (%)", format="%.1f", min_value=0, max_value=highest),
            "versions": show.number("Versions"),
            "last": show.time_of_day("Last included"),
        }
        show.table(rows, columns, "leaderboard", "No version is certified yet.")
        st.subheader("The first eight over time")
        show.chart(credit.history_rows(seen.view), charts.credit_history(), "credit-history")
        teams = credit.team_rows(seen.view)
        st.subheader("Teams")
        show.chart(teams, charts.teams(), "teams", "Nobody names a team.")

    body()

"""The page about credit. Every figure is a sum over certificates; none is a claim."""

from __future__ import annotations

import streamlit as st

from dashboard import charts, show
from dashboard.frames import credit
from dashboard.own_peer import own_peer
from dashboard.source import Source

HOW_COUNTED = (
    "Tokens in certified versions, counted from the certificates that this dashboard has seen; each token counts once. "
    "The command muster credit counts from the beginning of the run."
)


def page(source: Source) -> None:
    """Draw the page."""
    st.header("Credit")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        show.status(seen)
        st.text(HOW_COUNTED)
        rows = credit.leaderboard(seen.view, own_peer(source.data_directory).peer_id)
        columns = {
            "place": show.number("Place"),
            "peer": show.words("Machine"),
            "team": show.words("Team"),
            "tokens": show.number("Certified tokens"),
            "share": show.share("Share (%)", max((float(str(row["share"])) for row in rows), default=1.0)),
            "versions": show.number("Versions"),
            "last": show.time_of_day("Last included"),
        }
        show.table(rows, columns, "leaderboard", "No version is certified yet.")
        st.subheader("By day, since this dashboard was started")
        show.chart(
            credit.day_rows(seen.view),
            charts.credit_days(),
            "credit-days",
            "Nothing yet.",
        )
        st.subheader("Over time" if len(rows) <= credit.HISTORY_PEERS else "The first eight over time")
        show.chart(credit.history_rows(seen.view), charts.credit_history(), "credit-history")
        teams = credit.team_rows(seen.view)
        st.subheader("Teams")
        show.chart(teams, charts.teams(), "teams", "Nobody names a team.")

    body()

"""The page about trust: bans with their evidence, probation, audits and complaints."""

from __future__ import annotations

import streamlit as st

from dashboard import show
from dashboard.frames import trust
from dashboard.source import Source


def page(source: Source) -> None:
    """Draw the page."""
    st.header("Trust")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        view = seen.view
        show.status(seen)
        bans, probation = trust.ban_rows(view), trust.probation_rows(view)
        audits, complaints = trust.audit_rows(view, "audit"), trust.audit_rows(view, "complaint")
        counts = {"Banned": bans, "On probation": probation, "Audits": audits, "Complaints": complaints}
        show.figures({name: str(len(rows)) for name, rows in counts.items()})
        st.subheader("Bans")
        st.text(
            "A key is banned when it has signed what no honest peer signs. The page checks these signatures itself."
        )
        columns = {
            "at": show.time_of_day("When"),
            "peer": show.words("Peer"),
            "reason": show.words("Reason"),
            "evidence": show.words("Evidence"),
            "peer_id": show.words("Key"),
        }
        show.table(bans, columns, "bans", "Nobody was banned.")
        st.subheader("Probation")
        st.text("New keys train for some rounds before their work counts, where the run says so.")
        columns = {
            "peer": show.words("Peer"),
            "steps": show.number("Steps"),
            "last_seen": show.number("Last seen (s ago)", "%.0f"),
        }
        show.table(probation, columns, "probation", "Nobody is on probation.")
        st.subheader("Audits")
        st.text("An audit computes a result again, and compares it with what was delivered.")
        columns = {
            "at": show.time_of_day("When"),
            "about": show.words("About"),
            "by": show.words("By"),
            "round": show.words("Round"),
            "result": show.words("Result"),
            "reason": show.words("Reason"),
        }
        show.table(audits, columns, "audits", "No audit was reported.")
        st.subheader("Complaints")
        st.text("One machine says that another did not do its part. Nobody is punished for that alone.")
        del columns["result"]
        show.table(complaints, columns, "complaints", "Nobody complained.")

    body()
    st.download_button(
        "Evidence (hex, one ban on each line)",
        lambda: trust.evidence_lines(source.see().view),
        file_name="evidence.txt",
        mime="text/plain",
        icon=":material/download:",
        on_click="ignore",
    )

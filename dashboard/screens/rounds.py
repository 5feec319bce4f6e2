"""The page about the last rounds: phases, late members, void rounds, certificates and events."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import charts, show
from dashboard.frames import rounds
from dashboard.frames.rows import Row
from dashboard.source import Source

ROUND = (
    "The model is cut into fragments. A round makes the next version of one fragment: a group meets, each member sends "
    "what it has learnt, they merge it, check each other, and vote."
)
PHASE_TERMS = (
    "join: until enough have come; grace: a little longer, for more; encode: shorten what was learnt; "
    "commit: promise it; scatter: send it; reduce: merge it; check: look into what others merged; "
    "vote: sign it; adopt: take it over."
)
LATENCIES = (
    "How long each phase took in rounds that were certified. Half of them were faster than the bar, and nineteen of "
    "twenty faster than the mark."
)
EVENTS = (
    "What this dashboard has noticed since it was started. Live: a machine has come; gone: nothing is heard of it any "
    "more; lineage changed: after a split of the network, another branch goes on."
)
CERTIFICATE_TERMS = (
    "A certificate is a new version of a fragment with the signatures of those that made and checked it. "
    "Digest: its fingerprint; roster: the group's members; contributions: of so many it holds work; votes: so many "
    "signed it; full: enough did; minor: fewer, and it is taken only where nothing else comes."
)
OUTCOMES = (
    "Late: came when enough were there already, or did not answer. Void: came to nothing; another attempt follows."
)


def page(source: Source) -> None:
    """Draw the page."""
    st.header("Rounds")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        view = seen.view
        show.status(seen)
        st.text(ROUND)
        st.subheader("Timeline by phase")
        st.text(PHASE_TERMS)
        bars = rounds.gantt_rows(view)
        show.chart(bars, charts.gantt(len({row["order"] for row in bars})), "gantt", "No round has been reported yet.")
        st.subheader("Late, void, and why")
        st.text(OUTCOMES)
        wanted = st.segmented_control("Rounds", ["all", "late", "void"], default="all", key="rounds-listed")
        show_rounds([row for row in rounds.round_table(view) if wanted in (None, "all") or row[wanted]], "rounds")
        st.subheader("Latency by phase")
        st.text(LATENCIES)
        show.chart(rounds.latency_rows(view), charts.latency(), "latency", "No round was certified yet.")
        st.subheader("Certificates")
        st.text(CERTIFICATE_TERMS)
        _certificates(rounds.certificate_table(view))
        st.subheader("Events")
        st.text(EVENTS)
        columns = {"event": show.words("Event"), "count": show.number("How often")}
        show.table(rounds.event_rows(view), columns, "events", "Nothing has happened yet.")

    body()
    st.download_button(
        "Event tape (JSON lines)",
        lambda: rounds.tape_lines(source.see().view),
        file_name="tape.jsonl",
        mime="application/jsonl",
        icon=":material/download:",
        on_click="ignore",
    )


def show_rounds(rows: Sequence[Row], key: str) -> None:
    """Show a table of rounds."""
    columns = {
        "began": show.time_of_day("Began"),
        "round": show.words("Round"),
        "outcome": show.words("Outcome", "small"),
        "why": show.words("Why", "medium"),
        "late": show.words("Late", "large"),
        "leader": show.words("Leader"),
        "members": show.number("Members"),
        "seconds": show.number("Seconds", "%.2f"),
    }
    show.table(rows, columns, key, "No round has been reported yet.")


def _certificates(rows: Sequence[Row]) -> None:
    columns = {
        "seen": show.time_of_day("Seen"),
        "fragment": show.number("Fragment"),
        "version": show.number("Version"),
        "digest": show.words("Digest"),
        "kind": show.words("Kind"),
        "included": show.number("Contributions"),
        "roster": show.number("Roster"),
        "votes": show.number("Votes"),
        "tokens": show.number("Tokens"),
        "leader": show.words("Leader"),
        "signatures": show.words("Signatures"),
    }
    show.table(rows, columns, "certificates", "No version is certified yet.")

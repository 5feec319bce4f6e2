"""The page about peers, and about one peer under its own address (`?peer=ID`)."""

from __future__ import annotations

import streamlit as st

from coordinator.views.network_view import NetworkView, PeerView
from dashboard import charts, show
from dashboard.frames import network, rounds
from dashboard.frames.rows import Row
from dashboard.own_peer import own_peer
from dashboard.screens.rounds import show_rounds
from dashboard.source import Source
from dashboard.text import label

PEER = "peer"  # in the address
SHOWN = "network-shown"  # the peer ids of the table's rows, in order
FACT_PIXELS = 130
STATE_PIXELS = 220  # wide enough to read the reason of a ban
TABLES = "network-tables"  # counts up when a selection has been followed, so that the selection is forgotten


def page(source: Source) -> None:
    """Draw all peers, or the peer that the address names."""
    chosen = st.query_params.get(PEER, "")
    if chosen:
        _one(source, chosen)
    else:
        _everybody(source)


def _everybody(source: Source) -> None:
    st.header("Machines")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def counts() -> None:
        seen = source.see()
        show.status(seen)
        found = network.kind_counts(seen.view)
        st.text(", ".join(f"{count} {name}" for name, count in found.items() if count))

    counts()
    with st.container(horizontal=True):
        text = st.text_input("Find", placeholder="name, id or device", key="network-find", max_chars=64)
        kinds = st.multiselect("State", list(network.KINDS), key="network-kinds")

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def table() -> None:
        view = source.see().view
        _table(network.peer_table(view, text or "", kinds, own_peer(source.data_directory).peer_id))

    table()
    if st.toggle("Picture of the groups", key="network-picture"):
        _picture(source)


@st.fragment(run_every=show.UPDATE_SECONDS)
def _picture(source: Source) -> None:
    show.chart(network.graph_rows(source.see().view), charts.graph(), "graph", "No peer has been seen yet.")
    st.text(
        "Lines run from a leader to its group: orange while a round runs, green when it is certified, red when void."
    )


def _table(rows: list[Row]) -> None:
    """Draw the table; choosing a row opens the peer that was in it at that moment."""
    if not rows:
        st.text("No peer matches.")
        return
    key = f"{TABLES}-{st.session_state.get(TABLES, 0)}"
    state = st.session_state.get(key)
    chosen = state["selection"]["rows"] if state else []
    shown = st.session_state.get(SHOWN, [])
    if chosen and chosen[0] < len(shown):
        st.session_state[TABLES] = st.session_state.get(TABLES, 0) + 1
        st.query_params[PEER] = shown[chosen[0]]
        st.rerun()
    st.session_state[SHOWN] = [row["peer_id"] for row in rows]
    st.text(f"{len(rows)} machines, most work first; choose a row for its history.")
    columns = {
        "peer": show.words("Machine"),
        "share": show.share("Share of the work (%)", max(float(str(row["share"] or 0.0)) for row in rows)),
        "state": show.words("State", STATE_PIXELS),
        "device": show.words("Device"),
        "credit": show.number("Certified tokens"),
        "steps_per_second": show.number("Steps per second", "%.2f"),
        "reachable": show.words("Reachable"),
        "behind": show.number("Versions behind"),
        "loss": show.number("Loss in training", "%.3f"),
        "sent": show.number("Sent (MB)", "%.1f"),
        "received": show.number("Received (MB)", "%.1f"),
        "steps": show.number("Steps"),
        "last_seen": show.number("Last seen (s ago)", "%.0f"),
        "software": show.words("Software"),
        "trust": show.words("Trust"),
    }
    st.dataframe(
        [{column: row[column] for column in columns} for row in rows],
        column_config=columns,
        hide_index=True,
        height=show.table_height(len(rows)),
        placeholder=show.UNKNOWN_CELL,
        key=key,
        on_select="rerun",
        selection_mode="single-row",
    )


def _one(source: Source, peer_id: str) -> None:
    st.header("Machine")
    if st.button("All machines", icon=":material/arrow_back:"):
        del st.query_params[PEER]
        st.rerun()

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        seen = source.see()
        show.status(seen)
        peer = network.find_peer(seen.view, peer_id)
        if peer is None:
            st.text(network.absent_words(seen.view, peer_id))
        else:
            _peer(peer, seen.view)

    body()


def _peer(peer: PeerView, view: NetworkView) -> None:
    st.text(f"{label(peer)}: {network.state_words(peer, network.busy_peers(view))}")
    show.figures(network.figures(peer))
    rows = network.history_rows(peer)
    left, right = st.columns(2)
    with left:
        st.subheader("Speed")
        show.chart(rows, charts.peer_history("steps_per_second", "inner steps per second"), "peer-speed")
        st.subheader("Versions held")
        show.chart(rows, charts.peer_history("versions", "versions over all fragments", zero=False), "peer-versions")
    with right:
        st.subheader("Training loss")
        losses = [row for row in rows if row["loss"] is not None]
        spec = charts.peer_history("loss", "training loss (nats per token)", zero=False)
        show.chart(losses, spec, "peer-loss", "It tells no loss.")
        st.subheader("What it says of itself")
        facts = network.fact_rows(peer)
        show.table(
            facts, {"fact": show.words("Fact", FACT_PIXELS), "value": show.words("Value", "large")}, "peer-facts"
        )
    st.subheader("Its last rounds")
    show_rounds(rounds.round_table(view, peer.peer_id), "peer-rounds")

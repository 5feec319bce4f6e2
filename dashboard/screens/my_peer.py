"""The peer on this machine: how it does, its brake and its limits. The only page that changes anything."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from coordinator.views import control, quantity
from coordinator.views.snapshot import PeerSnapshot
from dashboard import show
from dashboard.frames.rows import Row
from dashboard.limits_form import limits_form
from dashboard.source import Source
from dashboard.text import plain
from dht.errors import MusterError

NO_CONTROLS = (
    "There is no peer to show here. Its owner opens the whole address that `muster dashboard` or `muster host` "
    "printed, with the token in it, on the machine that runs the peer. With --listen beyond it nobody gets controls."
)
CONTROL_SECONDS_MAX = 2.0


def page(source: Source) -> None:
    """The page."""
    st.header("My peer")
    directory = source.data_directory
    if directory is None:
        st.text(NO_CONTROLS)
        return

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        try:
            mine = control.snapshot(directory)
        except MusterError as error:
            st.text(plain(str(error), 240))
            return
        _state(mine)
        _brake(directory, mine)
        st.subheader("Fragments")
        columns = {
            "fragment": show.number("Fragment"),
            "version": show.number("Newest version"),
            "held": show.number("Held here"),
            "phase": show.words("Doing"),
            "hindrance": show.words("What hinders it"),
            "reason": show.words("Why the last attempt was void"),
        }
        show.table(fragment_rows(mine), columns, "my-fragments")

    body()
    limits_form(directory, CONTROL_SECONDS_MAX)


def fragment_rows(mine: PeerSnapshot) -> list[Row]:
    """One row for each fragment."""
    return [
        {
            "fragment": index,
            "version": one.version,
            "held": one.held_version,
            "phase": one.phase,
            "hindrance": plain(one.hindrance),
            "reason": plain(one.reason),
        }
        for index, one in enumerate(mine.fragments)
    ]


def _state(mine: PeerSnapshot) -> None:
    name = plain(mine.name)
    st.text(f"{name} {mine.peer_id}: {plain(mine.state)}".strip())
    show.figures(
        {
            "Steps": quantity.count(mine.steps),
            "Steps/s": f"{mine.steps_per_second:.2f}",
            "Loss (nats/token)": quantity.loss(mine.loss),
            "Certified tokens": quantity.count(mine.own_tokens),
            "Sent": quantity.size(mine.bytes_sent),
            "Received": quantity.size(mine.bytes_received),
            "Warmth": quantity.warmth(mine.celsius, mine.gpu_watts) or "not known",
            "Peers it sees": str(mine.peers_live),
        }
    )
    if mine.note:
        st.text(plain(mine.note, 240))


def _brake(directory: Path, mine: PeerSnapshot) -> None:
    if mine.role != "learner":
        st.text("It hosts and does not train: there is nothing to pause.")
        return
    paused = mine.state == "paused"
    with st.container(horizontal=True):
        pause = st.button("Pause", icon=":material/pause:", disabled=paused, key="pause")
        resume = st.button("Resume", icon=":material/play_arrow:", disabled=not paused, key="resume")
    if pause or resume:
        try:
            control.ask(directory, "pause" if pause else "resume", CONTROL_SECONDS_MAX)
        except MusterError as error:
            st.text(plain(str(error), 240))
            return
        st.rerun()

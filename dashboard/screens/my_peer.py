"""The page about the owner's machine: its work, pause and leave, and limits. Only this page changes anything."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from coordinator.views import control
from coordinator.views.credit import CreditReport
from coordinator.views.network_view import SENTENCE_CHARACTERS_MAX
from coordinator.views.snapshot import PeerSnapshot
from dashboard import show
from dashboard.frames import own
from dashboard.limits_form import limits_form
from dashboard.source import Source
from dashboard.text import escaped, plain
from dht.errors import MusterError

NO_CONTROLS = (
    "There is no peer to show here. Its owner opens the whole address that `muster dashboard` or `muster host` "
    "printed, with the token in it, on the machine that runs the peer. With --listen beyond it nobody gets controls."
)
OVER = "This run is finished, and the peer on this machine has ended. Credit has what it contributed."
CONTROL_SECONDS_MAX = 2.0
CREDIT_SECONDS = 30.0  # between two questions for the credit
ADVICE_CHARACTERS_MAX = 600
LEAVING = "leaving"  # in the session: Leave was pressed once


def page(source: Source) -> None:
    """Draw the page."""
    st.header("My machine")
    directory = source.data_directory
    if directory is None:
        st.text(NO_CONTROLS)
        return

    @st.fragment(run_every=show.UPDATE_SECONDS)
    def body() -> None:
        try:
            mine = control.snapshot(directory)
            limits = control.limits(directory, (), CONTROL_SECONDS_MAX)
        except MusterError as error:
            st.text(OVER if source.see().view.finished else plain(str(error), SENTENCE_CHARACTERS_MAX))
            return
        st.text(own.headline(mine))
        for advice in own.advice(mine):
            st.warning(escaped(advice, ADVICE_CHARACTERS_MAX))
        show.figures(own.figures(mine, limits, _credit(directory)), own.HELPS)
        _brake(directory, mine)
        if st.toggle("Details", key="my-details"):
            _details(mine)

    body()
    limits_form(directory, CONTROL_SECONDS_MAX)


@st.cache_data(ttl=CREDIT_SECONDS, show_spinner=False)
def _credit(directory: Path) -> CreditReport | None:
    """Return the credit report of the peer here; None if it does not answer."""
    try:
        told = control.ask(directory, "credit", CONTROL_SECONDS_MAX)
        return CreditReport.model_validate(told.get("credit"))
    except (MusterError, ValueError):
        return None


def _brake(directory: Path, mine: PeerSnapshot) -> None:
    if mine.role != "learner":
        st.text("It hosts and does not train: there is nothing to pause.")
        return
    paused = mine.state == "paused"
    with st.container(horizontal=True):
        pause = st.button("Pause", icon=":material/pause:", disabled=paused, key="pause")
        resume = st.button("Resume", icon=":material/play_arrow:", disabled=not paused, key="resume")
        leaving = st.session_state.get(LEAVING, False)
        leave = st.button(
            "Yes, leave the run" if leaving else "Leave", icon=":material/logout:", key=f"leave-{leaving}"
        )
        stay = leaving and st.button("Stay", key="stay")
    if leave or stay:
        st.session_state[LEAVING] = leave and not leaving
    if pause or resume or (leave and leaving):
        try:
            control.ask(directory, "pause" if pause else "resume" if resume else "drain", CONTROL_SECONDS_MAX)
        except MusterError as error:
            st.text(plain(str(error), SENTENCE_CHARACTERS_MAX))
            return
    if pause or resume or leave or stay:
        st.rerun()


def _details(mine: PeerSnapshot) -> None:
    if mine.note:
        st.text(plain(mine.note, SENTENCE_CHARACTERS_MAX))
    show.figures(own.details(mine))
    st.text("The model is cut into fragments, which are merged one after the other.")
    columns = {
        "fragment": show.number("Fragment"),
        "version": show.number("Newest version"),
        "held": show.number("Held here"),
        "phase": show.words("Doing"),
        "hindrance": show.words("What hinders it"),
        "reason": show.words("Why the last attempt was void"),
    }
    show.table(own.fragment_rows(mine), columns, "my-fragments")

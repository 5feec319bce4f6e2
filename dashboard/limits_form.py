"""The form with which owners change what their machine gives. The peer checks every value, and says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import streamlit as st

from coordinator.views import control
from coordinator.views.owner_limits import OwnerLimit, OwnerLimits, Value
from dashboard.show import UPDATE_SECONDS
from dashboard.text import escaped, plain
from dht.errors import MusterError, UsageError

KNOWN = "limits-known"  # what the peer said last: while it does not answer, nobody's typing is lost
SAID = "limits-said"  # what became of the last change; kept, since the page is drawn anew every few seconds
TEXT_CHARACTERS_MAX = 512
COLUMNS = 3
KEPT = "Changed, and kept for the next start."
FROM_START = " These take effect when the peer starts again: "


@st.fragment(run_every=UPDATE_SECONDS)
def limits_form(directory: Path, seconds_max: float) -> None:
    """Show the limits of the peer with this folder, if one runs there, and send it what is changed."""
    limits = _limits(directory, seconds_max)
    if limits is None:
        return
    st.subheader("Limits")
    with st.form("limits"):
        columns = st.columns(COLUMNS)
        values = {}
        for index, one in enumerate(sorted(limits.limits, key=_is_switch)):  # of one height in a row
            with columns[index % COLUMNS]:
                values[one.key] = _field(one)
        sent = st.form_submit_button("Apply", icon=":material/check:", key="limits-apply")
    if sent:
        st.session_state[SAID] = _apply(directory, limits, values, seconds_max)
        st.rerun()
    if said := st.session_state.get(SAID):
        st.text(plain(said, 240))


def _limits(directory: Path, seconds_max: float) -> OwnerLimits | None:
    try:
        st.session_state[KNOWN] = control.limits(directory, (), seconds_max)
    except control.NobodyRunsError:
        st.session_state[KNOWN] = None
    except MusterError:
        pass  # the page says above that the peer does not answer
    known: OwnerLimits | None = st.session_state.get(KNOWN)
    return known


def _is_switch(one: OwnerLimit) -> bool:
    return isinstance(one.value, bool)


def _field(one: OwnerLimit) -> Value:
    """What stands in the field of a limit. A limit that was changed gets a new field: the key has its value in it."""
    key = f"limit-{one.key}-{one.value}"
    if isinstance(one.value, bool):
        return st.toggle(escaped(one.title), value=one.value, key=key, help=escaped(one.meaning))
    if isinstance(one.value, str):
        return st.text_input(
            escaped(one.title), value=one.value, key=key, help=escaped(one.meaning), max_chars=TEXT_CHARACTERS_MAX
        )
    return st.number_input(escaped(one.title), value=one.value, key=key, help=escaped(one.meaning))


def _apply(directory: Path, limits: OwnerLimits, values: Mapping[str, Value], seconds_max: float) -> str:
    """Ask for what differs; returns what became of it, in words."""
    changed = [one for one in limits.limits if values[one.key] != one.value]
    if not changed:
        return "Nothing was changed."
    try:
        control.limits(directory, [one.change(values[one.key]) for one in changed], seconds_max)
    except UsageError as error:
        return f"Nothing was changed: {error}"
    except MusterError as error:  # an answer that came too late says nothing about what was done
        return str(error)
    late = [one.title for one in changed if one.at_start]
    return KEPT + (FROM_START + ", ".join(late) + "." if late else "")

"""The form for the owner's limits: presets, and a field for every limit. The peer checks every value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import streamlit as st

from coordinator.views import control
from coordinator.views.owner_limits import OwnerLimit, OwnerLimits, Value
from dashboard.show import UPDATE_SECONDS
from dashboard.text import escaped, plain
from dht.errors import MusterError, UsageError

KNOWN = "limits-known"  # the last answer, kept so that no typing is lost while the peer does not answer
SAID = "limits-said"  # the result of the last change, kept because the page is redrawn every few seconds
TEXT_CHARACTERS_MAX = 512
COLUMNS = 3
KEPT = "Changed, and kept for the next start."
FROM_START = " These take effect when the peer starts again: "
ALWAYS = ("upload_mbit=0", "compute_share=1.0", "niceness=0", "pause_while_used_minutes=0", "hours=")
PRESETS: Mapping[str, tuple[str, Sequence[str]]] = {
    "Gentle": (
        "Half the computing time, 5 Mbit per second up, lowest priority, and a pause while you use the machine.",
        ("upload_mbit=5", "compute_share=0.5", "niceness=19", "pause_while_used_minutes=10", "hours="),
    ),
    "Nights": ("Everything, but only from 22:00 to 7:00.", (*ALWAYS[:-1], "hours=22:00-07:00")),
    "Full": ("Everything, at any time.", ALWAYS),
}
"""The changes of each preset, in words and as `--limit` takes them. None sets daily quotas, memory, disk or heat."""


@st.fragment(run_every=UPDATE_SECONDS)
def limits_form(directory: Path, seconds_max: float) -> None:
    """Show the limits of the peer in this folder, if one runs there, and send it the changes."""
    limits = _limits(directory, seconds_max)
    if limits is None:
        return
    st.subheader("Limits")
    with st.container(horizontal=True):
        for name, (meaning, changes) in PRESETS.items():
            if st.button(escaped(name), help=escaped(meaning), key=f"preset-{name}"):
                st.session_state[SAID] = _change(directory, limits, changes, seconds_max)
                st.rerun()
    with st.expander("All limits"), st.form("limits", border=False):
        columns = st.columns(COLUMNS)
        values = {}
        for index, one in enumerate(sorted(limits.limits, key=_is_switch)):  # so that fields in a row have one height
            with columns[index % COLUMNS]:
                values[one.key] = _field(one)
        sent = st.form_submit_button("Apply", icon=":material/check:", key="limits-apply")
    if sent:
        wanted = [one.change(values[one.key]) for one in limits.limits if values[one.key] != one.value]
        st.session_state[SAID] = _change(directory, limits, wanted, seconds_max)
        st.rerun()
    if said := st.session_state.get(SAID):
        st.text(plain(said, 240))


def _limits(directory: Path, seconds_max: float) -> OwnerLimits | None:
    try:
        st.session_state[KNOWN] = control.limits(directory, (), seconds_max)
    except control.PeerNotRunningError:
        st.session_state[KNOWN] = None
    except MusterError:
        pass  # the page says above that the peer does not answer
    known: OwnerLimits | None = st.session_state.get(KNOWN)
    return known


def _is_switch(one: OwnerLimit) -> bool:
    return isinstance(one.value, bool)


def _field(one: OwnerLimit) -> Value:
    """Draw the field of a limit, and return its value. The key holds the limit's value, so a change makes a new field.

    The field of a limit that is off is empty, with a placeholder that says so.
    """
    key = f"limit-{one.key}-{one.value}"
    if isinstance(one.value, bool):
        return st.toggle(escaped(one.title), value=one.value, key=key, help=escaped(one.meaning))
    if isinstance(one.value, str):
        return st.text_input(
            escaped(one.title),
            value=one.value,
            key=key,
            placeholder=escaped(one.off),
            help=escaped(one.meaning),
            max_chars=TEXT_CHARACTERS_MAX,
        )
    is_whole = isinstance(one.value, int)
    found = st.number_input(
        escaped(one.title),
        value=None if one.off and not one.value else one.value,
        key=key,
        placeholder=escaped(one.off),
        help=escaped(one.meaning),
        step=1 if is_whole else 1.0 if one.off else 0.1,
        format="%d" if is_whole else "%g",
    )
    return type(one.value)(0 if found is None else found)


def _change(directory: Path, limits: OwnerLimits, changes: Sequence[str], seconds_max: float) -> str:
    """Ask the peer for these changes; returns the result in words."""
    if not changes:
        return "Nothing was changed."
    try:
        control.limits(directory, changes, seconds_max)
    except UsageError as error:
        return f"Nothing was changed: {error}"
    except MusterError as error:  # an answer that came too late says nothing about what was done
        return str(error)
    keys = {one.partition("=")[0] for one in changes}
    late = [one.title for one in limits.limits if one.at_start and one.key in keys]
    return KEPT + (FROM_START + ", ".join(late) + "." if late else "")

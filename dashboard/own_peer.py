"""The peer on this machine, for pages that mark it and for the order of the pages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from coordinator.views import control
from dht.errors import MusterError

LOOK_SECONDS = 30.0
CONTROL_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class PeerHere:
    """The peer's id, and whether it trains; empty and False if there is none."""

    peer_id: str = ""
    trains: bool = False


@st.cache_data(ttl=LOOK_SECONDS, show_spinner=False)
def own_peer(directory: Path | None) -> PeerHere:
    """Return the peer in this folder, or the last one that ran there; none if the visitor may not see it."""
    if directory is None:
        return PeerHere()
    seen = _seen()
    with suppress(MusterError):
        told = control.ask(directory, "status", CONTROL_SECONDS_MAX).get("snapshot", {})
        seen[directory] = PeerHere(str(told.get("peer_id", "")), told.get("role") == "learner")
    return seen.get(directory, PeerHere())


@st.cache_resource(show_spinner=False)
def _seen() -> dict[Path, PeerHere]:
    """Return the last peer seen, by folder."""
    return {}

"""Which peer runs on this machine, for pages that mark it and for the order of the pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from coordinator.views import control
from dht.errors import MusterError

LOOK_SECONDS = 30.0
CONTROL_SECONDS_MAX = 2.0


@dataclass(frozen=True, slots=True)
class PeerHere:
    """Its id, and whether it trains; empty and False for none."""

    peer_id: str = ""
    trains: bool = False


@st.cache_data(ttl=LOOK_SECONDS, show_spinner=False)
def own_peer(directory: Path | None) -> PeerHere:
    """The peer with this folder, if one runs there and the reader may see it."""
    if directory is None:
        return PeerHere()
    try:
        told = control.ask(directory, "status", CONTROL_SECONDS_MAX)
    except MusterError:
        return PeerHere()
    snapshot = told.get("snapshot", {})
    return PeerHere(str(snapshot.get("peer_id", "")), snapshot.get("role") == "learner")

"""Which peer runs on this machine, for pages that mark it and for the order of the pages."""

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
    """Its id, and whether it trains; empty and False for none."""

    peer_id: str = ""
    trains: bool = False


@st.cache_data(ttl=LOOK_SECONDS, show_spinner=False)
def own_peer(directory: Path | None) -> PeerHere:
    """The peer with this folder, if the reader may see it; the last that ran there, once it has ended."""
    if directory is None:
        return PeerHere()
    seen = _seen()
    with suppress(MusterError):
        told = control.ask(directory, "status", CONTROL_SECONDS_MAX).get("snapshot", {})
        seen[directory] = PeerHere(str(told.get("peer_id", "")), told.get("role") == "learner")
    return seen.get(directory, PeerHere())


@st.cache_resource(show_spinner=False)
def _seen() -> dict[Path, PeerHere]:
    """Who was last seen in which folder."""
    return {}

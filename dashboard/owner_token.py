"""Admission to the controls of the peer on this machine, by the token in the printed address.

Every account on this machine reaches a port of 127.0.0.1, and so does any page in the owner's browser. Every start
makes a new token. There is no cookie, which a page of another origin or a frame around ours could use.
"""

from __future__ import annotations

import hmac
from pathlib import Path

import streamlit as st

TOKEN = "token"  # in the address
ADMITTED = "admitted"  # in the session: its other pages have no token in their address
TOKEN_CHARACTERS_MIN = 32


def read_token(path: Path | None) -> str:
    """Read the token from its file; empty, so that nobody is admitted, if there is no usable one."""
    try:
        token = "" if path is None else path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return token if len(token) >= TOKEN_CHARACTERS_MIN else ""


def is_owner(token: str) -> bool:
    """Whether this visitor has shown the token, now or earlier in its session."""
    given = st.query_params.get(TOKEN, "")
    if token and hmac.compare_digest(given.encode(), token.encode()):
        st.session_state[ADMITTED] = token
    return bool(token) and st.session_state.get(ADMITTED) == token

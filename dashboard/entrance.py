"""Who gets the controls of the peer on this machine: who has the token of the address that was printed.

Everybody who has an account here reaches a port of 127.0.0.1, and so does any page in the owner's browser. The token is
made anew at every start. There is no cookie: a page of another origin, or a frame around ours, brings none.
"""

from __future__ import annotations

import hmac
from pathlib import Path

import streamlit as st

TOKEN = "token"  # in the address
ADMITTED = "admitted"  # in the session: other pages of it have no token in their address
TOKEN_CHARACTERS_MIN = 32


def read_token(path: Path | None) -> str:
    """What was written for us; empty, so that nobody has it, if that is nothing of use."""
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

"""The dashboard's app: `streamlit run dashboard/app.py -- --view FILE`. `muster dashboard` starts it that way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dashboard.clock import unix_seconds
from dashboard.own_peer import own_peer
from dashboard.owner_token import is_owner, read_token
from dashboard.screens import credit, health, my_peer, network, rounds, run, trust
from dashboard.source import Source

ICON = Path(__file__).with_name("icon.svg")  # a file, because Streamlit fetches named icons from a server

STEADY = "<style>[data-stale=true] { opacity: 1 !important; }</style>"
"""Keeps pages from fading: Streamlit fades what is not redrawn in half a second, and a training machine is slower."""

Page = tuple[Callable[[Source], None], str, str, str]
RUN: Page = (run.page, "Run", "run", ":material/show_chart:")
MINE: Page = (my_peer.page, "My machine", "my-machine", ":material/computer:")
OTHERS: tuple[Page, ...] = (
    (network.page, "Machines", "machines", ":material/hub:"),
    (credit.page, "Credit", "credit", ":material/leaderboard:"),
    (health.page, "Health", "health", ":material/monitor_heart:"),
)
ADVANCED: tuple[Page, ...] = (
    (rounds.page, "Rounds", "rounds", ":material/view_timeline:"),
    (trust.page, "Trust", "trust", ":material/shield:"),
)


@st.cache_resource
def open_source(view: Path, data: Path | None) -> Source:
    """Return the reader of the view: one for all visitors, and one for the owner."""
    return Source(view, unix_seconds, data)


def main(arguments: list[str]) -> None:
    """Draw the page that the address names. The first page is the owner's machine if it trains, else the run."""
    parser = argparse.ArgumentParser(prog="dashboard", description=__doc__)
    parser.add_argument("--view", type=Path, required=True, help="the file that an observer writes")
    parser.add_argument("--data", type=Path, help="data directory of the peer on this machine")
    parser.add_argument("--token-file", type=Path, help="holds what the owner's address has in it")
    options = parser.parse_args(arguments)
    st.set_page_config("Muster", page_icon=str(ICON), layout="wide")
    st.html(STEADY)
    source = open_source(options.view, options.data if is_owner(read_token(options.token_file)) else None)
    first = (MINE, RUN) if own_peer(source.data_directory).trains else (RUN, MINE)
    pages = {"": _pages(source, (*first, *OTHERS)), "Advanced": _pages(source, ADVANCED)}
    st.navigation(pages, position="top").run()


def _pages(source: Source, pages: tuple[Page, ...]) -> list[StreamlitPage]:
    return [
        st.Page(
            update_wrapper(partial(show, source), show), title=title, url_path=path, icon=icon, default=show == run.page
        )
        for show, title, path, icon in pages
    ]


if __name__ == "__main__":
    main(sys.argv[1:])

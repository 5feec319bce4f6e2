"""The dashboard: `streamlit run dashboard/app.py -- --view FILE`. `muster dashboard` starts it that way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from pathlib import Path

import streamlit as st

from dashboard.clock import unix_seconds
from dashboard.entrance import is_owner, read_token
from dashboard.screens import credit, my_peer, network, rounds, run, trust
from dashboard.source import Source

ICON = Path(__file__).with_name("icon.svg")  # one by name would be fetched from somebody's server

PAGES: tuple[tuple[Callable[[Source], None], str, str, str], ...] = (
    (run.page, "Run", "run", ":material/show_chart:"),
    (network.page, "Network", "network", ":material/hub:"),
    (rounds.page, "Rounds", "rounds", ":material/view_timeline:"),
    (trust.page, "Trust", "trust", ":material/shield:"),
    (credit.page, "Credit", "credit", ":material/leaderboard:"),
    (my_peer.page, "My peer", "my-peer", ":material/computer:"),
)


@st.cache_resource
def open_source(view: Path, data: Path | None) -> Source:
    """One reader of the view for all visitors, and one for the owner."""
    return Source(view, unix_seconds, data)


def main(arguments: list[str]) -> None:
    """Draw the page that the address names."""
    parser = argparse.ArgumentParser(prog="dashboard", description=__doc__)
    parser.add_argument("--view", type=Path, required=True, help="the file that an observer writes")
    parser.add_argument("--data", type=Path, help="data directory of the peer on this machine")
    parser.add_argument("--token-file", type=Path, help="holds what the owner's address has in it")
    options = parser.parse_args(arguments)
    st.set_page_config("Muster", page_icon=str(ICON), layout="wide")
    source = open_source(options.view, options.data if is_owner(read_token(options.token_file)) else None)
    pages = [
        st.Page(update_wrapper(partial(show, source), show), title=title, url_path=path, icon=icon, default=index == 0)
        for index, (show, title, path, icon) in enumerate(PAGES)
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main(sys.argv[1:])

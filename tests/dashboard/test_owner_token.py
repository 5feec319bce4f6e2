"""Only visitors with the token get the controls, not everybody who reaches a port of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import write_view
from dashboard.owner_token import TOKEN_CHARACTERS_MIN, read_token
from tests.dashboard.one_peer import running_peer
from tests.dashboard.test_pages import SECONDS_MAX, texts

TOKEN = "t" * TOKEN_CHARACTERS_MIN


def script(view: str, data: str, token_file: str) -> None:
    """Draw a page as `dashboard.app` does, for `AppTest`, which reads the source of this function."""
    from pathlib import Path

    from dashboard.owner_token import is_owner, read_token
    from dashboard.screens import my_peer
    from dashboard.source import Source

    own = is_owner(read_token(Path(token_file)))
    my_peer.page(Source(Path(view), lambda: 0.0, Path(data) if own else None))


def as_guest(folder: Path, given: str | None, written: str = TOKEN) -> AppTest:
    write_view(folder / "view.json", NetworkView())
    (folder / "token").write_text(written)
    arguments = {"view": str(folder / "view.json"), "data": str(folder), "token_file": str(folder / "token")}
    at = AppTest.from_function(script, kwargs=arguments, default_timeout=SECONDS_MAX)
    if given is not None:
        at.query_params["token"] = given
    return at.run()


@pytest.mark.parametrize("given", [None, "", "t", TOKEN + "t", TOKEN.upper(), "ü"])
def test_a_visitor_without_the_token_gets_no_controls(tmp_path: Path, given: str | None) -> None:
    """Before, another user of the machine could change the limits of root's peer."""
    with running_peer(tmp_path) as asked:
        at = as_guest(tmp_path, given)
    assert "no peer to show" in texts(at)
    assert not at.button
    assert not asked


def test_a_visitor_with_the_token_keeps_them_for_the_session(tmp_path: Path) -> None:
    with running_peer(tmp_path):
        at = as_guest(tmp_path, TOKEN)
        assert at.button
        at.query_params.clear()
        assert at.run().button
        (tmp_path / "token").write_text("u" * TOKEN_CHARACTERS_MIN)
        assert not at.run().button


@pytest.mark.parametrize("written", ["", "short", "ü" * 40])
def test_a_token_that_is_none_admits_nobody(tmp_path: Path, written: str) -> None:
    with running_peer(tmp_path):
        assert not as_guest(tmp_path, written, written).button
    assert read_token(tmp_path / "absent") == read_token(None) == ""

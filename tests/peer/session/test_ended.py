"""The messages of a session whose peer has ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dht.errors import LocalError
from peer.session.api import Session


@pytest.mark.parametrize("asked", [lambda session: session.invite, lambda session: session.status()])
def test_a_caller_of_an_ended_peer_hears_that_the_run_is_over(
    asked: Callable[[Session], object], tmp_path: Path
) -> None:
    session = Session.__new__(Session)  # one whose run was over at once: `Session` returns, and its peer is gone
    session._directory = tmp_path
    with pytest.raises(LocalError, match="is over, and its peer has ended; a new run needs a new folder"):
        asked(session)

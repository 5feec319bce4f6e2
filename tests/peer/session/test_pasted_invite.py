"""The ways to tell a session what to join: an invite, as somebody pasted it, or a run file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from peer.session.api import Place, Session


@pytest.mark.parametrize("text", ["muster1abc", "invite: muster1abc", " muster1abc"])
def test_a_text_like_an_invite_is_never_taken_for_a_run_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the invite is"):
        Session(text, torch.nn.Linear(1, 1), Place(data_directory=tmp_path))


def test_a_folder_may_be_named_by_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no parameter that requires a gradient"):
        Session(RunConfig(), torch.nn.Module(), Place(str(tmp_path)))

"""The stage that a start reports when it is asked."""

from __future__ import annotations

import pytest

from peer.cli.progress import ProgressBar


def test_an_asker_hears_the_stage_and_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    assert bar.stage == ""
    bar.begin("reads the text")
    assert bar.stage == "reads the text"
    bar("making tokens of the text", 0.4)
    assert bar.stage == "reads the text (making tokens of the text, 40%)"
    bar.begin("enters the network")
    assert bar.stage == "enters the network"
    assert capsys.readouterr().err == "making tokens of the text: 40%\n", "a stage is not printed"

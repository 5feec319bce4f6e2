"""Replays the work of real processes in one process and without the protocol (docs/reference/tape.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from peer.cli import main

if TYPE_CHECKING:
    from tests.real.conftest import Swarm

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(180)]

PYTHON = (3, 11)


def test_the_lab_replays_a_swarm_in_which_a_peer_dies(swarm: Swarm, capsys: pytest.CaptureFixture[str]) -> None:
    """It replays every version and the parameters of every surviving learner, and detects one changed step."""
    tape = swarm.folder / "tape.jsonl"
    swarm.start(3, 12, "--tape", str(tape), "--fault", "3:kill:vote:4", eight_bit=True)
    report = swarm.finish()
    assert report["agreement"]
    assert main.run(["lab", "--replay", str(tape)], PYTHON) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{report['versions_certified']} versions of ")
    assert told.endswith("of 2 learners\n")

    lines = [json.loads(line) for line in tape.read_text().splitlines()]
    last = {line["peer"]: line["event"] for line in lines if "peer" in line}
    lived = {peer for peer, event in last.items() if event == "checkpoint"}  # dead learners' last work is not compared
    late = [line for line in lines if line["event"] == "adoption" and line["included"] and line["peer"] in lived]
    late[4]["effective_step"] += 1
    tape.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main.run(["lab", "--replay", str(tape)], PYTHON) == 1
    assert "than the tape says" in (error := capsys.readouterr().err) or "came out differently" in error

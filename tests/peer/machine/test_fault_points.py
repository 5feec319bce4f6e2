"""A peer that stands still at a point of the protocol goes on when it is released, or by itself."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from dht.errors import UsageError
from peer.machine import fault_points
from peer.machine.fault_points import GATE_NAME, Fault, is_waiting, release


def coming(folder: Path, fault: Fault) -> threading.Thread:
    """Start a thread that passes two other points and comes to this one twice."""

    def come() -> None:
        for point in ("join", fault.point, "adopt", fault.point):
            if fault.strikes(point):
                fault.strike()

    thread = threading.Thread(target=come)
    thread.start()
    return thread


def test_a_peer_stands_at_its_point_until_it_is_released(tmp_path: Path) -> None:
    gate = tmp_path / GATE_NAME
    os.mkfifo(gate)  # of a peer that was killed there
    assert not is_waiting(gate)
    release(gate)
    thread = coming(tmp_path, Fault.parse("wait:vote:2", tmp_path))
    while not is_waiting(gate):
        assert thread.is_alive()
    assert is_waiting(gate), "to look does not open it"
    assert thread.is_alive()
    release(gate)
    thread.join(fault_points.GATE_SECONDS_MAX / 2)
    assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []
    release(gate)


def test_a_peer_does_not_stand_at_a_point_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_points, "GATE_SECONDS_MAX", 0.0)
    coming(tmp_path, Fault.parse("wait:record", tmp_path)).join()
    coming(tmp_path, Fault.parse("wait:record", tmp_path / "no folder")).join()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["kill", "wait:lunch", "sleep:vote", "kill:vote:0", "wait:vote:x", "kill:vote:-1"])
def test_a_text_that_is_no_fault_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no fault; write kill:POINT"):
        Fault.parse(text)


def test_a_fault_is_written_as_it_is_read() -> None:
    assert str(Fault.parse("wait:vote")) == "wait:vote:1"
    assert str(Fault.parse("kill:record:7")) == "kill:record:7"

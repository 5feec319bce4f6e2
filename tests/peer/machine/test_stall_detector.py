"""A starting learner is bounded by its silence, not by the time that it takes."""

from __future__ import annotations

import os
from pathlib import Path

from peer.machine.stall_detector import StallDetector, work_done


def test_whatever_makes_progress_is_alive():
    detector = StallDetector(10.0)
    assert not any(detector.look(sign, 9.0 * sign) for sign in range(1000))


def test_a_process_silent_for_longer_has_stalled():
    detector = StallDetector(10.0)
    looks = [detector.look("same", now) for now in (100.0, 105.0, 110.0, 110.5)]
    assert looks == [False, False, False, True]
    assert not detector.look("other", 111.0)


def test_computing_and_reading_are_signs_of_life(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(1 << 20))
    before = work_done(os.getpid())
    (tmp_path / "file").read_bytes()
    while work_done(os.getpid())[0] == before[0]:
        (tmp_path / "file").read_bytes()
    after = work_done(os.getpid())
    assert after[0] > before[0]
    assert after[1] >= before[1] + (1 << 20)


def test_a_process_that_is_gone_has_done_no_work(tmp_path: Path):
    assert work_done(1, tmp_path) == (0, 0)

"""The context that all parts of a peer's protocol core share."""

from __future__ import annotations

from tests.coordinator.rigs import core


def test_steps_are_extrapolated_between_reports_and_no_further() -> None:
    one = core()
    one.steps, one.steps_seen, one.steps_per_second = 100, 50.0, 4.0
    lifetime_seconds = one.pace.presence_lifetime_seconds
    assert one.steps_now(49.0) == 100
    assert one.steps_now(51.0) == 104
    assert one.steps_now(50.0 + lifetime_seconds) == one.steps_now(50.0 + 100 * lifetime_seconds)

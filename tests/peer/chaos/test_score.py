"""The figures of a chaos run, from its events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.chaos import score
from peer.chaos.plan import Kind
from peer.chaos.record import EventOutcome, Life
from peer.chaos.score import Window
from tests.peer.chaos.builders import happened, life

WINDOW = Window(100.0, 200.0)
PEERS = ("peer-1", "peer-2")

seconds = st.floats(0, 300, allow_nan=False)
kinds = st.sampled_from(["kill", "stop", "restart", "continue", "disk_full", "partition"])
histories = st.lists(
    st.builds(
        lambda kind, at, peer, refused: happened(kind, at, None if kind == "partition" else peer, refused),
        kinds,
        seconds,
        st.sampled_from([1, 2, 9, "host"]),
        st.sampled_from([None, "cannot"]),
    ),
    max_size=20,
)


@pytest.mark.parametrize(
    ("outcomes", "away"),
    [
        ([], 0),
        ([happened("kill", 110, 1), happened("restart", 125, 1)], 15),
        ([happened("stop", 110, 1), happened("kill", 120, 1), happened("restart", 130, 1)], 20),
        ([happened("kill", 190, 2)], 10),
        ([happened("kill", 50, 2), happened("restart", 110, 2)], 10),
        ([happened("kill", 110, "host"), happened("partition", 110)], 0),
        ([happened("kill", 110, 1, "peer-1 is down")], 0),
        ([happened("disk_full", 110, 1)], 0),
        ([happened("attacker", 110, 1), happened("honest", 120, 1)], 0),
        ([happened("clock_skew", 110, 1), happened("clock_right", 120, 1)], 0),
        ([happened("attacker", 110, 1), happened("kill", 120, 1), happened("restart", 130, 1)], 10),
    ],
)
def test_only_what_the_plan_took_away_is_excused(outcomes: list[EventOutcome], away: float) -> None:
    assert score.alive_seconds(outcomes, PEERS, WINDOW) == 2 * 100 - away


@given(histories)
def test_peers_are_alive_between_never_and_always(outcomes: list[EventOutcome]) -> None:
    assert 0 <= score.alive_seconds(outcomes, PEERS, WINDOW) <= len(PEERS) * WINDOW.seconds


def test_uptime_is_the_time_between_steps_that_follow_each_other() -> None:
    lives = {
        "peer-1": [life([99.0, 101.0, 103.0]), life([150.0, 151.0, 170.0, 171.0], pid=2)],
        "peer-2": [life([199.0, 201.0])],
    }
    expected = (1 + 2) + (1 + 1) + 1  # what lies in the window, without the pause from 151 to 170
    assert score.uptime(lives, 2, WINDOW, 0.5) == expected / 200
    assert score.uptime(lives, 2, WINDOW, 10.0) == (expected + 19) / 200
    assert score.uptime({}, 2, WINDOW, 0.5) == 0


@given(st.dictionaries(st.sampled_from(PEERS), st.lists(seconds, max_size=9).map(lambda times: [life(sorted(times))])))
def test_uptime_is_a_share(lives: dict[str, list[Life]]) -> None:
    assert 0 <= score.uptime(lives, len(PEERS), WINDOW, 1.0) <= 1


@pytest.mark.parametrize(
    ("times", "gap"),
    [([], 100), ([150], 50), ([110, 120, 195], 75), ([50, 100, 200, 250], 100), ([101, 199.5, 150], 49.5)],
)
def test_a_gap_also_lies_before_the_first_certificate_and_after_the_last(times: list[float], gap: float) -> None:
    assert score.longest_gap_seconds(times, WINDOW) == gap


def test_recovery_is_from_the_restart_to_the_next_contribution() -> None:
    outcomes = [
        happened("kill", 100, 1),
        happened("restart", 110, 1),
        happened("kill", 140, 1),
        happened("restart", 150, 1),
        happened("kill", 120, 2),
        happened("restart", 125, 2),
    ]
    lives = {
        "peer-1": [life([], 90.0), life([], 122.0, 2), life([], 158.0, 3)],
        "peer-2": [life([], 60.0), life([], None, 2)],
    }
    assert score.recoveries(outcomes, lives, WINDOW) == ([12, 8], 1)


def test_a_peer_hit_again_before_it_could_contribute_is_not_held_to_it() -> None:
    hit_again: list[Kind] = ["kill", "stop", "disk_full"]
    for kind in hit_again:
        outcomes = [happened("restart", 110, 1), happened(kind, 115, 1)]
        assert score.recoveries(outcomes, {"peer-1": [life([], 130.0)]}, WINDOW) == ([], 0)


@given(histories)
def test_every_restart_is_counted_once_at_most(outcomes: list[EventOutcome]) -> None:
    lives = {name: [life([], at, pid) for pid, at in enumerate((20.0, 120.0, 180.0))] for name in PEERS}
    found, missing = score.recoveries(outcomes, lives, WINDOW)
    assert all(one > 0 for one in found)
    assert len(found) + missing <= sum(one.event.do == "restart" for one in outcomes)


def test_counts_and_spread() -> None:
    outcomes = [
        happened("kill", 1, 1),
        happened("kill", 2, 2),
        happened("kill", 3, "host"),
        happened("restart", 4, 1),
    ]
    assert score.counts([*outcomes, happened("stop", 5, 1, "cannot")]) == {"kill": 2, "host_kill": 1}
    assert score.spread([3.0, 1.0, 8.0]) == {"median": 3.0, "max": 8.0}
    assert score.spread([]) == {}

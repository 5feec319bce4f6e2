"""Plans from TOML: their contents, and the sentence for an invalid plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.errors import UsageError
from peer.chaos.draw import plan_of
from peer.chaos.plan import ChaosPlanFile, Event, Plan
from tests.checkout import ROOT
from tests.peer.chaos.builders import event

PRESETS = sorted((ROOT / "examples/chaos").glob("*.toml"))

GOOD = """
peers = 3
minutes = 1
[[event]]
at_seconds = 20
do = "partition"
sides = [[1, "host"], [2, 3]]
for_seconds = 5
[[event]]
at_point = "vote:2"
do = "kill"
peer = 2
for_seconds = 4
[[event]]
at_seconds = 10
do = "delay"
peer = 1
delay_seconds = 0.05
"""


def test_a_plan_is_sorted_by_time_and_points_come_last() -> None:
    plan = plan_of(ChaosPlanFile.parse(GOOD, "good.toml"), 3, 1.0)
    assert [one.do for one in plan.events] == ["delay", "partition", "kill"]
    assert plan.events[1].groups() == (frozenset({"peer-1", "host"}), frozenset({"peer-2", "peer-3"}))
    assert plan.point_faults == {2: "kill:vote:2"}
    assert plan.seconds == 60


@pytest.mark.parametrize("attack", ["sign_flip", "scaling:factor=3", "two_votes", "examples.attacks.turncoat.Turncoat"])
def test_an_attack_is_one_that_peers_know(attack: str) -> None:
    hostile = event("attacker", 1.0, 2, attack=attack, for_seconds=2.0)
    assert hostile.detail() == attack
    assert hostile.undoing() == Event(do="honest", at_seconds=3.0, peer=2)


def test_the_timeline_tells_the_details_of_events() -> None:
    assert event("clock_skew", 1.0, 2, skew_seconds=-90.0).detail() == "-90"
    assert event("attacker", None, 2, attack="zero", at_point="vote").detail() == "zero at vote"
    assert event("kill", None, 2, at_point="vote:2").detail() == "at vote:2"
    assert event("kill", None, "host", at_point="vote", at_peer=2).detail() == "at vote of peer-2"
    assert event("partition", None, at_point="vote", at_peer=2, sides=((1,), (2,))).detail() == (
        "peer-1 | peer-2 at vote of peer-2"
    )


def test_a_peer_due_to_die_at_a_point_dies_by_itself_and_any_other_waits_there() -> None:
    events = (
        event("kill", None, 1, at_point="vote"),
        event("attacker", None, 2, attack="zero", at_point="join:2"),
        event("kill", None, "host", at_point="adopt", at_peer=3),
        event("disk_full", None, 4, at_point="record"),
    )
    plan = Plan.of(4, 60.0, events)
    assert plan.point_faults == {1: "kill:vote", 2: "kill:join:2", 3: "wait:adopt", 4: "wait:record"}
    assert event("kill", 1.0, 2).detail() == ""


def test_a_partition_is_undone_by_healing_all() -> None:
    partition = event("partition", 1.0, sides=((1,), (2,)), for_seconds=2.0)
    assert partition.undoing() == Event(do="heal", at_seconds=3.0)


def test_the_death_of_the_host_has_a_name_of_its_own() -> None:
    assert event("kill", 1.0, "host").name == "host_kill"
    assert event("kill", 1.0, 1).name == "kill"


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_plan_that_ships_can_be_used(path: Path) -> None:
    file = ChaosPlanFile.load(path)
    assert file.peers is not None
    assert file.minutes is not None
    plan = plan_of(file, file.peers, file.minutes)
    assert (plan.events == ()) == (path.stem == "calm")


def test_the_headline_plan_is_the_one_that_was_promised() -> None:
    file = ChaosPlanFile.load(next(path for path in PRESETS if path.stem == "headline"))
    plan = plan_of(file, 8, 30.0)
    assert (file.peers, file.minutes) == (8, 30)
    assert (file.kills.every_seconds, file.kills.for_seconds) == (40, 15)
    assert [one.at_seconds for one in plan.events if one.name == "host_kill"] == [300]
    assert sum(one.do == "partition" for one in plan.events) == 1
    assert 30 <= sum(one.name == "kill" for one in plan.events) <= 60


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("peers = [", "is not valid TOML"),
        ("speed = 1", "speed is not a known key"),
        ("[[event]]\ndo = 'explode'\nat_seconds = 1", "event.0.do has to be 'kill', 'stop'"),
        ("[[event]]\ndo = 'kill'\npeer = 1", "needs either at_seconds or at_point"),
        ("[[event]]\ndo = 'kill'\nat_seconds = 1", "kill needs a peer"),
        ("[[event]]\ndo = 'heal'\nat_seconds = 1\npeer = 1", "heal takes no peer"),
        ("[[event]]\ndo = 'kill'\nat_seconds = -1\npeer = 1", "at_seconds has to be at least 0, not -1"),
        ("[[event]]\ndo = 'partition'\nat_seconds = 1", "a partition, and nothing else, has sides"),
        ("[[event]]\ndo = 'delay'\nat_seconds = 1\npeer = 1", "a delay, and nothing else, has delay_seconds"),
        ("[[event]]\ndo = 'heal'\nat_seconds = 1\nfor_seconds = 2", "takes no for_seconds"),
        ("[[event]]\ndo = 'kill'\npeer = 1\nat_point = 'lunch'", "commit, bundle, scatter"),
        ("[[event]]\ndo = 'stop'\npeer = 'host'\nat_point = 'vote'", "only a peer that trains comes to a point"),
        ("[[event]]\ndo = 'heal'\nat_point = 'vote'", "say with at_peer which one"),
        ("[[event]]\ndo = 'heal'\nat_point = 'vote'\nat_peer = 'host'", "only a peer that trains comes to a point"),
        ("[[event]]\ndo = 'heal'\nat_seconds = 1\nat_peer = 1", "so it needs at_point"),
        ("[[event]]\ndo = 'attacker'\npeer = 1\nat_seconds = 1", "an attacker, and nothing else, has attack"),
        (
            "[[event]]\ndo = 'kill'\npeer = 1\nat_seconds = 1\nattack = 'zero'",
            "an attacker, and nothing else, has attack",
        ),
        ("[[event]]\ndo = 'attacker'\npeer = 1\nat_seconds = 1\nattack = 'shout'", "there is no attack 'shout'"),
        (
            "[[event]]\ndo = 'attacker'\npeer = 1\nat_seconds = 1\nattack = 'two_votes:factor=2'",
            "the attack two_votes has no parameter",
        ),
        ("[[event]]\ndo = 'attacker'\npeer = 'host'\nat_seconds = 1\nattack = 'zero'", "not for the host"),
        ("[[event]]\ndo = 'clock_skew'\npeer = 'host'\nat_seconds = 1\nskew_seconds = 60", "not for the host"),
        ("[[event]]\ndo = 'clock_skew'\npeer = 1\nat_seconds = 1", "a clock_skew, and nothing else, has skew_seconds"),
        (
            "[[event]]\ndo = 'clock_skew'\npeer = 1\nat_seconds = 1\nskew_seconds = 1e12",
            "skew_seconds has to be at most",
        ),
        (
            "[kills]\nevery_seconds = 1e-9\nfor_seconds = 1",
            "kills.every_seconds has to be at least",
        ),
        ("event = 3", "event has to be a list, not 3;"),
        ("event = [1]", "event.0 has to be a table, not 1;"),
        ("peers = 4.5", "peers has to be a whole number, not 4.5;"),
        ("minutes = 'five'", "minutes has to be a number, not 'five';"),
        ("kills = 3", "kills has to be a table, not 3;"),
        ("[[event]]\ndo = 'partition'\nat_seconds = 1\nsides = [1, 2]", "sides.0 has to be a list, not 1;"),
        ("[[event]]\ndo = 'partition'\nat_seconds = 1\nsides = [['x'], [1]]", 'the number of a peer, or "host", not'),
        ("[[event]]\ndo = 'kill'\nat_seconds = 1\npeer = 'two'", 'peer has to be the number of a peer, or "host", not'),
        ("[[event]]\ndo = 'kill'\nat_point = 3\npeer = 1", "at_point has to be text in quotes, not 3;"),
        ("[[event]]\nat_seconds = 1", "event.0.do is missing;"),
        ("[stops]\nevery_seconds = 1\nfor_seconds = 1e-9", "stops.for_seconds has to be at least"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as told:
        ChaosPlanFile.parse(text, "bad.toml")
    assert sentence in str(told.value)
    assert str(told.value).startswith("bad.toml")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([event("kill", 60.0, 1)], "comes after the end at 60 s"),
        ([event("kill", 1.0, 4)], "there is no peer 4"),
        ([event("partition", 1.0, sides=((1,), (4,)))], "there is no peer 4"),
        ([event("partition", 1.0, sides=((1, 2),))], "two sides or more"),
        ([event("partition", 1.0, sides=((1, 2), (2, 3)))], "nobody is on two of them"),
        ([event("kill", None, 1, at_point="vote"), event("kill", None, 1, at_point="adopt")], "at two points"),
        ([event("kill", None, 1, at_point="vote"), event("heal", None, at_point="vote", at_peer=1)], "at two points"),
        ([event("kill", None, 1, at_point="vote", at_peer=4)], "there is no peer 4"),
        ([event("attacker", 1.0, one, attack="two_votes") for one in (1, 2, 3)], "somebody must be honest"),
    ],
)
def test_a_plan_that_does_not_fit_the_swarm_is_refused(events: list[Event], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Plan.of(3, 60.0, tuple(events))


def test_a_plan_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no plan at"):
        ChaosPlanFile.load(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is no text file"):
        ChaosPlanFile.load(tmp_path / "binary.toml")

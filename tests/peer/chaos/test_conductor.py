"""Carrying out a plan: when events are done and undone, and what is noted if one cannot be done."""

from __future__ import annotations

import signal
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import LocalError
from peer.chaos.conductor import END_OF_PLAN, Conductor
from peer.chaos.draw import draw_plan
from peer.chaos.executor import LinkFault
from peer.chaos.plan import Event, Kind, Plan
from peer.chaos.record import EventOutcome
from tests.peer.chaos.builders import Recorder, event

START = 1000.0


class Rig:
    """A conductor over four peers and a host, whose processes are their own names."""

    def __init__(self, *events: Event, plan: Plan | None = None, executor: Recorder | None = None) -> None:
        plan = plan or Plan.of(4, 100.0, events)
        self.executor = executor or Recorder()
        self.restarted: list[tuple[str, str | None]] = []  # the peer, and its attack
        self.told: list[EventOutcome] = []
        names = ("host", *(f"peer-{number}" for number in range(1, plan.peers + 1)))
        processes = {name: name for name in names}
        self.conductor = Conductor(plan, self.executor, processes, self._restart, self.told.append)  # type: ignore[arg-type]
        self.conductor.begin(START)

    def _restart(self, name: str, attack: str | None) -> None:
        self.restarted.append((name, attack))

    def lines(self) -> list[tuple[str, str, float, str | None]]:
        return [(one.event.do, one.event.target, one.seconds - START, one.refusal) for one in self.told]


def test_a_fault_is_undone_as_long_after_it_as_it_really_happened() -> None:
    rig = Rig(event("kill", 10.0, 2, for_seconds=5.0))
    rig.conductor.advance(START + 9.9)
    assert rig.executor.done == []
    rig.conductor.advance(START + 12.0)  # late
    assert rig.executor.done == [("kill", "peer-2")]
    assert rig.conductor.restarts_pending
    rig.conductor.advance(START + 16.9)
    assert rig.restarted == []
    rig.conductor.advance(START + 17.0)
    assert rig.restarted == [("peer-2", None)]
    assert not rig.conductor.restarts_pending
    assert rig.lines() == [("kill", "peer-2", 12.0, None), ("restart", "peer-2", 17.0, None)]


def test_a_death_at_a_point_is_noticed_and_undone() -> None:
    rig = Rig(event("kill", None, 3, at_point="vote:2", for_seconds=4.0))
    rig.conductor.advance(START + 50)
    assert rig.told == []
    assert rig.conductor.note_death("peer-3", -signal.SIGKILL, START + 51)
    rig.conductor.advance(START + 55)
    assert rig.restarted == [("peer-3", None)]
    assert not rig.conductor.note_death("peer-3", -signal.SIGKILL, START + 60)  # it dies at that point once


@pytest.mark.parametrize("code", [0, 1, -signal.SIGSEGV, None])
def test_another_death_is_no_fault_of_the_plan(code: int | None) -> None:
    rig = Rig(event("kill", None, 3, at_point="vote", for_seconds=4.0), event("kill", 60.0, 3))
    assert not rig.conductor.note_death("peer-3", code, START + 1)
    rig.conductor.advance(START + 60)
    assert rig.lines() == [("kill", "peer-3", 60.0, "peer-3 is down")]


def test_a_killed_peer_dies_by_plan() -> None:
    rig = Rig(event("kill", 1.0, "host"))
    rig.conductor.advance(START + 1)
    assert rig.conductor.note_death("host", -signal.SIGKILL, START + 2)
    assert not rig.conductor.note_death("peer-1", -signal.SIGKILL, START + 2)


def test_senseless_events_are_noted_and_not_done() -> None:
    rig = Rig(
        event("restart", 1.0, 1),
        event("continue", 2.0, 1),
        event("stop", 3.0, 1),
        event("stop", 4.0, 1),
        event("kill", 5.0, 1),
        event("disk_full", 6.0, 1),
    )
    rig.conductor.advance(START + 10)
    assert [line[3] for line in rig.lines()] == [
        "peer-1 is running",
        "peer-1 is not stopped",
        None,
        "peer-1 is already stopped",
        None,
        "peer-1 is down",
    ]
    assert rig.executor.done == [("stop", "peer-1"), ("kill", "peer-1")]


def test_a_fault_that_the_place_refuses_is_noted_and_never_undone() -> None:
    rig = Rig(
        event("partition", 1.0, sides=((1,), (2,)), for_seconds=3.0), executor=Recorder(cannot=("partition", "heal"))
    )
    rig.conductor.advance(START + 10)
    assert rig.lines() == [("partition", "", 10.0, "no partition here")]


def test_a_command_that_fails_is_noted() -> None:
    class Broken(Recorder):
        def partition(self, *_: object) -> None:
            raise LocalError("ip link: no such device")

    rig = Rig(event("partition", 1.0, sides=((1,), (2,)), for_seconds=3.0), executor=Broken())
    rig.conductor.advance(START + 10)
    assert rig.lines() == [("partition", "", 10.0, "ip link: no such device")]


def test_faults_of_one_link_add_up_and_are_cleared_together() -> None:
    rig = Rig(
        event("delay", 1.0, 1, delay_seconds=0.1),
        event("loss", 2.0, 1, loss_share=0.02),
        event("bandwidth", 3.0, 1, bits_per_second=1e6),
        event("clear", 4.0, 1),
    )
    rig.conductor.advance(START + 10)
    assert [step[2] for step in rig.executor.done] == [
        LinkFault(delay_seconds=0.1),
        LinkFault(delay_seconds=0.1, loss_share=0.02),
        LinkFault(delay_seconds=0.1, loss_share=0.02, bits_per_second=1e6),
        LinkFault(),
    ]


def advanced(rig: Rig, seconds: range) -> None:
    for second in seconds:
        rig.conductor.advance(START + second)


def test_undoing_one_fault_of_a_link_leaves_the_others() -> None:
    rig = Rig(
        event("delay", 1.0, 1, delay_seconds=0.1, for_seconds=20.0),
        event("loss", 2.0, 1, loss_share=0.02, for_seconds=60.0),
        event("delay", 5.0, 1, delay_seconds=0.3, for_seconds=5.0),
        event("loss", 3.0, 2, loss_share=0.5, for_seconds=1.0),
    )
    advanced(rig, range(70))
    assert [link for _, name, link in rig.executor.done if name == "peer-1"] == [
        LinkFault(delay_seconds=0.1),
        LinkFault(delay_seconds=0.1, loss_share=0.02),
        LinkFault(delay_seconds=0.3, loss_share=0.02),
        LinkFault(delay_seconds=0.1, loss_share=0.02),
        LinkFault(loss_share=0.02),
        LinkFault(),
    ]
    assert all(refusal is None for *_, refusal in rig.lines())


def test_partitions_that_overlap_cut_together_and_each_is_healed_when_it_is_over() -> None:
    rig = Rig(
        event("partition", 1.0, sides=((1, 2, "host"), (3, 4)), for_seconds=20.0),
        event("partition", 5.0, sides=((1, 3, "host"), (2, 4)), for_seconds=30.0),
        event("partition", 50.0, sides=((1,), (2, 3, 4)), for_seconds=30.0),
        event("partition", 55.0, sides=((1,), (2,)), for_seconds=5.0),
    )
    advanced(rig, range(90))
    sides = [{frozenset(side) for side in sides if side} for _, *sides in rig.executor.done]  # type: ignore[misc]
    assert sides == [
        {frozenset({"host", "peer-1", "peer-2"}), frozenset({"peer-3", "peer-4"})},
        {frozenset({"host", "peer-1"}), frozenset({"peer-2"}), frozenset({"peer-3"}), frozenset({"peer-4"})},
        {frozenset({"host", "peer-1", "peer-3"}), frozenset({"peer-2", "peer-4"})},
        set(),
        {frozenset({"peer-1"}), frozenset({"peer-2", "peer-3", "peer-4"})},
        {frozenset({"host", "peer-1"}), frozenset({"peer-3", "peer-4"}), frozenset({"peer-2"})},
        {frozenset({"peer-1"}), frozenset({"peer-2", "peer-3", "peer-4"})},
        set(),
    ]
    assert rig.executor.done[5][1] == {"host", "peer-1"}, "whoever is on no side is on the first"


OF_A_PROCESS: dict[Kind, Kind] = {"kill": "restart", "stop": "continue", "disk_full": "disk_free"}


@pytest.mark.parametrize("do", OF_A_PROCESS)
def test_an_undoing_does_not_undo_a_later_fault(do: Kind) -> None:
    """This holds if an event of the plan has undone its own fault before."""
    rig = Rig(
        event(do, 1.0, 2, for_seconds=9.0),
        event(OF_A_PROCESS[do], 3.0, 2),
        event(do, 5.0, 2, for_seconds=20.0),
    )
    advanced(rig, range(30))
    assert rig.lines()[2:] == [
        (do, "peer-2", 5.0, None),
        (OF_A_PROCESS[do], "peer-2", 10.0, f"that {do} is over already"),
        (OF_A_PROCESS[do], "peer-2", 25.0, None),
    ]


def test_the_later_of_two_clocks_or_attacks_counts_until_it_is_over() -> None:
    rig = Rig(
        event("clock_skew", 1.0, 1, skew_seconds=90.0, for_seconds=30.0),
        event("clock_skew", 5.0, 1, skew_seconds=-60.0, for_seconds=10.0),
        event("attacker", 1.0, 2, attack="zero", for_seconds=30.0),
        event("attacker", 5.0, 2, attack="sign_flip", for_seconds=10.0),
        event("attacker", 1.0, 3, attack="zero", for_seconds=10.0),
        event("attacker", 5.0, 3, attack="sign_flip", for_seconds=30.0),
    )
    advanced(rig, range(40))
    assert [skew for what, _, skew in (one for one in rig.executor.done if one[0] == "clock")] == [90, -60, 90, 0]
    assert [attack for name, attack in rig.restarted if name == "peer-2"] == ["zero", "sign_flip", "zero", None]
    assert [attack for name, attack in rig.restarted if name == "peer-3"] == ["zero", "sign_flip", None]


def test_a_peer_down_when_one_of_its_attacks_ends_comes_back_with_the_other() -> None:
    rig = Rig(
        event("attacker", 1.0, 2, attack="zero", for_seconds=30.0),
        event("attacker", 2.0, 2, attack="sign_flip", for_seconds=10.0),
        event("kill", 8.0, 2, for_seconds=10.0),
    )
    advanced(rig, range(20))
    assert rig.restarted == [("peer-2", "zero"), ("peer-2", "sign_flip"), ("peer-2", "zero")]


SHAPES: dict[Kind, dict[str, object]] = {"delay": {"delay_seconds": 0.5}, "loss": {"loss_share": 0.5}}


@given(st.lists(st.tuples(st.sampled_from(sorted(SHAPES)), st.integers(0, 40), st.integers(1, 40)), max_size=8))
def test_a_link_is_as_bad_as_what_is_in_force_says(faults: list[tuple[Kind, int, int]]) -> None:
    rig = Rig(*(event(do, float(at), 1, for_seconds=float(lasts), **SHAPES[do]) for do, at, lasts in faults))
    for second in range(90):
        rig.conductor.advance(START + second)
        wanted = {do for do, at, lasts in faults if at <= second < at + lasts}
        (*_, link) = rig.executor.done[-1] if rig.executor.done else (LinkFault(),)
        assert link == LinkFault(0.5 if "delay" in wanted else 0.0, 0.5 if "loss" in wanted else 0.0)


def test_a_link_is_cleared_although_its_peer_is_down() -> None:
    """Otherwise a peer killed meanwhile would come back to a bad link that nothing ever mends."""
    rig = Rig(event("delay", 1.0, 1, delay_seconds=0.1, for_seconds=10.0), event("kill", 8.0, 1, for_seconds=15.0))
    for seconds in (1, 8, 11, 23):
        rig.conductor.advance(START + seconds)
    assert [one for one in rig.executor.done if one[0] == "shape"] == [
        ("shape", "peer-1", LinkFault(delay_seconds=0.1)),
        ("shape", "peer-1", LinkFault()),
    ]
    assert all(refusal is None for *_, refusal in rig.lines())


def test_a_link_that_could_not_be_made_adds_to_no_later_one() -> None:
    class Broken(Recorder):
        def shape(self, name: str, link: LinkFault) -> None:
            if link.loss_share:
                raise LocalError("tc: no such discipline")
            super().shape(name, link)

    rig = Rig(
        event("loss", 1.0, 1, loss_share=0.02),
        event("delay", 2.0, 1, delay_seconds=0.1),
        executor=Broken(),
    )
    rig.conductor.advance(START + 2)
    assert rig.executor.done == [("shape", "peer-1", LinkFault(delay_seconds=0.1))]
    assert [line[3] for line in rig.lines()] == ["tc: no such discipline", None]


def test_an_attacker_is_another_process_of_the_same_peer_and_so_is_whoever_has_stopped_attacking() -> None:
    rig = Rig(event("attacker", 5.0, 2, attack="sign_flip", for_seconds=10.0))
    rig.conductor.advance(START + 5)
    assert (rig.executor.done, rig.restarted) == ([("kill", "peer-2")], [("peer-2", "sign_flip")])
    rig.conductor.advance(START + 15)
    assert (rig.executor.done, rig.restarted[1:]) == ([("kill", "peer-2")] * 2, [("peer-2", None)])
    assert rig.lines() == [("attacker", "peer-2", 5.0, None), ("honest", "peer-2", 15.0, None)]
    assert not rig.conductor.note_death("peer-2", -signal.SIGKILL, START + 16)  # this death would be another one


def test_a_hostile_peer_comes_back_from_death_as_what_it_is_by_then() -> None:
    rig = Rig(
        event("attacker", 1.0, 1, attack="zero"),
        event("kill", 2.0, 1, for_seconds=1.0),
        event("kill", 4.0, 1, for_seconds=2.0),
        event("honest", 5.0, 1),
        event("honest", 7.0, 1),
    )
    for second in range(8):
        rig.conductor.advance(START + second)
    assert rig.restarted == [("peer-1", "zero"), ("peer-1", "zero"), ("peer-1", None)]
    assert [line[3] for line in rig.lines()][-1] == "peer-1 is not hostile"
    assert [line[3] for line in rig.lines()][:-1] == [None] * 6


HOW: dict[Kind, dict[str, object]] = {
    "delay": {"delay_seconds": 0.5},
    "loss": {"loss_share": 0.5},
    "bandwidth": {"bits_per_second": 1e5},
    "clock_skew": {"skew_seconds": 90.0},
    "attacker": {"attack": "zero"},
    "partition": {"sides": ((1, 2), (3, 4))},
}


@pytest.mark.parametrize("do", get_args(Kind))
def test_anything_may_happen_when_a_peer_comes_to_a_point(do: Kind) -> None:
    """The peer at the point stands still until the event has happened, before anything else that is due."""
    whom = None if do in ("partition", "heal") else 3
    rig = Rig(event(do, None, whom, at_point="vote:2", at_peer=2, **HOW.get(do, {})))
    rig.conductor.advance(START + 1)
    assert rig.told == []
    rig.executor.standing = {"peer-2"}
    rig.conductor.advance(START + 2)
    ((kind, target, seconds, refusal),) = rig.lines()
    assert (kind, target, seconds) == (do, "peer-3" if whom else "", 2.0)
    assert refusal in (None, "peer-3 is running", "peer-3 is not stopped", "peer-3 is not hostile")
    assert rig.executor.done[-1] == ("release", "peer-2")
    assert refusal is not None or len(rig.executor.done) > 1
    rig.executor.standing = {"peer-2"}
    rig.conductor.advance(START + 3)
    assert len(rig.told) == 1, "it happens once"


def test_a_fault_at_a_point_is_undone_in_time() -> None:
    rig = Rig(event("stop", None, 2, at_point="record", for_seconds=4.0))
    rig.executor.standing = {"peer-2"}
    rig.conductor.advance(START + 2)
    assert rig.executor.done == [("stop", "peer-2"), ("release", "peer-2")], "it goes on when it wakes"
    rig.conductor.advance(START + 6)
    assert rig.executor.done[2:] == [("resume", "peer-2")]


def test_a_peer_killed_while_due_to_wait_at_a_point_has_not_come_there() -> None:
    rig = Rig(event("heal", None, at_point="vote", at_peer=2))
    assert not rig.conductor.note_death("peer-2", -signal.SIGKILL, START + 1)
    assert rig.told == []


def test_a_peer_may_turn_hostile_at_a_point() -> None:
    rig = Rig(event("attacker", None, 3, at_point="vote:2", attack="zero", for_seconds=4.0))
    rig.conductor.advance(START + 50)
    assert rig.told == []
    assert rig.conductor.note_death("peer-3", -signal.SIGKILL, START + 51)
    assert (rig.executor.done, rig.restarted) == ([], [("peer-3", "zero")])
    rig.conductor.advance(START + 55)
    assert (rig.executor.done, rig.restarted[1:]) == ([("kill", "peer-3")], [("peer-3", None)])


def test_a_peer_that_is_down_turns_no_attacker() -> None:
    rig = Rig(event("kill", 1.0, 1), event("attacker", 2.0, 1, attack="zero", for_seconds=1.0))
    rig.conductor.advance(START + 9)
    assert rig.restarted == []
    assert rig.lines()[1:] == [("attacker", "peer-1", 9.0, "peer-1 is down")]


def test_a_clock_is_the_machines_and_stays_wrong_whoever_dies() -> None:
    rig = Rig(
        event("clock_skew", 1.0, 1, skew_seconds=-3600.0, for_seconds=10.0),
        event("kill", 2.0, 1, for_seconds=20.0),
        event("clock_skew", 30.0, 2, skew_seconds=90.0),
    )
    for second in (1, 2, 11, 22, 30):
        rig.conductor.advance(START + second)
    rig.conductor.end(START + 40)
    clocks = [one[1:] for one in rig.executor.done if one[0] == "clock"]
    assert clocks == [("peer-1", -3600.0), ("peer-1", 0.0), ("peer-2", 90.0), ("peer-2", 0.0)]
    assert all(refusal is None for *_, refusal in rig.lines())


def test_the_end_repairs_everything_but_deaths() -> None:
    rig = Rig(
        event("kill", 1.0, 1, for_seconds=90.0),
        event("stop", 1.0, 2),
        event("disk_full", 1.0, 3),
        event("delay", 1.0, 4, delay_seconds=0.1),
        event("partition", 1.0, sides=((1, 2), (3, 4))),
        event("kill", 99.0, 4),
        event("kill", None, 2, at_point="adopt"),
    )
    rig.conductor.advance(START + 2)
    rig.executor.done.clear()
    rig.told.clear()
    rig.conductor.end(START + 50)
    assert rig.executor.done == [
        ("resume", "peer-2"),
        ("shape", "peer-4", LinkFault()),
        ("disk", "peer-3", False),
        ("partition",),
    ]
    assert [(line[0], line[1]) for line in rig.lines() if line[3] == END_OF_PLAN] == [
        ("kill", "peer-4"),
        ("kill", "peer-2"),
    ]
    assert not rig.conductor.restarts_pending


def test_a_refused_fault_is_noted_with_its_reason_even_if_it_was_never_due() -> None:
    rig = Rig(
        event("kill", None, 1, at_point="vote"),
        event("heal", None, at_point="vote", at_peer=2),
        event("partition", 90.0, sides=((1,), (2,))),
        event("stop", 90.0, 1),
        executor=Recorder(cannot=("kill", "heal", "partition")),
    )
    rig.conductor.end(START + 50)
    assert {line[0]: line[3] for line in rig.lines()} == {
        "kill": "no kill here",
        "heal": "no heal here",
        "partition": "no partition here",
        "stop": END_OF_PLAN,
    }


@given(st.integers(0, 2**32), st.lists(st.floats(0.05, 30.0), min_size=1, max_size=50))
def test_whatever_is_drawn_ends_with_nothing_broken(seed: int, pauses: list[float]) -> None:
    rig = Rig(plan=draw_plan(seed, 6, 4.0))
    now = START
    for pause in pauses:
        now += pause
        rig.conductor.advance(now)
    rig.conductor.end(now)
    stopped: set[object] = set()
    for what, *rest in rig.executor.done:
        (stopped.add if what == "stop" else stopped.discard)(rest[0] if rest else None)
    assert stopped == set()  # a peer that was killed while it stood still is no longer stopped
    assert [step for step in rig.executor.done if step[0] == "partition"][-1:] in ([], [("partition",)])
    assert not any({step[1]: step[2] for step in rig.executor.done if step[0] == "clock"}.values())
    assert [one.seconds for one in rig.told] == sorted(one.seconds for one in rig.told)

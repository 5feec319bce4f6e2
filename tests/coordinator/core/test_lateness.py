"""A peer's memory of late members, and how long it waits only briefly for them (docs/adr/0043)."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.lateness import ENTRIES_MAX, MISSES_MAX, Lateness, Stage
from coordinator.core.timeline import PROBATION_SHARE, Timeline
from coordinator.round.stage_waits import Waits
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, chain_of, core, group_of

PART: Stage = ("part", 0)
RESULT: Stage = ("result", 0)
SLOW, OTHER = PEERS[3], PEERS[1]
ROUNDS = range(1, 4**MISSES_MAX + 1)
TIMELINE = Timeline(100.0, 10.0)
END, MOMENT = TIMELINE.at(0.5), PROBATION_SHARE * TIMELINE.deadline_seconds
GROUP = group_of(chain_of(core()), PEERS[:4])
GROUP_OF_ROUND_ONE = replace(GROUP, key=replace(GROUP.key, version=1))


def patient_rounds(lateness: Lateness, stage: Stage = PART) -> list[int]:
    return [number for number in ROUNDS if not lateness.hurried({SLOW}, stage, number)]


def test_a_peer_that_misses_is_waited_for_ever_more_rarely_and_at_once_again_when_it_comes() -> None:
    lateness = Lateness()
    assert patient_rounds(lateness) == list(ROUNDS)
    for misses in range(1, MISSES_MAX + 2):
        lateness.miss([SLOW], PART)
        every = 4 ** min(misses, MISSES_MAX)
        assert patient_rounds(lateness) == [number for number in ROUNDS if number % every == 0]
    lateness.note_arrival(SLOW, PART)
    assert patient_rounds(lateness) == list(ROUNDS)


def test_each_stage_is_for_itself_and_a_redo_follows_the_first_turn() -> None:
    lateness = Lateness()
    lateness.miss([SLOW], PART)
    assert patient_rounds(lateness, RESULT) == list(ROUNDS)
    assert patient_rounds(lateness, ("part", 1)) == patient_rounds(lateness, PART)
    lateness.miss([OTHER], ("part", 1))
    assert not lateness.hurried({OTHER}, PART, 1)


def test_it_is_bounded_and_forgets_the_oldest() -> None:
    lateness = Lateness()
    for number in range(ENTRIES_MAX + 10):
        lateness.miss([PeerId(f"peer{number}")], PART)
    assert len(lateness.misses) == ENTRIES_MAX
    assert (PeerId("peer0"), PART) not in lateness.misses


def test_only_a_peer_awaited_until_the_end_is_remembered() -> None:
    lateness = Lateness()
    patience = Waits(PEERS[0], lateness, GROUP).at(PART, TIMELINE)
    assert patience.lasts({SLOW, OTHER}, END, 100.0)
    assert patience.lasts({SLOW, PEERS[0]}, END, 101.0)
    assert not patience.lasts({SLOW, PEERS[0]}, END, END)
    assert lateness.misses == {(SLOW, PART): 1}


def test_a_peer_that_comes_late_to_a_stage_blames_no_other() -> None:
    lateness = Lateness()
    patience = Waits(PEERS[0], lateness, GROUP).at(PART, TIMELINE)
    assert patience.lasts({SLOW}, END, END - MOMENT / 2)
    assert not patience.lasts({SLOW}, END, END)
    assert lateness.misses == {}


def test_one_moment_is_all_that_somebody_tardy_has_in_a_round_until_it_comes() -> None:
    lateness = Lateness()
    lateness.miss([SLOW], PART)
    lateness.miss([SLOW], RESULT)
    waits = Waits(PEERS[0], lateness, GROUP_OF_ROUND_ONE)
    parts, results = waits.at(PART, TIMELINE), waits.at(RESULT, TIMELINE)
    assert parts.lasts({SLOW}, END, 101.0)
    assert waits.next_moment(101.0) == 101.0 + MOMENT
    assert not parts.lasts({SLOW}, END, 101.0 + MOMENT)
    assert not results.lasts({SLOW}, END, 101.0 + MOMENT)
    waits.note_arrival(PART, SLOW)
    assert results.lasts({SLOW}, END, 102.0)
    assert lateness.hurried({SLOW}, PART, 1) == frozenset()


def test_a_peer_late_at_one_stage_has_a_moment_at_the_next_and_is_known_there_if_it_misses_that() -> None:
    lateness = Lateness()
    waits = Waits(PEERS[0], lateness, GROUP_OF_ROUND_ONE)
    parts, results = waits.at(PART, TIMELINE), waits.at(RESULT, TIMELINE)
    assert parts.lasts({SLOW}, END, 100.0)
    assert not parts.lasts({SLOW}, END, END)
    assert results.lasts({SLOW, OTHER}, TIMELINE.end, END)
    assert results.lasts({SLOW}, TIMELINE.end, END + 0.1)
    assert results.lasts({SLOW}, TIMELINE.end, END + 0.1 + MOMENT - 0.01)
    assert not results.lasts({SLOW}, TIMELINE.end, END + 0.1 + MOMENT)
    assert lateness.misses == {(SLOW, PART): 1, (SLOW, RESULT): 1}
    waits.note_arrival(PART, SLOW)
    assert lateness.misses == {(SLOW, RESULT): 1}


def test_a_member_without_a_commitment_has_a_moment_but_we_and_those_that_come_have_all_their_time() -> None:
    lateness = Lateness()
    waits = Waits(PEERS[0], lateness, GROUP_OF_ROUND_ONE)
    waits.give_up({SLOW, OTHER, PEERS[0]})
    waits.note_arrival(RESULT, OTHER)
    assert waits.at(RESULT, TIMELINE, 0).lasts({PEERS[0]}, END, 101.0)
    assert waits.at(RESULT, TIMELINE, 0).lasts({PEERS[0]}, END, END - 0.01)
    assert waits.at(RESULT, TIMELINE, 1).lasts({OTHER}, END, 101.0)
    assert waits.at(RESULT, TIMELINE, 1).lasts({OTHER}, END, END - 0.01)
    assert waits.at(RESULT, TIMELINE, 2).lasts({SLOW}, END, 101.0)
    assert not waits.at(RESULT, TIMELINE, 2).lasts({SLOW}, END, 101.0 + MOMENT)


def test_parts_have_all_their_time_whatever_else_was_late() -> None:
    """A part that does not come in time is lost work."""
    lateness = Lateness()
    lateness.miss([SLOW], RESULT)
    waits = Waits(PEERS[0], lateness, GROUP_OF_ROUND_ONE)
    assert waits.at(RESULT, TIMELINE).lasts({SLOW}, END, 101.0)
    assert not waits.at(RESULT, TIMELINE).lasts({SLOW}, END, 101.0 + MOMENT)
    assert waits.at(("part", 1), TIMELINE).lasts({SLOW}, END, 102.0)
    assert waits.at(("part", 1), TIMELINE).lasts({SLOW}, END, END - 0.01)

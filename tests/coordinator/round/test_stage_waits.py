"""Waits of a round's stages: to the end for most members, only a moment longer for those on probation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.timeline import PROBATION_SHARE, Timeline
from coordinator.round.stage_waits import StageWaits
from tests.coordinator.rigs import PEERS

TIMELINE = Timeline(100.0, 10.0)
END = TIMELINE.at(0.5)
MOMENT = PROBATION_SHARE * TIMELINE.deadline_seconds
KNOWN, STRANGERS = frozenset(PEERS[:4]), frozenset(PEERS[4:6])

moments = st.lists(st.floats(100.0, 106.0), min_size=1, max_size=8).map(sorted)
awaited = st.frozensets(st.sampled_from(PEERS[:6]))


@given(moments, st.data())
def test_members_are_waited_for_until_the_end_and_not_beyond(times: list[float], data: st.DataObject) -> None:
    patience = StageWaits(TIMELINE, STRANGERS)
    for now in times:
        waits_for = data.draw(awaited)
        lasts = patience.lasts(waits_for, END, now)
        assert lasts <= (bool(waits_for) and now < END)
        assert lasts or not waits_for & KNOWN or now >= END


def test_a_member_on_probation_has_a_moment_more_than_the_others_took() -> None:
    patience = StageWaits(TIMELINE, STRANGERS)
    assert patience.lasts(KNOWN | STRANGERS, END, 101.0)
    assert patience.lasts(STRANGERS, END, 102.0)
    assert patience.lasts(STRANGERS, END, 102.0 + MOMENT - 0.01)
    assert not patience.lasts(STRANGERS, END, 102.0 + MOMENT)


def test_without_probation_all_are_waited_for_until_the_end() -> None:
    patience = StageWaits(TIMELINE, frozenset())
    assert patience.lasts(STRANGERS, END, 100.0)
    assert patience.lasts(STRANGERS, END, END - 0.01)

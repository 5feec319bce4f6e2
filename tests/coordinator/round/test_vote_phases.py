"""No path through the phases of a vote breaks its promise."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from coordinator.round.vote_phases import TRANSITIONS, VotePhase, VoteStep

STEPS = st.lists(st.sampled_from(VoteStep), max_size=24)


def walk(steps: list[VoteStep]) -> list[VotePhase]:
    """Return the phases after each step that has a transition, beginning with silence."""
    phases = [VotePhase.SILENT]
    for step in steps:
        after = TRANSITIONS.get((phases[-1], step))
        phases += [] if after is None else [after]
    return phases


def test_no_step_follows_a_sent_vote_or_abstention() -> None:
    sent = {VotePhase.VOTED, VotePhase.ABSTAINED}
    assert not any((phase, step) in TRANSITIONS for phase, step in product(sent, VoteStep))


def test_a_peer_sends_no_vote_that_is_not_on_disk() -> None:
    assert {way for way, after in TRANSITIONS.items() if after is VotePhase.VOTED} == {
        (VotePhase.WRITING, VoteStep.WRITTEN)
    }


@given(STEPS)
def test_one_word_is_sent_at_most(steps: list[VoteStep]) -> None:
    phases = walk(steps)
    assert sum(phase in (VotePhase.VOTED, VotePhase.ABSTAINED) for phase in phases) <= 1
    assert phases.count(VotePhase.VOTED) <= steps.count(VoteStep.WRITTEN)


def test_every_phase_is_reached() -> None:
    assert set(walk([VoteStep.VOTE, VoteStep.WRITTEN])) | set(walk([VoteStep.ABSTAIN])) == set(VotePhase)

"""A reducer's duty, and the weights of its inputs (design §6.2 step 6)."""

from __future__ import annotations

from statistics import median_low

from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.weights import (
    TRUNCATION,
    contribution_weight,
    creditable,
    most_hostile,
    outweighed,
    truncated,
    weights_of,
)
from coordinator.core.actions import Reduce
from coordinator.core.timeline import PROBATION_SHARE, Timeline
from coordinator.round.reducer import ReducerDuty
from coordinator.round.stage_waits import StageWaits
from dht.identity import PeerId
from tests.coordinator.rigs import PEERS, chain_of, core, group_of, inputs_of

FIVE = PEERS[:5]
CHAIN = chain_of(core())
GROUP = group_of(CHAIN, FIVE)
INPUTS = inputs_of(CHAIN, GROUP)
TIMELINE = Timeline(0.0, 10.0)


def duty(inputs_min: int = 2, *probation: PeerId) -> ReducerDuty:
    patience = StageWaits(TIMELINE, frozenset(probation))
    return ReducerDuty(
        GROUP, INPUTS, partition=1, turn=0, needed=(inputs_min, 3), deadline=TIMELINE.end, patience=patience
    )


def arrive(reducing: ReducerDuty, *members: int) -> None:
    for member in members:
        reducing.arrive(member, INPUTS.commits[member].part_roots[1])


def test_it_reduces_at_once_when_all_parts_are_there() -> None:
    reducing = duty()
    arrive(reducing, 0, 1, 2, 3)
    assert reducing.decide(0.0) is None
    assert reducing.missing() == [INPUTS.peers[4]]
    arrive(reducing, 4)
    action = reducing.decide(0.0)
    assert isinstance(action, Reduce)
    assert [one.member for one in action.inputs] == [0, 1, 2, 3, 4]
    assert [one.root for one in action.inputs] == [commit.part_roots[1] for commit in INPUTS.commits]
    assert reducing.decide(99.0) is None


def test_it_waits_for_nobody_whose_part_cannot_come() -> None:
    reducing = duty()
    arrive(reducing, 0, 1, 2)
    reducing.lose(INPUTS.peers[3])
    reducing.arrive(4, bytes(32))
    action = reducing.decide(0.0)
    assert action is not None
    assert [one.member for one in action.inputs] == [0, 1, 2]


def test_it_waits_only_a_moment_for_the_part_of_somebody_on_probation() -> None:
    """A member that commits but sends nothing cannot delay the others (docs/adr/0030)."""
    reducing = duty(2, INPUTS.peers[4])
    arrive(reducing, 0, 1, 2, 3)
    assert reducing.decide(1.0) is None
    action = reducing.decide(1.0 + TIMELINE.at(PROBATION_SHARE))
    assert action is not None
    assert [one.member for one in action.inputs] == [0, 1, 2, 3]


def test_a_part_that_was_given_up_counts_if_it_comes_all_the_same() -> None:
    reducing = duty()
    arrive(reducing, 0, 1, 2)
    reducing.arrive(3, None)
    arrive(reducing, 3)
    action = reducing.decide(10.0)
    assert action is not None
    assert len(action.inputs) == 4


def test_two_thirds_of_the_inputs_are_enough_at_the_deadline_and_fewer_never() -> None:
    reducing = duty()
    arrive(reducing, 0, 1)
    assert reducing.decide(10.0) is None
    arrive(reducing, 2)
    action = reducing.decide(10.0)
    assert action is not None
    assert action.inputs_min == 3
    strict = duty(inputs_min=5)
    arrive(strict, 0, 1, 2, 3)
    assert strict.decide(10.0) is None


def test_strangers_are_lost_without_harm() -> None:
    reducing = duty()
    reducing.lose(PEERS[9])
    assert len(reducing.missing()) == 5


def test_weights_are_quantity_times_quality() -> None:
    """The weight of 100 tokens in 10 steps is 1000."""
    assert contribution_weight(100, 10) == 1000.0
    assert contribution_weight(300, 3) == 30000.0
    assert contribution_weight(300, 0) == 0.0
    assert [one.weight for one in INPUTS.whole()] == [10000.0] * 5


counters = st.lists(st.tuples(st.integers(0, 2**53), st.integers(0, 1000)), min_size=1, max_size=32)


@given(counters)
def test_an_input_weighs_at_most_half_as_much_again_as_the_median(given_counters: list[tuple[int, int]]) -> None:
    weights = weights_of(given_counters, len(given_counters), range(len(given_counters)))
    plain = [contribution_weight(tokens, steps) for tokens, steps in given_counters]
    limit = max(weights)
    assert all(weight == min(own, limit) for weight, own in zip(weights, plain, strict=True))
    positive = [weight for weight in plain if weight > 0]
    assert limit <= (TRUNCATION * median_low(positive) if positive else 0.0)
    assert [weight > 0 for weight in weights] == [own > 0 for own in plain]


@given(st.integers(1, 32), st.data())
def test_fewer_than_a_third_of_a_group_never_weigh_half(members: int, data: st.DataObject) -> None:
    """This holds whatever they claim, however little some honest peers do, and however many of these are missing."""
    hostile = most_hostile(members)
    merged = data.draw(st.integers((2 * members + 1) // 3, members))
    claims = st.lists(st.integers(1, 1000), min_size=merged, max_size=merged)
    counters = [(1000 * claim, 10 * claim) for claim in data.draw(claims)]
    weights = weights_of(counters, members, range(merged))
    if max(weights) > min(weights):
        assert sum(sorted(weights)[merged - hostile :]) <= (3 / 7 + 1e-9) * sum(weights)
    assert not any(outweighed(its, [*weights[:at], *weights[at + 1 :]], hostile) for at, its in enumerate(weights))


@given(counters, st.integers(1, 32))
def test_a_claim_to_more_moves_nobody_elses_weight(given_counters: list[tuple[int, int]], members: int) -> None:
    """The claims of the heaviest do not affect the weights of the others."""
    places = range(len(given_counters))
    heaviest = max(places, key=lambda place: contribution_weight(*given_counters[place]))
    claiming = [
        (2 * tokens, 2 * steps) if place == heaviest and most_hostile(members) else (tokens, steps)
        for place, (tokens, steps) in enumerate(given_counters)
    ]
    before, after = (weights_of(one, members, places) for one in (given_counters, claiming))
    if len(given_counters) > most_hostile(members):
        assert [one for place, one in enumerate(after) if place != heaviest] == [
            one for place, one in enumerate(before) if place != heaviest
        ]


def test_a_claim_counts_less_the_more_are_missing() -> None:
    def claim(members: int, merged: int) -> float:
        counters = [(10, 1)] * (merged - most_hostile(members)) + [(1000, 100)] * most_hostile(members)
        return weights_of(counters, members, range(merged))[-1] / 100

    assert [claim(10, merged) for merged in (10, 9, 8, 7)] == [1.5, 1.5, 1.25, 1.0]
    assert [claim(8, merged) for merged in (8, 7, 6, 5)] == [1.5, 1.5, 1.5, 1.125]
    assert claim(16, 11) == 1.0


@given(st.lists(st.floats(0, 1e30), max_size=32))
def test_truncation_is_done_once(values: list[float]) -> None:
    assert truncated(truncated(values)) == truncated(values)
    assert [cut > 0 for cut in truncated(values)] == [value > 0 for value in values]


honest_tokens = st.lists(st.integers(1, 10**6), min_size=1, max_size=16)
lies = st.lists(st.integers(0, 2**53), max_size=15)


@given(honest_tokens, lies)
def test_fewer_than_half_get_no_credit_beyond_the_honest_whatever_they_claim(
    honest: list[int], lies: list[int]
) -> None:
    lies = lies[: len(honest) - 1]
    credited = creditable([*honest, *lies])
    assert max(credited) <= 16 * max(honest)
    assert all(counted <= claimed for counted, claimed in zip(credited, [*honest, *lies], strict=True))


@given(honest_tokens, lies)
def test_fewer_than_half_take_no_credit_from_the_honest(honest: list[int], lies: list[int]) -> None:
    credited = creditable([*honest, *lies[: len(honest) - 1]])
    full = [own for own in honest if own <= 16 * min(honest)]
    assert [counted for counted, own in zip(credited, honest, strict=False) if own in full] == full


def test_a_member_without_weight_does_not_lower_the_credit() -> None:
    assert creditable([0, 0, 0, 0, 100, 1600, 1700]) == (0, 0, 0, 0, 100, 1600, 1700)
    assert creditable([0, 0]) == (0, 0)
    assert creditable([100, 100, 2000]) == (100, 100, 1600)

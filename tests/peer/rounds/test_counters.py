"""The sums that a peer shows are those of the chains that it holds, also after it has switched branches."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Contributor
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import last_shared
from coordinator.engine.engine import Engine
from coordinator.views.credit import Credit
from coordinator.views.snapshot import CertifiedWork
from peer.rounds.counters import RunCounters
from tests.coordinator.builders import NOW, Club

CLUB = Club.of(4, founders=4)
LEFT, RIGHT = (0, 1), (2, 3)


def grown(chain: Chain, *rosters: tuple[int, ...], tokens: int = 100) -> Chain:
    """Append these versions to a chain, with so many tokens from every member, and return it."""
    for roster in rosters:
        contributors = tuple(Contributor(peer=CLUB.ids[number], tokens=tokens, steps=10) for number in roster)
        chain.append(CLUB.certify(chain, roster, contributors=contributors))
    return chain


def work_of(chain: Chain, first: int) -> tuple[CertifiedWork, dict[str, int]]:
    """Return the sums and the credit of the versions after `first`."""
    outcomes = [one.outcome for one in chain.between(first, chain.version)]
    credit = Credit(1)
    for outcome in outcomes:
        credit.count(outcome)
    sums = CertifiedWork(
        versions=len(outcomes),
        minor=sum(outcome.minor for outcome in outcomes),
        tokens=credit.tokens,
        members=sum(len(outcome.roster) for outcome in outcomes),
        steps=10 * len(outcomes),
    )
    return sums, {peer: credit.tokens_of(peer) for peer in credit.ranked()}


def test_a_lost_branch_does_not_count_beside_the_one_that_won() -> None:
    stem = grown(CLUB.chain(0), (0, 1, 2, 3))
    engine = Engine(CLUB.core(0), [stem.truncated(1), CLUB.chain(1)], [1, 0], NOW)
    machine, counters = engine.machines[0], RunCounters(1)
    counters.follow([machine])
    grown(machine.chain, LEFT, LEFT, LEFT)
    counters.follow([machine])
    assert counters.credited_tokens == {CLUB.ids[0]: 300, CLUB.ids[1]: 300}
    machine.chain = grown(stem.truncated(1), RIGHT, RIGHT)
    counters.follow([machine])
    assert counters.credited_tokens == {CLUB.ids[2]: 200, CLUB.ids[3]: 200}
    assert (counters.certified.versions, counters.certified.tokens, counters.certified.steps) == (2, 400, 20)
    machine.chain = stem.truncated(1)  # nobody had its state
    counters.follow([machine])
    assert counters.certified == CertifiedWork()


MOVES = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 3)),
    st.tuples(st.just("leave"), st.integers(0, 8)),  # so many versions back, for another branch as long as its number
)


@given(st.integers(0, 5), st.lists(MOVES, max_size=12))
def test_the_sums_are_those_of_the_chain_whatever_it_has_gone_through(first: int, moves: list[tuple[str, int]]) -> None:
    begun = grown(CLUB.chain(0), *[LEFT] * first)
    machine = Engine(CLUB.core(0), [begun, CLUB.chain(1)], [first, 0], NOW).machines[0]
    counters = RunCounters(1)
    counters.follow([machine])
    for number, (move, count) in enumerate(moves):
        if move == "leave":
            machine.chain = machine.chain.truncated(max(0, machine.chain.version - count))
        grown(machine.chain, *[(LEFT, RIGHT)[number % 2]] * (count % 4), tokens=100 + number)
        counters.follow([machine])
        sums, credited = work_of(machine.chain, first)
        assert (counters.certified, counters.credited_tokens) == (sums, credited)


def test_a_chain_that_begins_after_a_gap_goes_on_as_far_as_can_be_told() -> None:
    whole = grown(CLUB.chain(0), *[LEFT] * 9)
    short = Chain(replace(CLUB.rules, chain_kept=2), 0, whole.genesis)
    for certificate in whole.certificates:
        short.append(certificate)
    machine = Engine(CLUB.core(0), [whole.truncated(3), CLUB.chain(1)], [3, 0], NOW).machines[0]
    counters = RunCounters(1)
    counters.follow([machine])
    assert last_shared(machine.chain, short) is None
    machine.chain = short
    counters.follow([machine])
    assert counters.certified == work_of(whole, 7)[0]

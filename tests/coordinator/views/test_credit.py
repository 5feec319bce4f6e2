"""Credit: every peer gets the same sums from the same certificates, however many it has already forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from coordinator.chain.certificate import COUNT_MAX, Contributor
from coordinator.chain.chain import Chain
from coordinator.chain.packed_history import PackedHistory
from coordinator.views import credit
from coordinator.views.credit import (
    COMPARED_EVERY_VERSIONS,
    TOKEN_FRAGMENTS_MAX,
    Contributed,
    ContributorName,
    CreditRecord,
    report_of,
    team_tokens,
)
from coordinator.views.network_view import CreditView
from tests.coordinator.builders import Club

CLUB = Club.of(5)
histories = st.lists(st.sampled_from([[0, 1, 2], [1, 2, 3], [2, 3, 4], [0, 1, 2, 3, 4]]), max_size=8)


def grown(*fragments: Sequence[Sequence[int]]) -> list[Chain]:
    """Make one chain per fragment with a version per roster; nothing is forgotten."""
    return [CLUB.grow(CLUB.chain(index), *each) for index, each in enumerate(fragments)]


def tail(chain: Chain, kept: int) -> Chain:
    """Return the chain with only its newest `kept` certificates."""
    return Chain(chain.rules, chain.fragment, chain.genesis, PackedHistory(chain.certificates[-kept:]))


def ends(chains: Sequence[Chain]) -> list[int]:
    return [chain.version for chain in chains]


def certified(chains: Sequence[Chain]) -> dict[str, int]:
    """Add up the sums from scratch; each version's only partition holds all members' work."""
    tokens: Counter[str] = Counter()
    for chain in chains:
        for one in chain.certificates:
            tokens.update({contributor.peer: contributor.tokens for contributor in one.outcome.contributors})
    return {peer: total // len(chains) for peer, total in tokens.items()}


@given(histories, histories, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6))
def test_a_record_carries_what_is_forgotten(
    first: list[list[int]], second: list[list[int]], steps: list[tuple[int, int]]
) -> None:
    chains = grown(first, second)
    fresh = CreditRecord.empty(2).extended(chains, ends(chains))
    carried = CreditRecord.empty(2)
    for step in [*steps, (len(first), len(second))]:
        counted = [reach.last for reach in carried.reaches]
        until = [min(chain.version, last + more) for chain, last, more in zip(chains, counted, step, strict=True)]
        kept = [
            tail(chain.truncated(end), max(1, end - last))
            for chain, last, end in zip(chains, counted, until, strict=True)
        ]
        carried = carried.extended(kept, until)
        assert CreditRecord.from_wire(carried.to_wire()) == carried
    assert carried == fresh
    assert carried.digest == fresh.digest
    assert {one.peer: one.token_fragments // 2 for one in fresh.contributors} == certified(chains)


def test_a_late_peer_says_from_which_version_it_counts() -> None:
    chains = grown([[0, 1, 2]] * 3 + [[0, 1, 3]] * 5, [[0, 1, 2]] * 8)
    late = [tail(chain, 5) for chain in chains]
    report = report_of(b"run", CreditRecord.empty(2), late, {})
    assert report.from_versions == (4, 4)
    assert report.to_versions == (8, 8)
    assert not report.complete
    assert [one.tokens for one in report.contributors] == [500, 500, 250, 250]
    assert report_of(b"run", CreditRecord.empty(2), chains, {}).complete


def test_credit_names_versions_that_were_never_held() -> None:
    (chain,) = grown([[0, 1, 2]] * 9)
    record = CreditRecord.empty(1).extended([chain.truncated(3)], [3]).extended([tail(chain, 2)], [9])
    assert record.reaches[0].missed == 4
    assert not report_of(b"run", record, [chain], {}).complete
    assert {one.versions for one in record.contributors} == {5}


def test_a_branch_that_was_left_is_not_counted() -> None:
    (left,) = grown([[0, 1, 2]] * 6)
    (other,) = grown([[0, 1, 2]] * 3 + [[2, 3, 4]] * 4)
    record = CreditRecord.empty(1).extended([left], [6])
    assert record.extended([other], [7]) == CreditRecord.empty(1).extended([other], [7])
    shorter = record.extended([left.truncated(4)], [4])  # after a crash, before it has caught up
    assert shorter == record


def test_records_stay_behind_by_what_may_still_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "UNSETTLED_VERSIONS", 4)
    (chain,) = grown([[0, 1, 2]] * 10)
    assert CreditRecord.empty(1).settled([chain.truncated(3)]) == CreditRecord.empty(1)
    assert CreditRecord.empty(1).settled([chain]).reaches[0].last == 6


def test_peers_at_different_versions_compare_where_both_have_been() -> None:
    common = COMPARED_EVERY_VERSIONS
    chains = grown([[0, 1, 2, 3]] * (common + 5), [[0, 1, 2]] * (common + 3))
    behind = [chain.truncated(common + 1) for chain in chains]
    one, other = (report_of(b"run", CreditRecord.empty(2), each, {}) for each in (chains, behind))
    assert one.compared_version == other.compared_version == common
    assert one.compared_digest == other.compared_digest != ""
    assert one.tokens > other.tokens
    late = report_of(b"run", CreditRecord.empty(2), [tail(chain, 8) for chain in chains], {})
    assert late.compared_digest != one.compared_digest
    young = report_of(b"run", CreditRecord.empty(2), [chain.truncated(common - 1) for chain in chains], {})
    assert (young.compared_version, young.compared_digest) == (0, "")


def test_a_thousand_times_the_work_is_not_credited_at_any_peer() -> None:
    (chain,) = grown([])
    for _ in range(4):
        claims = ((0, 100), (1, 100), (2, 200), (3, 100_000))
        contributors = tuple(Contributor(peer=CLUB.ids[number], tokens=one, steps=10) for number, one in claims)
        chain.append(CLUB.certify(chain, [0, 1, 2, 3], contributors=contributors))
    record = CreditRecord.empty(1).extended([chain], [4])
    counted = {one.peer: one.token_fragments for one in record.contributors}
    assert counted == {CLUB.ids[0]: 400, CLUB.ids[1]: 400, CLUB.ids[2]: 800, CLUB.ids[3]: 6400}
    assert report_of(b"run", CreditRecord.empty(1), [chain], {}).tokens == 8000
    carried = CreditRecord.empty(1).extended([chain.truncated(2)], [2]).extended([tail(chain, 2)], [4])
    assert carried.digest == record.digest


def test_sums_beyond_what_a_record_can_say_stay_at_its_most() -> None:
    """A peer that is alone in versions may claim anything, as limits that compare peers do not apply."""
    chain = CLUB.grow(CLUB.chain(), *[[0, 1, 2]] * 3)
    huge = CreditRecord.empty(1).extended([chain], [2])
    most = (Contributed(peer=CLUB.ids[0], token_fragments=TOKEN_FRAGMENTS_MAX, versions=2), *huge.contributors[1:])
    huge = huge.model_copy(update={"contributors": tuple(sorted(most, key=lambda one: one.peer))})
    record = CreditRecord.from_wire(huge.extended([chain], [3]).to_wire())
    assert max(one.token_fragments for one in record.contributors) == TOKEN_FRAGMENTS_MAX
    with pytest.raises(ValidationError):
        Contributor(peer=CLUB.ids[0], tokens=2 * COUNT_MAX, steps=1)


def test_the_peer_with_least_credit_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit, "CONTRIBUTORS_MAX", 2)
    (chain,) = grown([[0, 1, 2], [0, 1, 3]])
    record = CreditRecord.empty(1).extended([chain], [2])
    assert {one.peer for one in record.contributors} == {CLUB.ids[0], CLUB.ids[1]}
    assert record.contributors == tuple(
        Contributed(peer=peer, token_fragments=200, versions=2) for peer in sorted(CLUB.ids[:2])
    )


def test_the_order_is_stable_and_teams_add_up() -> None:
    (chain,) = grown([[0, 1, 2], [1, 2, 3]])
    claims = {str(CLUB.ids[number]): ContributorName(f"peer {number}", team) for number, team in enumerate("abba")}
    report = report_of(b"run", CreditRecord.empty(1), [chain], claims)
    ranked = [one.peer_id for one in report.contributors]
    assert ranked == [*sorted(CLUB.ids[number] for number in (1, 2)), *sorted(CLUB.ids[number] for number in (0, 3))]
    assert team_tokens(report.contributors) == [("b", 400), ("a", 200)]
    assert team_tokens([CreditView(peer_id="x", tokens=3)]) == []
    assert team_tokens([CreditView(peer_id="x", tokens=3), CreditView(peer_id="y", team="t")]) == [("", 3), ("t", 0)]

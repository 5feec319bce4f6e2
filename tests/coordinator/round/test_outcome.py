"""Outcomes from checks, the same for all members (design §6.2 steps 8–9)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import is_void
from coordinator.chain.chain import Chain
from coordinator.group.group import Group, InputSet
from coordinator.round.outcome import Checked, agreed_results, partitions_to_redo, read_check
from coordinator.wire.messages import Check
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement
from tests.coordinator.rigs import (
    NONCES,
    PEERS,
    VERIFIER,
    chain_of,
    check,
    core,
    group_of,
    inputs_of,
    outcome_of,
    result_of,
    say,
)

FIVE = PEERS[:5]


@pytest.fixture(scope="module")
def world() -> tuple[Chain, Group, InputSet]:
    chain = chain_of(core())
    group = group_of(chain, FIVE)
    return chain, group, inputs_of(chain, group)


def checks_of(world: tuple[Chain, Group, InputSet], held: Sequence[Sequence[bool]], phase: int = 0) -> list[Checked]:
    """Make one check per row; True if that member holds a partition's result."""
    chain, group, inputs = world
    digests = [result_of(group, partition, phase)[0] for partition in range(5)]
    return [
        check(chain, inputs, peer, [digest if has else None for digest, has in zip(digests, row, strict=True)], phase)
        for peer, row in zip(group.members, held, strict=False)
    ]


tables = st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=5)


@given(tables, st.randoms(use_true_random=False))
def test_the_order_of_checks_makes_no_difference(held: list[list[bool]], shuffle: random.Random) -> None:
    chain = chain_of(core())
    group = group_of(chain, FIVE)
    world = (chain, group, inputs_of(chain, group))
    checks = checks_of(world, held)
    results = dict(result_of(group, partition) for partition in range(5))
    outcome = outcome_of(group, world[2], checks, results)
    other = list(checks)
    shuffle.shuffle(other)
    assert outcome_of(group, world[2], other, results) == outcome
    assert agreed_results(group, other) == agreed_results(group, checks)
    assert partitions_to_redo(group, world[2], other, {}) == partitions_to_redo(group, world[2], checks, {})


@given(st.lists(st.lists(st.sampled_from(["sure", "doubts", "lacks"]), min_size=5, max_size=5), min_size=1, max_size=5))
def test_agreed_is_what_two_thirds_are_sure_of_and_redone_what_a_third_lacks_or_doubts(said: list[list[str]]) -> None:
    """If they were counted apart, a few that lack it and as many that doubt it would leave too few voters."""
    chain = chain_of(core())
    group = group_of(chain, FIVE)
    inputs, checks = inputs_of(chain, group), []
    for peer, row in zip(group.members, said, strict=False):
        digests = [None if one == "lacks" else result_of(group, partition)[0] for partition, one in enumerate(row)]
        doubts = tuple(partition for partition, one in enumerate(row) if one == "doubts")
        checks.append(check(chain, inputs, peer, digests, doubts=doubts))
    sure = [sum(row[partition] == "sure" for row in said) for partition in range(5)]
    assert [one is not None for one in agreed_results(group, checks)] == [3 * count > 10 for count in sure]
    unsure = [len(said) - count for count in sure]
    assert partitions_to_redo(group, inputs, checks, {}) == {p for p, count in enumerate(unsure) if 3 * count > 5}


def test_a_reducer_that_tells_two_stories_is_agreed_with_by_nobody(world: tuple[Chain, Group, InputSet]) -> None:
    chain, group, inputs = world
    rows = [[bytes([1 + (member % 2)]) * 32] * 5 for member in range(5)]
    checks = [check(chain, inputs, peer, row) for peer, row in zip(group.members, rows, strict=True)]
    assert agreed_results(group, checks) == (None,) * 5


@pytest.mark.parametrize(
    ("void", "of", "is_it"), [(0, 5, False), (1, 5, False), (2, 5, True), (1, 3, False), (1, 2, True)]
)
def test_more_than_a_third_void_is_a_void_round(void: int, of: int, is_it: bool) -> None:
    assert is_void([None] * void + [bytes(32)] * (of - void)) == is_it


def test_an_outcome_names_everything_that_was_decided(world: tuple[Chain, Group, InputSet]) -> None:
    chain, group, inputs = world
    held = [[True, True, False, True, True]] * 5
    results = dict(result_of(group, partition) for partition in range(5))
    outcome = outcome_of(group, inputs, checks_of(world, held), results)
    assert (outcome.fragment, outcome.version, outcome.parent) == (0, 1, chain.digest)
    assert (outcome.roster, outcome.roster_id, outcome.input_set) == (group.members, group.key.roster_id, inputs.digest)
    assert [partition is None for partition in outcome.partitions] == [False, False, True, False, False]
    assert [one.peer for one in outcome.contributors] == list(inputs.peers)
    assert not outcome.minor


def test_the_coin_needs_every_nonce(world: tuple[Chain, Group, InputSet]) -> None:
    _, group, inputs = world
    results = dict(result_of(group, partition) for partition in range(5))
    whole = outcome_of(group, inputs, checks_of(world, [[True] * 5] * 5), results)
    fewer = outcome_of(group, inputs, checks_of(world, [[True] * 5] * 4), results)
    assert whole.coin != fewer.coin
    assert whole.digest != fewer.digest


def test_checks_that_do_not_count(world: tuple[Chain, Group, InputSet]) -> None:
    chain, group, inputs = world
    full = tuple(bytes([1]) * 32 for _ in range(5))
    good = Check(phase=0, results=full, complaints=(), nonce=NONCES[0])

    def by(sender: PeerId, body: Check, place: bytes = inputs.digest, kind: str = "check") -> Statement:
        return say(sender, kind, chain, place, body)

    assert read_check(by(FIVE[0], good), group, inputs, VERIFIER).check == good
    signed = by(FIVE[0], good)
    refused = {
        "no check of this group": [
            by(PEERS[9], good),
            by(FIVE[0], good, bytes(32)),
            by(FIVE[0], good, kind="vote"),
            say(FIVE[0], "check", chain, inputs.digest, good, version=3),
        ],
        "another number of partitions": [by(FIVE[0], Check(phase=0, results=full[:4], complaints=(), nonce=None))],
        "another nonce": [
            by(FIVE[0], Check(phase=0, results=full, complaints=(), nonce=None)),
            by(FIVE[0], Check(phase=0, results=full, complaints=(), nonce=NONCES[1])),
        ],
        "not signed": [Statement(context=signed.context, sender=signed.sender, body=signed.body, signature=bytes(32))],
    }
    for reason, statements in refused.items():
        for statement in statements:
            with pytest.raises(PeerError, match=reason):
                read_check(statement, group, inputs, VERIFIER)


def test_a_nonce_stays_secret_while_a_result_is_missing(world: tuple[Chain, Group, InputSet]) -> None:
    chain, group, inputs = world
    incomplete = check(chain, inputs, FIVE[0], [None, *[bytes(32)] * 4])
    assert incomplete.check.nonce is None
    assert read_check(incomplete.statement, group, inputs, VERIFIER).check.complaints == (0,)

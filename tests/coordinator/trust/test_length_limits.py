"""Length limits of statements: neither a leader's own padding nor a member's keeps its lies from convicting it."""

from __future__ import annotations

from functools import partial

import pytest

from coordinator.chain.certificate import Conviction
from coordinator.core.actions import Tell
from coordinator.core.events import Progress, Received
from coordinator.engine.engine import Engine
from coordinator.group.group import read_input_set
from coordinator.round.roles import may_send
from coordinator.trust.equivocation import STATEMENT_QUOTAS, Equivocations
from coordinator.trust.evidence import BODIES_BYTES_MAX
from coordinator.trust.length_limits import ENVELOPE_BYTES, LEADERS_OWN_BYTES_MAX, check_length
from coordinator.wire.messages import ATTEMPT_MAX, BODY_BYTES_MAX, Bundle, Check, Proposal, Redo, Result, Roster
from coordinator.wire.openings import PARTITIONS_MAX
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, make_statement
from dht.wire import MESSAGE_BYTES_MAX
from tests.coordinator.builders import CODEC, NOW, Club, digest
from tests.coordinator.rigs import BY_ID
from tests.coordinator.round.test_spot_checks import ready
from tests.next_minor import padded

CLUB = Club.of(32)
CHAIN = CLUB.chain()
GROUP = CLUB.group(CHAIN, range(32))
LEADER = CLUB.number(GROUP.leader)
DIGESTS = tuple(digest(number) for number in range(PARTITIONS_MAX))
ALL = tuple(range(PARTITIONS_MAX))


def joins(size: int = 0) -> tuple[Statement, ...]:
    said = [CLUB.join(number, CHAIN, networks=(b"abcdef",) * 4) for number in range(32)]
    return tuple(padded(signer, one, size) if size else one for signer, one in zip(CLUB.signers, said, strict=True))


def checks(size: int = 0) -> tuple[Statement, ...]:
    """Make the longest possible checks, padded to `size` bytes if given."""
    about = {"complaints": ALL, "dropped": ALL, "doubts": ALL, "accused": ALL}
    body = Check(phase=1, results=DIGESTS, nonce=bytes(16), **about)
    said = [CLUB.say(number, "check", body, **CLUB.in_group(GROUP, digest("inputs"))) for number in range(32)]
    return tuple(padded(signer, one, size) if size else one for signer, one in zip(CLUB.signers, said, strict=True))


def commits(segments: int, size: int = 0) -> tuple[Statement, ...]:
    said = [CLUB.commit(number, GROUP, squared_norms=(0.1,) * segments) for number in range(32)]
    return tuple(padded(signer, one, size) if size else one for signer, one in zip(CLUB.signers, said, strict=True))


def led(kind: str, listed: tuple[Statement, ...]) -> Statement:
    """Make the longest statement in which the leader lists its members' statements."""
    if kind == "roster":
        convictions = tuple(Conviction(peer=one, evidence=digest(one)) for one in CLUB.ids)
        body = Roster(attempt=ATTEMPT_MAX, revision=8, joins=listed, convictions=convictions, voids=ATTEMPT_MAX)
        return CLUB.say(LEADER, kind, body, **CLUB.at(CHAIN))
    if kind == "bundle":
        return CLUB.say(LEADER, kind, Bundle(commits=listed, members=32), **CLUB.in_group(GROUP))
    bodies = {"redo": Redo(partitions=ALL, checks=listed), "proposal": Proposal(results=DIGESTS, checks=listed)}
    return CLUB.say(LEADER, kind, bodies[kind], **CLUB.in_group(GROUP, digest("inputs")))


LISTED = {
    "roster": lambda: joins(),
    "bundle": lambda: commits(3000),
    "redo": lambda: checks(),
    "proposal": lambda: checks(),
}
PADDED = {
    "roster": lambda: joins(BODY_BYTES_MAX["join"]),
    "bundle": lambda: commits(32, BODY_BYTES_MAX["commit"]),
    "redo": lambda: checks(BODY_BYTES_MAX["check"]),
    "proposal": lambda: checks(BODY_BYTES_MAX["check"]),
}


@pytest.mark.parametrize("kind", LISTED)
def test_the_longest_of_the_largest_group_are_taken_however_members_pad_theirs(kind: str) -> None:
    for listed in (LISTED[kind](), PADDED[kind]()):
        said = led(kind, listed)
        check_length(said)
        assert len(said.to_wire()) < MESSAGE_BYTES_MAX


def test_a_bundle_of_thousands_of_segments_is_an_input_set() -> None:
    bundle = led("bundle", commits(3000))
    assert len(read_input_set(bundle, GROUP, CODEC, CHAIN).peers) == 32


@pytest.mark.parametrize("kind", LISTED)
def test_a_statement_that_a_leader_pads_is_refused(kind: str) -> None:
    said = led(kind, LISTED[kind]()[:7])
    listed_bytes = len(said.body) + LEADERS_OWN_BYTES_MAX + 7 * ENVELOPE_BYTES
    with pytest.raises(PeerError, match=f"a {kind} of"):
        check_length(padded(CLUB.signers[LEADER], said, listed_bytes))
    few, many = LISTED[kind]()[:20], {"roster": "join", "bundle": "commit"}.get(kind, "check")
    own = padded(CLUB.signers[0], few[0], BODY_BYTES_MAX[many] + 1)
    with pytest.raises(PeerError, match=f"a {many} of"):
        check_length(led(kind, (own, *few[1:])))


@pytest.mark.parametrize("kind", LISTED)
def test_two_that_are_padded_as_far_as_they_are_taken_convict(kind: str) -> None:
    """They list accomplices' statements that are as long as possible, too."""
    accomplices = PADDED[kind]()[:10]
    said = led(kind, accomplices + LISTED[kind]()[10:] if kind != "bundle" else accomplices + commits(700)[10:])
    size = min(len(said.body) + 1024, BODY_BYTES_MAX.get(kind, MESSAGE_BYTES_MAX))
    one, other = (padded(CLUB.signers[LEADER], said, size, fill) for fill in range(2))
    check_length(one)
    equivocations = Equivocations(CLUB.verifier)
    assert equivocations.see(one, CLUB.peers(range(32)), lambda _: True) == []
    [evidence] = equivocations.see(other, CLUB.peers(range(32)), lambda _: True)
    assert evidence.statements[0].sender == GROUP.leader
    assert len(evidence.to_wire()) < MESSAGE_BYTES_MAX


def test_accepted_statements_have_room() -> None:
    limits = {kind: BODY_BYTES_MAX[kind] for kind in STATEMENT_QUOTAS.keys() & BODY_BYTES_MAX.keys()}
    assert all(limit <= STATEMENT_QUOTAS[kind][1] for kind, limit in limits.items())
    assert STATEMENT_QUOTAS.keys() - limits.keys() == {"ballot", "bundle"}
    assert 2 * STATEMENT_QUOTAS["bundle"][1] <= BODIES_BYTES_MAX


def test_a_commitment_in_a_bundle_is_no_longer_than_one_that_comes_alone() -> None:
    first, *rest = commits(32)
    long = padded(CLUB.signers[0], first, BODY_BYTES_MAX["commit"] + 1)
    with pytest.raises(PeerError, match="is too long"):
        read_input_set(led("bundle", (long, *rest)), GROUP, CODEC, CHAIN)


def test_an_engine_acts_on_no_roster_that_is_padded() -> None:
    club = Club.of(5)
    chain = club.chain()
    leader = club.number(chain.leaders()[0])
    core = club.core((leader + 1) % 5)
    made = Engine(core, [club.chain(fragment) for fragment in range(2)], [0, 0], NOW)
    made.handle(Progress(1, 1.0), NOW)
    boots = {club.number(core.me): {"boot": core.boot}}
    asked = [club.join(one, chain, **boots.get(one, {})) for one in range(5)]
    roster = club.roster(chain, asked)
    long = padded(club.signers[leader], roster, len(roster.body) + LEADERS_OWN_BYTES_MAX + 5 * ENVELOPE_BYTES)
    assert len(long.body) < BODY_BYTES_MAX["roster"]
    told = [one for one in made.handle(Received(club.ids[leader], long), NOW) if isinstance(one, Tell)]
    assert [one.event for one in told] == ["refused"]
    assert made.machines[0].attempt is None
    made.handle(Received(club.ids[leader], roster), NOW)
    assert made.machines[0].attempt is not None


def test_results_of_partitions_that_a_member_does_not_reduce_take_no_room() -> None:
    member, _ = ready()
    exchange = member.attempt.exchange
    signed = member.results[next(place for place in range(5) if place != member.partition)]
    culprit = BY_ID[PeerId(signed.sender)]
    own = signed.read(Result)
    equivocations = Equivocations(member.core.verifier)
    trusted = frozenset(member.group.members)

    def said(**changes: object) -> Statement:
        return make_statement(culprit, signed.context, own.model_copy(update=changes))

    def see(statement: Statement) -> int:
        return len(equivocations.see(statement, trusted, partial(may_send, exchange)))

    fillers = [said(partition=place, turn=turn) for turn in (1, 0) for place in range(32)]
    assert not any(see(one) for one in fillers if one.digest != signed.digest)
    assert see(signed) == 0
    assert see(said(encoding_error=1.0)) == 1
    redone = (own.partition + 1) % 5
    for number in (redone, (redone + 1) % 5):
        again = said(partition=number, turn=1)
        assert not may_send(exchange, again)
        exchange.redone = frozenset({number})
        assert may_send(exchange, again) == (exchange.group.reducer(number, {number}) == signed.sender)

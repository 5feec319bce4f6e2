"""Evidence: what convicts, offline and from bytes alone, and what must not (design §9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.chain.certificate import Vote
from coordinator.simulator.tensors import GARBAGE, VirtualProofChecker, garbage_root
from coordinator.trust.evidence import (
    EVIDENCE_BYTES_MAX,
    Evidence,
    OpenedLeaf,
    UnknownChargeError,
    contradiction,
    garbage,
    lie,
    lie_in,
    verify,
)
from coordinator.trust.statement_slots import slot_of
from coordinator.wire.merkle import merkle_tree
from coordinator.wire.messages import STATEMENT_BODIES, Abstain
from dht.errors import PeerError
from dht.statement import Statement
from tests.coordinator.builders import Club, boot, digest, forged

CLUB = Club.of(5, real_keys=True)
CHAIN = CLUB.chain()
GROUP = CLUB.group(CHAIN, range(5))
INPUTS = CLUB.inputs(CHAIN, GROUP)
LEADER = CLUB.number(GROUP.leader)
REDUCER = CLUB.number(GROUP.reducer(0))
COURT = VirtualProofChecker()
RESULTS = tuple(digest(("root", j)) for j in range(GROUP.partitions))


def vote(number: int, state: object = "state") -> Statement:
    return CLUB.say(number, "vote", Vote(outcome=digest("o"), state=digest(state)), **CLUB.in_group(GROUP))


def abstain(number: int, attempt: int = 0) -> Statement:
    return CLUB.say(number, "abstain", Abstain(attempt=attempt), **CLUB.in_group(GROUP))


def roster(*members: int, life: int = 0) -> Statement:
    return CLUB.roster(CHAIN, [CLUB.join(one, CHAIN, boot=boot(one, life)) for one in members])


PAIRS: dict[str, tuple[Statement, Statement]] = {
    "join": (CLUB.join(1, CHAIN), CLUB.join(1, CHAIN, dialable=False)),
    "roster": (roster(0, 1, 2, 3, 4), roster(*{LEADER, 0, 1})),
    "commit": (CLUB.commit(1, GROUP), CLUB.commit(1, GROUP, tokens=99)),
    "bundle": (INPUTS.statement, CLUB.bundle(GROUP, INPUTS.signed[:-1])),
    "result": (CLUB.result(GROUP, INPUTS, 0), CLUB.result(GROUP, INPUTS, 0, included=(0, 1, 2, 3))),
    "check": (
        CLUB.check_statement(1, GROUP, INPUTS, RESULTS),
        CLUB.check_statement(1, GROUP, INPUTS, (None, *RESULTS[1:])),
    ),
    "vote": (vote(1), vote(1, "another")),
    "vote and abstain": (vote(1), abstain(1)),
}


@pytest.fixture(params=list(PAIRS))
def pair(request: pytest.FixtureRequest) -> tuple[Statement, Statement]:
    return PAIRS[request.param]


def read_and_verify(data: bytes) -> str:
    return verify(Evidence.parse(data), CLUB.rules, COURT).peer


def test_two_statements_from_one_place_convict_their_sender(pair: tuple[Statement, Statement]) -> None:
    one, other = pair
    evidence = contradiction(one, other)
    assert evidence == contradiction(other, one)
    assert len(evidence.to_wire()) <= EVIDENCE_BYTES_MAX
    assert read_and_verify(evidence.to_wire()) == one.sender


@settings(max_examples=150)
@given(st.sampled_from(list(PAIRS)), st.data())
def test_a_flipped_bit_anywhere_makes_it_void(name: str, data: st.DataObject) -> None:
    whole = contradiction(*PAIRS[name]).to_wire()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError):
        read_and_verify(bytes(damaged))


@settings(max_examples=50)
@given(st.sampled_from(list(PAIRS)), st.data())
def test_cut_off_or_added_bytes_make_it_void(name: str, data: st.DataObject) -> None:
    whole = contradiction(*PAIRS[name]).to_wire()
    damaged = whole[: data.draw(st.integers(0, len(whole) - 1))] if data.draw(st.booleans()) else whole + b"\x00"
    with pytest.raises(PeerError):
        read_and_verify(damaged)


INNOCENT: dict[str, Callable[[], tuple[Statement, Statement]]] = {
    "the same said twice": lambda: (vote(1), vote(1)),
    "two peers": lambda: (vote(1), vote(2, "another")),
    "a join of a later life": lambda: (CLUB.join(1, CHAIN), CLUB.join(1, CHAIN, boot=boot(1, 1), dialable=False)),
    "a join for another attempt": lambda: (CLUB.join(1, CHAIN), CLUB.join(1, CHAIN, attempt=1)),
    "a roster of a later life": lambda: (roster(0, 1, 2, 3, 4), roster(0, 1, 2, 3, 4, life=1)),
    "rosters without their leader": lambda: (
        roster(*(set(range(5)) - {LEADER})),
        roster(*(set(range(4)) - {LEADER})),
    ),
    "a revised roster": lambda: (
        roster(0, 1, 2, 3, 4),
        CLUB.roster(CHAIN, [CLUB.join(one, CHAIN) for one in range(5)], revision=1),
    ),
    "a result of the second turn": lambda: (
        CLUB.result(GROUP, INPUTS, 0),
        CLUB.say(
            REDUCER,
            "result",
            CLUB.result(GROUP, INPUTS, 0, turn=1).read(STATEMENT_BODIES["result"]),
            **CLUB.in_group(GROUP, INPUTS.digest),
        ),
    ),
    "a check after a redo": lambda: (
        CLUB.check_statement(1, GROUP, INPUTS, RESULTS),
        CLUB.check_statement(1, GROUP, INPUTS, RESULTS, phase=1),
    ),
    "another group": lambda: (
        vote(1),
        CLUB.say(1, "vote", Vote(outcome=digest("o"), state=digest("x")), fragment=0, version=0, group=digest("g")),
    ),
    "an unknown kind": lambda: (
        CLUB.say(1, "presence", Abstain(attempt=0)),
        CLUB.say(1, "presence", Abstain(attempt=1)),
    ),
}


@pytest.mark.parametrize("name", list(INNOCENT))
def test_statements_of_an_honest_peer_convict_no_peer(name: str) -> None:
    one, other = INNOCENT[name]()
    with pytest.raises(PeerError):
        read_and_verify(contradiction(one, other).to_wire())


def test_forgeries_and_other_runs_convict_nobody(pair: tuple[Statement, Statement]) -> None:
    one, other = pair
    with pytest.raises(PeerError, match="did not sign"):
        verify(contradiction(one, forged(other)), CLUB.rules)
    with pytest.raises(PeerError, match="another run"):
        verify(contradiction(one, other), Club.of(5, seed=9, real_keys=True).rules)


def test_order_and_number_of_statements_are_fixed(pair: tuple[Statement, Statement]) -> None:
    evidence = contradiction(*pair)
    for statements in (evidence.statements[::-1], evidence.statements[:1], (*evidence.statements, pair[0])):
        with pytest.raises(PeerError, match="in order"):
            verify(Evidence(charge="contradiction", statements=statements), CLUB.rules)
    with pytest.raises(PeerError, match="proves nothing"):
        verify(evidence.model_copy(update={"exhibit": b"x"}), CLUB.rules)


def test_statements_that_cannot_be_read_have_no_place() -> None:
    assert slot_of(CLUB.say(1, "join", Abstain(attempt=1))) is None
    assert slot_of(CLUB.say(1, "result", Abstain(attempt=1))) is None


# -- lies


LIES = {
    "an input counted twice": CLUB.result(GROUP, INPUTS, 0, included=(0, 1, 1, 2)),
    "in the second turn": CLUB.say(
        CLUB.number(GROUP.reducer(0, {0})),
        "result",
        CLUB.result(GROUP, INPUTS, 0, turn=1, included=(4, 4)).read(STATEMENT_BODIES["result"]),
        **CLUB.in_group(GROUP, INPUTS.digest),
    ),
}


@pytest.mark.parametrize("name", list(LIES))
def test_a_statement_that_contradicts_itself_convicts(name: str) -> None:
    statement = LIES[name]
    assert lie_in(statement) is not None
    assert read_and_verify(lie(statement).to_wire()) == statement.sender


@pytest.mark.parametrize("honest", [CLUB.commit(1, GROUP), CLUB.result(GROUP, INPUTS, 0), vote(1)])
def test_honest_statements_are_no_lies(honest: Statement) -> None:
    assert lie_in(honest) is None
    with pytest.raises(PeerError, match="no lie"):
        verify(lie(honest), CLUB.rules)


# -- garbage


PARTS = tuple(garbage_root(part) for part in range(GROUP.partitions))
CODEC = COURT.codec


def spoilt(partition: int = 0, **changes: object) -> Evidence:
    commit = CLUB.commit(1, GROUP, part_roots=PARTS, codec=CODEC)
    values = {"partition": partition, "index": 0, "piece": GARBAGE + bytes([partition]), "path": (), **changes}
    return garbage(commit, OpenedLeaf(**values))  # type: ignore[arg-type]


def test_a_leaf_that_does_not_decode_convicts_whoever_committed_it() -> None:
    assert read_and_verify(spoilt().to_wire()) == CLUB.ids[1]
    assert read_and_verify(spoilt(2).to_wire()) == CLUB.ids[1]


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (spoilt(piece=GARBAGE + b"\x01"), "nobody committed"),
        (spoilt(index=1), "nobody committed"),
        (spoilt(path=(digest("x"),)), "nobody committed"),
        (spoilt(partition=31, piece=GARBAGE), "nobody committed"),
        (garbage(CLUB.commit(1, GROUP, codec="int2"), OpenedLeaf(partition=0, index=0, piece=b"", path=())), "codec"),
        (garbage(vote(1), OpenedLeaf(partition=0, index=0, piece=b"", path=())), "one commitment"),
    ],
)
def test_leaves_that_were_not_committed_convict_nobody(evidence: Evidence, words: str) -> None:
    with pytest.raises(PeerError, match=words):
        verify(evidence, CLUB.rules, COURT)


def test_a_good_leaf_convicts_nobody() -> None:
    piece = b"a leaf that decodes"
    roots = (merkle_tree(piece, 1024).root, *PARTS[1:])
    commit = CLUB.commit(1, GROUP, part_roots=roots, codec=CODEC)
    with pytest.raises(PeerError, match="decodes well"):
        verify(garbage(commit, OpenedLeaf(partition=0, index=0, piece=piece, path=())), CLUB.rules, COURT)


def test_a_peer_that_cannot_judge_says_so() -> None:
    with pytest.raises(UnknownChargeError):
        verify(spoilt(), CLUB.rules)
    with pytest.raises(UnknownChargeError):
        verify(Evidence(charge="sorcery", statements=(vote(1),)), CLUB.rules, COURT)


@settings(max_examples=60)
@given(st.data())
def test_a_flipped_bit_makes_lies_and_garbage_void(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from([spoilt(), *map(lie, LIES.values())])).to_wire()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(PeerError):
        read_and_verify(bytes(damaged))

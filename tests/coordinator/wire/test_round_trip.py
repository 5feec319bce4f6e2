"""Every message survives the wire, and hostile ones are refused."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.chain.certificate import Certificate, Contributor, Conviction, Outcome, PartitionOutcome, Vote
from coordinator.core.actions import Send, Tell
from coordinator.core.events import PresenceSeen, Progress, Received, Tick
from coordinator.engine.engine import Engine
from coordinator.trust.evidence import Evidence
from coordinator.wire.messages import (
    NONCE_BYTES,
    STATEMENT_BODIES,
    Abstain,
    AgainNote,
    AskChainNote,
    AskEvidenceNote,
    AskHeardNote,
    Bundle,
    CellRoster,
    CellYield,
    CertificateNote,
    ChainNote,
    Check,
    Commit,
    ConvictionsNote,
    EvidenceNote,
    HeardNote,
    Join,
    Message,
    NeedNote,
    PartNote,
    Proposal,
    Redo,
    Result,
    Roster,
    Ward,
    WardNote,
    YieldNote,
)
from coordinator.wire.openings import OpenedInput, OpeningNote, OpenNote, Refutation
from coordinator.wire.presence import Presence
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Context, Statement, make_statement
from dht.wire import Wire
from tests.coordinator.rigs import BY_ID, PEERS, chain_of, core, group_of, grown, inputs_of, presence, roster
from tests.sim.worlds import Tape, run_to_version, swarm

FIVE = PEERS[:5]
digests = st.binary(min_size=32, max_size=32)
nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)
peers = st.sampled_from(PEERS)
counts = st.integers(0, 2**53)
small = st.integers(0, 31)
attempts = st.integers(0, 1 << 20)
floats = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | digests


def some(values: st.SearchStrategy[object], least: int = 0) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(values, min_size=least, max_size=4).map(tuple)


kinds = st.sampled_from([*STATEMENT_BODIES, "vote", "presence"])
contexts = st.builds(
    Context, run_id=digests, kind=kinds, fragment=small, version=st.integers(0, 9), group=maybe.map(lambda d: d or b"")
)
statements = st.builds(
    Statement, context=contexts, sender=peers, body=st.binary(max_size=40), signature=st.binary(max_size=64)
)
contributors = st.builds(Contributor, peer=peers, tokens=counts, steps=counts, cell=maybe)
partitions = st.builds(PartitionOutcome, reducer=peers, root=digests, included=some(small))
outcomes = st.builds(
    Outcome,
    fragment=small, version=st.integers(1, 2**40), parent=digests, attempt=attempts, minor=st.booleans(),
    roster_id=digests, roster=some(peers, 1), input_set=digests, contributors=some(contributors, 1),
    partitions=some(st.none() | partitions, 1), coin=digests, active_set=digests, trust=digests,
)  # fmt: skip
wards = st.builds(Ward, peer=peers, boot=nonces, dialable=st.booleans())
yields = st.builds(CellYield, contributors=some(contributors, 1))
convictions = st.builds(Conviction, peer=peers, evidence=digests)
certificates = st.builds(
    Certificate, outcome=outcomes, state=digests, votes=some(statements, 1), convictions=some(convictions)
)
evidences = st.builds(
    Evidence, charge=st.sampled_from(["contradiction", "lie", "garbage"]), statements=some(statements, 1),
    exhibit=st.binary(max_size=20),
)  # fmt: skip
joins = st.builds(
    Join, attempt=attempts, leader=peers, boot=nonces, dialable=st.booleans(), contributes=st.booleans(),
    expires_unix_seconds=counts,
)  # fmt: skip
openings = st.builds(OpenedInput, member=small, pieces=some(st.binary(max_size=1024)), siblings=some(digests))
BODIES: dict[type[Wire], st.SearchStrategy[Wire]] = {
    Join: joins,
    Roster: st.builds(
        Roster, attempt=attempts, revision=st.integers(0, 8), joins=some(statements, 1), convictions=some(convictions)
    ),
    Commit: st.builds(
        Commit, tokens=counts, steps=counts, window_first=counts, window_count=counts, codec=st.text(max_size=16),
        part_roots=some(digests, 1), squared_norms=some(st.floats(0, 1e36)), nonce_hashes=st.tuples(digests, digests),
        cell=maybe,
    ),
    Bundle: st.builds(Bundle, commits=some(statements, 1)),
    Result: st.builds(
        Result, partition=small, turn=st.integers(0, 1), root=digests, included=some(small, 1),
        coefficients=some(floats), squared_norms=some(floats), encoding_error=st.floats(0, 10),
    ),
    Check: st.builds(
        Check, phase=st.integers(0, 1), results=some(maybe, 1), complaints=some(small), nonce=st.none() | nonces,
        dropped=some(small), doubts=some(small), accused=some(small),
    ),
    Refutation: st.builds(
        Refutation, partition=small, turn=st.integers(0, 1), result=digests, leaf=st.integers(0, (1 << 40) - 1),
        inputs=some(openings, 1), piece=st.binary(max_size=1024), siblings=some(digests),
    ),
    Redo: st.builds(Redo, partitions=some(small, 1), checks=some(statements, 1)),
    Proposal: st.builds(Proposal, results=some(maybe, 1), checks=some(statements, 1)),
    Abstain: st.builds(Abstain, attempt=attempts),
    Vote: st.builds(Vote, outcome=digests, state=digests),
    CellRoster: st.builds(CellRoster, leader=peers, height=st.integers(1, 2), wards=some(wards, 1)),
}  # fmt: skip
NOTES: dict[type[Wire], st.SearchStrategy[Wire]] = {
    PartNote: st.builds(PartNote, group=digests, partition=small, turn=st.integers(0, 1)),
    NeedNote: st.builds(
        NeedNote, what=st.sampled_from(["part", "result"]), group=digests, partition=small, turn=st.integers(0, 1)
    ),
    OpenNote: st.builds(
        OpenNote, group=digests, partition=small, turn=st.integers(0, 1), seed=digests, own=st.booleans()
    ),
    OpeningNote: st.builds(
        OpeningNote, group=digests, partition=small, turn=st.integers(0, 1), seed=digests, inputs=some(openings)
    ),
    CertificateNote: st.builds(CertificateNote, certificate=certificates),
    AskChainNote: st.builds(AskChainNote, fragment=small, version=counts, known=some(digests)),
    ChainNote: st.builds(ChainNote, fragment=small, certificates=some(certificates)),
    HeardNote: st.builds(HeardNote, fragment=small, version=counts, heard=some(digests)),
    AskHeardNote: st.builds(AskHeardNote, fragment=small, version=counts, places=some(nonces)),
    ConvictionsNote: st.builds(ConvictionsNote, convictions=some(convictions)),
    AskEvidenceNote: st.builds(AskEvidenceNote, evidence=digests),
    WardNote: st.builds(WardNote, fragment=small, base=digests, boot=nonces, dialable=st.booleans()),
    AgainNote: st.builds(AgainNote, group=digests, partitions=some(small, 1)),
    YieldNote: st.builds(YieldNote, group=digests, cells=st.lists(yields, min_size=1, max_size=2).map(tuple)),
    EvidenceNote: st.builds(EvidenceNote, evidence=st.binary(max_size=60) | evidences.map(Wire.to_wire)),
}
OTHERS: dict[type[Wire], st.SearchStrategy[Wire]] = {
    Evidence: evidences,
    Certificate: certificates,
    Presence: st.builds(
        Presence, boot=nonces, state=st.sampled_from(["training", "hosting"]), steps=counts,
        steps_per_second=st.floats(0, 1e6), tokens=counts, loss=st.none() | st.floats(0, 10), versions=some(counts),
        heads=some(st.binary(max_size=8)), addresses=some(st.text(max_size=20)), beat=counts,
        name=st.text(max_size=32), device=st.text(max_size=64), bytes_sent=counts, bytes_received=counts,
        rounds_void=counts,
    ),
}  # fmt: skip


def test_every_kind_of_message_is_covered() -> None:
    assert set(STATEMENT_BODIES.values()) | {Vote} == set(BODIES)
    assert {Statement, *NOTES} == set(Message.__args__)


@pytest.mark.parametrize("model", [*BODIES, *NOTES, *OTHERS], ids=lambda model: model.__name__)
def test_a_sent_message_is_read_unchanged(model: type[Wire]) -> None:
    @settings(max_examples=25)
    @given({**BODIES, **NOTES, **OTHERS}[model])
    def round_trip(value: Wire) -> None:
        assert model.from_wire(value.to_wire()) == value

    round_trip()


@given(st.sampled_from([*BODIES, *NOTES]), st.binary(max_size=60))
def test_noise_is_refused_in_words(model: type[Wire], noise: bytes) -> None:
    with suppress(PeerError):
        assert model.from_wire(noise).to_wire() == noise


# -- hostile statements at a whole engine


def engine_in_a_group() -> Engine:
    """Make the engine of peer 0 of five at version 2, in a group whose input set is fixed."""
    own = core(0)
    chain = grown(chain_of(own), 2, FIVE)
    engine = Engine(own, [chain], [2], 0.0)
    for peer in FIVE[1:]:
        engine.handle(PresenceSeen(peer, presence("training", 9, 1.0, [chain])), 0.0)
    engine.handle(Progress(9, 1.0), 0.0)
    engine.handle(Tick(), 7.0)
    assert engine.in_flight == 1
    attempt = engine.machines[0].rounds.joining.attempt_number
    engine.handle(Received(FIVE[1], roster(chain, FIVE, attempt)), 7.1)
    group = group_of(chain, FIVE, attempt)
    engine.handle(Received(FIVE[1], inputs_of(chain, group).statement), 7.2)
    entered = engine.machines[0].attempt
    assert entered is not None
    assert entered.exchange.inputs is not None
    return engine


def groups_of(engine: Engine) -> list[bytes]:
    """Return every digest that a statement at this engine could name."""
    machine = engine.machines[0]
    assert machine.attempt is not None
    assert machine.attempt.exchange.inputs is not None
    inputs = machine.attempt.exchange.inputs.digest
    return [b"", machine.chain.digest, machine.chain.genesis, machine.attempt.group.key.roster_id, inputs]


def standing(engine: Engine) -> object:
    """Return all state in which a refused message could leave a trace."""
    machine = engine.machines[0]
    rounds = machine.rounds
    return (
        machine.chain.digest,
        machine.held,
        copy.copy(machine.vote_locks.known),
        copy.copy(machine.state_sync.unserved),
        rounds.attempt is not None
        and (
            rounds.attempt.group.key,
            rounds.attempt.exchange.inputs,
            dict(rounds.attempt.exchange.results),
            rounds.attempt.exchange.redone,
            rounds.attempt.verdict.followed,
            dict(rounds.attempt.verdict.ballot.votes),
            set(rounds.attempt.verdict.ballot.abstained),
            dict(rounds.attempt.leader_role.checks),
        ),
        list(rounds.past),
        rounds.joining.attempt_number,
        {attempt: sorted(one.joins) for attempt, one in rounds.joining.gatherings.items()},
        dict(rounds.joining.announced),
        {
            peer: (dict(probe.answers), probe.shown)
            for peer, probe in engine.fork_choice.probes.items()
            if probe.holds_chains
        },
    )


def receive(engine: Engine, message: Message, sender: PeerId = PEERS[9], root: bytes | None = None) -> list[object]:
    return list(engine.handle(Received(sender, message, root), 7.5))


ours = st.sampled_from([core(0).rules.run_id])


def places(engine: Engine) -> st.SearchStrategy[Context]:
    """Draw contexts that a real message could have."""
    return st.builds(
        Context,
        run_id=ours,
        kind=kinds,
        fragment=st.sampled_from([0, 0, 0, 7]),
        version=st.sampled_from([2, 2, 2, 1, 3]),
        group=st.sampled_from(groups_of(engine)) | digests,
    )


@given(st.data())
def test_unsigned_statements_change_nothing(data: st.DataObject) -> None:
    engine = engine_in_a_group()
    before = standing(engine)
    for _ in range(3):
        body = (
            data.draw(st.one_of(*BODIES.values())).to_wire()
            if data.draw(st.booleans())
            else data.draw(st.binary(max_size=30))
        )
        statement = Statement(
            context=data.draw(places(engine)), sender=data.draw(peers), body=body, signature=bytes(32)
        )
        actions = receive(engine, statement, data.draw(peers), data.draw(maybe))
        assert all(isinstance(action, Send | Tell) for action in actions)
    assert standing(engine) == before


@given(st.data())
def test_signed_nonsense_is_refused_without_harm(data: st.DataObject) -> None:
    """Members and strangers sign anything: nothing raises, and no version comes of it."""
    engine = engine_in_a_group()
    digest = engine.machines[0].chain.digest
    for _ in range(3):
        signer = BY_ID[data.draw(peers)]
        context = data.draw(places(engine))
        statement = make_statement(signer, context, data.draw(st.one_of(*BODIES.values())))
        receive(engine, statement, signer.peer_id, data.draw(maybe))
    assert engine.machines[0].chain.digest == digest
    assert engine.next_deadline(8.0) > 8.0


@given(st.data())
def test_notes_change_nothing_that_they_do_not_prove(data: st.DataObject) -> None:
    engine = engine_in_a_group()
    before = standing(engine)
    for _ in range(3):
        note = data.draw(st.one_of(*NOTES.values()))
        actions = receive(engine, note, data.draw(peers), data.draw(maybe))  # type: ignore[arg-type]
        assert all(isinstance(action, Send | Tell) for action in actions)
    assert standing(engine) == before


def mutations(message: Statement) -> Sequence[Statement]:
    """Return copies of a real statement, each with one field changed."""
    context = message.context
    other = [{"fragment": 1}, {"version": context.version + 1}, {"group": bytes(32)}, {"run_id": bytes(32)}]
    changed = [context.model_copy(update=change) for change in other]
    return [
        *(
            Statement(context=one, sender=message.sender, body=message.body, signature=message.signature)
            for one in changed
        ),
        Statement(context=context, sender=PEERS[8], body=message.body, signature=message.signature),
        Statement(context=context, sender=message.sender, body=message.body[:-1], signature=message.signature),
        Statement(context=context, sender=message.sender, body=message.body + b"\x00", signature=message.signature),
        Statement(context=context, sender=message.sender, body=message.body, signature=message.signature[:-1]),
    ]


def test_real_statements_with_one_field_changed_change_nothing() -> None:
    """All statements of a whole round are mutated and sent to their receivers."""
    world = swarm(4)
    tape = Tape(world)
    run_to_version(world, 2)
    kinds_heard = set()
    for peer in world.peers:
        assert peer.engine is not None
        before = standing(peer.engine)
        sends = [action for _, _, action in tape.entries if isinstance(action, Send) and action.to == peer.me]
        said = {send.message.digest: send for send in sends if isinstance(send.message, Statement)}
        for send in said.values():
            kinds_heard.add(send.message.context.kind)
            for mutated in mutations(send.message):
                actions = peer.engine.handle(Received(PEERS[3], mutated, send.payload), world.clock.now)
                assert all(isinstance(action, Send | Tell) for action in actions)
        assert standing(peer.engine) == before
    assert kinds_heard == {"join", "roster", "commit", "bundle", "result", "check", "proposal", "vote"}

"""Arbitrary messages from strangers or one member: the engine does not fail, and nothing certified changes.

The tests copy peers of a simulated swarm in the middle of rounds. Hypothesis alters, forges and misplaces the messages
sent so far. One of four members is hostile: it signs anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.chain.certificate import Certificate, Vote
from coordinator.core.events import PeerGone, PresenceSeen, Received, Tick
from coordinator.engine.engine import Engine
from coordinator.round.vote_phases import VotePhase
from coordinator.run.manifest import PaceSpec
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import (
    SIGNED_BODIES,
    AskChainNote,
    Bundle,
    CertificateNote,
    ChainNote,
    Message,
    NeedNote,
    PartNote,
    Proposal,
    Redo,
    Roster,
)
from coordinator.wire.presence import Presence
from dht.identity import PeerId, Signer
from dht.statement import Context, Statement, make_statement
from dht.wire import Wire
from tests.coordinator.builders import digest
from tests.coordinator.wire_values import values_of

PACE = PaceSpec(fragments=2, steps_per_version=6, min_group=2, round_seconds=6.0)
STRANGER = 4
HOSTILE = 3
MOMENTS = ("at rest", "joining", "in a group", "with inputs", "with a proposal", "after its vote")


@dataclass(frozen=True)
class Scene:
    """One peer at one moment, and all messages sent until then."""

    engine: Engine
    now: float
    said: tuple[Message, ...]
    signers: tuple[Signer, ...]


def moment(peer: VirtualPeer) -> str:
    """Return the peer's stage in the newest round of fragment 0."""
    assert peer.engine is not None
    machine = peer.engine.machines[0]
    attempt = machine.attempt
    if attempt is None:
        return "joining" if machine.joining_since is not None else "at rest"
    if attempt.exchange.inputs is None:
        return "in a group"
    if attempt.verdict.followed is None:
        return "with inputs"
    return "after its vote" if attempt.verdict.phase is VotePhase.VOTED else "with a proposal"


@cache
def scenes() -> dict[str, Scene]:
    """Run a swarm of four with some history, and copy a peer at each stage of a later round."""
    world = World(PACE, rates=[2.0] * 5, founders=range(4), seed=3)
    said: list[Message] = []

    def listen(_: PeerId, __: PeerId, message: Message) -> bool:
        said.append(message)
        return True

    world.network.filter = listen
    for peer in world.peers[:4]:
        peer.start()
    assert world.run_until_versions(6, seconds_max=200.0)
    found: dict[str, Scene] = {}
    victim = world.peers[0]
    while len(found) < len(MOMENTS):
        assert world.clock.step(world.clock.now + 10.0)
        name = moment(victim)
        if name not in found and victim.engine is not None:
            engine = copy.deepcopy(victim.engine)
            signers = tuple(peer.signer for peer in world.peers)
            found[name] = Scene(engine, world.clock.now, tuple(said[-400:]), signers)
    return found


def situation(engine: Engine) -> list[tuple[object, ...]]:
    """Return the state that no single peer may change."""
    return [
        (machine.chain.digest, machine.chain.version, machine.held, machine.ready, dict(machine.vote_locks.known))
        for machine in engine.machines
    ]


# -- what a hostile peer could send

SOURCES = {
    "roster": (Roster, "join"),
    "bundle": (Bundle, "commit"),
    "redo": (Redo, "check"),
    "proposal": (Proposal, "check"),
}


def digests_in(scene: Scene) -> st.SearchStrategy[bytes]:
    """Draw digests that mean something in the scene: groups, input sets, bases, results."""
    groups = {one.context.group for one in scene.said if isinstance(one, Statement)}
    names = {one.digest for one in scene.said if isinstance(one, Statement)}
    heads = {machine.chain.digest for machine in scene.engine.machines}
    return st.sampled_from(sorted(groups | names | heads | {digest("unknown")})[-80:])


@st.composite
def contexts(draw: Callable[..., Any], scene: Scene, kinds: st.SearchStrategy[str]) -> Context:
    """Draw a statement's context: mostly the peer's current one."""
    index = draw(st.sampled_from([0, 0, 0, 1, 2, 0xFFFF]))
    at = scene.engine.machines[index].chain.version if index < 2 else 0
    return Context(
        run_id=scene.engine.core.rules.run_id if draw(st.integers(0, 9)) else digest("another run"),
        kind=draw(kinds),
        fragment=index,
        version=max(0, at + draw(st.sampled_from([0, 0, 0, 0, -1, 1, 2**40]))),
        group=draw(digests_in(scene) | st.just(b"")),
    )


@st.composite
def insider(draw: Callable[..., Any], scene: Scene) -> Statement:
    """Draw any well-formed statement, properly signed by one member (or by a stranger)."""
    kind = draw(st.sampled_from([*SIGNED_BODIES, "gossip"]))
    body: Wire = draw(values_of(SIGNED_BODIES.get(kind, Vote)))
    if kind in SOURCES:  # its inner statements are real ones
        model, inner = SOURCES[kind]
        heard = [one for one in scene.said if isinstance(one, Statement) and one.context.kind == inner][-12:]
        chosen = tuple(draw(st.lists(st.sampled_from(heard), min_size=1, max_size=5)))
        field = next(name for name, info in model.model_fields.items() if "Statement" in str(info.annotation))  # type: ignore[attr-defined]
        body = body.model_copy(update={field: chosen})
    if kind in ("join", "roster"):
        body = body.model_copy(update={"attempt": draw(st.integers(0, 5))})
    signer = scene.signers[draw(st.sampled_from([HOSTILE, STRANGER]))]
    return make_statement(signer, draw(contexts(scene, st.just(kind))), body)


@st.composite
def forgery(draw: Callable[..., Any], scene: Scene) -> Statement:
    """Draw a real statement changed in one place, so that its signature is false."""
    real = draw(st.sampled_from([one for one in scene.said if isinstance(one, Statement)]))
    what = draw(st.sampled_from(["context", "sender", "body", "other body", "signature"]))
    if what == "context":
        change: dict[str, object] = {"context": draw(contexts(scene, st.just(real.context.kind)))}
    elif what == "sender":
        change = {"sender": draw(st.sampled_from([one.peer_id for one in scene.signers]))}
    elif what == "body":
        body = bytearray(real.body)
        body[draw(st.integers(0, len(body) - 1))] ^= draw(st.integers(1, 255))
        change = {"body": bytes(body)}
    elif what == "other body":
        change = {"body": draw(st.sampled_from([one.body for one in scene.said if isinstance(one, Statement)]))}
    else:
        change = {"signature": draw(st.binary(max_size=64))}
    return Statement.from_wire(real.model_copy(update=change).to_wire())


@st.composite
def false_certificate(draw: Callable[..., Any], scene: Scene) -> Certificate:
    """Draw a real certificate with a change in it."""
    real = draw(st.sampled_from(scene.engine.machines[0].chain.certificates))
    what = draw(st.sampled_from(["outcome", "state", "votes", "any"]))
    if what == "any":
        return draw(values_of(Certificate))
    outcome = real.outcome.model_copy(
        update={"version": real.version + draw(st.integers(0, 3)), "coin": draw(st.binary(min_size=32, max_size=32))}
    )
    changes = {
        "outcome": {"outcome": outcome},
        "state": {"state": draw(st.binary(min_size=32, max_size=32))},
        "votes": {"votes": (draw(insider(scene)),)},
    }
    return Certificate.from_wire(real.model_copy(update=changes[what]).to_wire())


def notes(scene: Scene) -> st.SearchStrategy[Message]:
    groups = digests_in(scene).filter(bool)
    turn, partition = st.integers(0, 1), st.integers(0, 31)
    certificates = st.lists(false_certificate(scene), max_size=3).map(tuple)
    return st.one_of(
        st.builds(PartNote, group=groups, partition=partition, turn=turn),
        st.builds(NeedNote, what=st.sampled_from(["part", "result"]), group=groups, partition=partition, turn=turn),
        st.builds(CertificateNote, certificate=false_certificate(scene)),
        st.builds(
            AskChainNote,
            fragment=st.integers(0, 255),
            version=st.integers(0, 9),
            known=st.lists(groups, max_size=5).map(tuple),
        ),
        st.builds(ChainNote, fragment=st.sampled_from([0, 0, 1, 2, 255]), certificates=certificates),
    )


def hostile_events(scene: Scene) -> st.SearchStrategy[Any]:
    """Draw messages by any sender with any payload, odd presence records, and lost peers."""
    peers = st.sampled_from([one.peer_id for one in scene.signers])
    payload = st.none() | digests_in(scene).filter(bool)
    received = st.builds(Received, peers, insider(scene) | forgery(scene) | notes(scene), payload)
    odd = st.builds(PresenceSeen, peers, values_of(Presence))
    return st.one_of(received, received, received, received, odd, st.builds(PeerGone, peers))


@pytest.mark.parametrize("name", MOMENTS)
@settings(max_examples=15)
@given(st.data())
def test_nothing_hostile_makes_the_engine_fail_or_changes_what_is_certified(name, data):
    scene = scenes()[name]
    engine = copy.deepcopy(scene.engine)
    before = situation(engine)
    for event in data.draw(st.lists(hostile_events(scene), min_size=1, max_size=6)):
        engine.handle(event, scene.now)
    engine.handle(Tick(), scene.now)
    assert situation(engine) == before
    assert engine.next_deadline(scene.now) > scene.now


@pytest.mark.parametrize("name", MOMENTS)
def test_everything_that_was_ever_said_may_be_said_again(name):
    """A stranger replays all messages in the wrong order: they are refused or known already."""
    scene = scenes()[name]
    engine = copy.deepcopy(scene.engine)
    before = situation(engine)
    for message in scene.said[::-1]:
        engine.handle(Received(scene.signers[STRANGER].peer_id, message), scene.now)
    assert [one[:2] for one in situation(engine)] == [one[:2] for one in before] or newer(engine, scene)


def newer(engine: Engine, scene: Scene) -> bool:
    """Return whether the chains grew by valid versions only, as real votes may have come early."""
    old = [machine.chain for machine in scene.engine.machines]
    new = [machine.chain for machine in engine.machines]
    return all(
        chain.digest_at(before.version) == before.digest and chain.version - before.version <= 1
        for before, chain in zip(old, new, strict=True)
    )

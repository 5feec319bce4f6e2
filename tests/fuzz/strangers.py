"""What a peer does with messages outside of rounds: at a donor, a newcomer, a download and an observer.

The donor lives on from input to input, every input from another stranger, so that what it keeps of them is seen to be
bounded. The others are fresh each time, for an answer counts once.
"""

from __future__ import annotations

import asyncio
import atexit
from functools import cache

import torch

from coordinator.chain.certificate import Conviction
from coordinator.chain.waypoint import Waypoint, heads_digest
from coordinator.run.compatibility import read_manifest
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig, run_id_of
from coordinator.run.model_spec import ModelSpec
from coordinator.trust.evidence import contradiction
from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import BanView, RoundView
from coordinator.wire.messages import Abstain, ChainNote, ConvictionsNote, EvidenceNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import digest_of
from dht.wire import Wire
from peer.net.frames import (
    HeadsAnswer,
    HeadsAsk,
    ManifestAnswer,
    ManifestAsk,
    PieceIndex,
    ProbeAsk,
    StateAsk,
    StatusAsk,
    TailAnswer,
    TailAsk,
    Transfer,
    decode_header,
    encode_header,
)
from peer.net.probe import ASKERS_KEPT as PROBERS_KEPT
from peer.net.probe import ProbeResponder
from peer.net.transport import Payload, frame_prefix
from peer.numerics.outer_optimizer import OuterState, state_bytes, state_digest, state_tree
from peer.observer.chains import Chains
from peer.observer.peers import HeardPresence
from peer.observer.state import Observation
from peer.observer.view import run_facts
from peer.rounds.public_status import ASKERS_KEPT, PublicStatus, StatusResponder, encode_status
from peer.rounds.requests import PeerRequests
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.pins import ASKERS_MAX
from peer.sync.download import Wanted
from peer.sync.download_scheduler import DownloadScheduler
from peer.sync.introduction import Introduction
from peer.sync.state_server import SERVED_MAX
from tests.coordinator.rigs import PEERS, VERIFIER, chain_of, core, grown, presence, say
from tests.fuzz.headers import golden
from tests.fuzz.target import Target
from tests.peer.virtual_loop import VirtualLoop

MODEL = ModelSpec(hidden_size=8, layers=1, heads=1, intermediate_size=8, vocabulary=16)
LAYOUTS = layouts_of(RunConfig(model=MODEL, pace=PaceSpec(fragments=1)))
STATE = genesis_states(RunConfig(model=MODEL, outer=OuterSpec(momentum=0.5), pace=PaceSpec(fragments=1)))[0]
STATE_NAME = digest_of(b"certificate")
CORE = core()
EMPTY = chain_of(CORE)
CHAIN = grown(EMPTY, 3, PEERS[:5])
HEAD = CHAIN.digest
HEADS = heads_digest(CORE.manifest.run_id, CHAIN.version, (HEAD,))
UNIX_SECONDS = 1e9
PAUSE_SECONDS = 0.25  # between two strangers: a status is told to so many in a second, and to no more
PAYLOAD_BYTES_MAX = 1 << 20

QUESTIONS: tuple[Transfer, ...] = (
    ManifestAsk(),
    StateAsk(fragment=0, certificate=STATE_NAME, piece=None),
    StateAsk(fragment=0, certificate=STATE_NAME, piece=1),
    StatusAsk(),
    ProbeAsk(ticket=1, port=7400),
    HeadsAsk(version=CHAIN.version, digest=HEADS),
    TailAsk(fragment=0, version=CHAIN.version, head=HEAD),
)
INTRODUCTIONS: tuple[Transfer, ...] = (
    ManifestAnswer(manifest=golden("coordinator_manifest.bin")[0]),
    HeadsAnswer(digest=HEADS, heads=(HEAD,)),
    TailAnswer(fragment=0, head=HEAD, certificates=tuple(CHAIN.certificates)),
)


@cache
def loop() -> VirtualLoop:
    """The loop of everything that lives on from input to input."""
    made = VirtualLoop()
    atexit.register(made.close)
    return made


class Donor:
    """The answering end at one peer. Nobody is called: it does not know where a stranger's connection comes from."""

    def __init__(self) -> None:
        anchors = Anchors(LAYOUTS, [STATE])
        anchors.install(0, STATE_NAME, STATE, bytes(64))
        self.requests = PeerRequests(anchors, CORE.manifest.to_wire(), lambda: [CHAIN], self._post)
        self.probes = ProbeResponder(self._host_of, self._post, lambda: UNIX_SECONDS)
        self.requests.answer_probes(self.probes)
        self.desk = StatusResponder(lambda: PublicStatus(role="host"))
        self.requests._status_responder = self.desk
        self.strangers = self.answers = 0

    async def _host_of(self, _: PeerId) -> str:
        return ""

    def _post(self, _: PeerId, message: Transfer, payload: Payload) -> None:
        frame_prefix(encode_header(message), payload, PAYLOAD_BYTES_MAX)
        self.answers += 1

    async def ask(self, message: Transfer, payload: bytes) -> None:
        """One stranger's message, and the time until the next one's."""
        self.strangers += 1
        self.requests.handle(PeerId(f"stranger {self.strangers}"), message, payload, asyncio.get_running_loop().time())
        await asyncio.sleep(PAUSE_SECONDS)

    def check_bounds(self) -> None:
        """What is kept of strangers."""
        assert len(self.desk._limits) <= ASKERS_KEPT
        assert max(len(self.probes._limits), len(self.probes._calls)) <= PROBERS_KEPT
        assert len(self.requests.server._leaves) <= SERVED_MAX * len(LAYOUTS)
        assert len(self.requests.server._uploads._lines) <= ASKERS_MAX


@cache
def _donor() -> Donor:
    return Donor()


def answer(data: bytes) -> int:
    """How many answers a message brings its sender; raises PeerError if it brings none, as it does if it is none."""
    message, donor = decode_header(data), _donor()
    if not isinstance(message, Transfer):
        raise PeerError("a message of a round")
    before = donor.answers
    loop().run_until_complete(donor.ask(message, data))
    donor.check_bounds()
    assert donor.answers - before <= 1
    if donor.answers == before:
        raise PeerError("no answer")
    return donor.answers - before


def introduce(data: bytes) -> object:
    """A newcomer takes an answer; raises PeerError if it is of no use."""
    message = decode_header(data)
    if isinstance(message, ManifestAnswer):
        return read_manifest(message.manifest, run_id_of(message.manifest))
    if not isinstance(message, HeadsAnswer | TailAnswer):
        raise PeerError("no answer for a newcomer")
    introduction = Introduction(Waypoint(CHAIN.version, HEADS), (EMPTY,))
    if isinstance(message, TailAnswer):
        introduction.hear(PEERS[1], INTRODUCTIONS[1])  # type: ignore[arg-type]
    if not introduction.hear(PEERS[2], message) or introduction.refused:
        raise PeerError("not what was asked for")
    return introduction


class Arrived(Wire):
    """A piece of a state, and its bytes."""

    piece: PieceIndex
    payload: bytes


LEAVES = b"".join(state_tree(STATE.anchor).leaves + state_tree(STATE.momentum).leaves)
PIECES = (
    Arrived(piece=None, payload=LEAVES),
    Arrived(piece=0, payload=bytes(state_bytes(STATE.anchor))),
    Arrived(piece=1, payload=bytes(state_bytes(STATE.momentum))),
)


def download(data: bytes) -> OuterState:
    """One of two holders sends this and nothing else; raises PeerError if it is left for that."""
    changed = Arrived.from_wire(data)
    running, name = DownloadScheduler(), state_digest(STATE.anchor, STATE.momentum)
    running.begin(Wanted(0, 0, name, name), len(STATE.anchor), [PEERS[1], PEERS[2]])
    for good in PIECES:
        running.asks(0.0)
        running.receive(PEERS[1], 0, (name, changed.piece), changed.payload, 0.0)
        running.receive(PEERS[2], 0, (name, good.piece), good.payload, 0.0)
    state = running.take(0)
    assert state is not None
    assert torch.equal(state.anchor, STATE.anchor)
    if PEERS[1] not in running._holders:
        raise PeerError("a false piece")
    return state


def observe(data: bytes) -> None:
    """An observer that has asked everything hears a message, and draws its picture."""
    message = decode_header(data)
    chains = Chains(CORE.manifest, PEERS[9], VERIFIER)
    chains.set_clock(UNIX_SECONDS)
    observation = Observation(CORE.manifest, run_facts(CORE.manifest), chains)
    observation.read([HeardPresence(PEERS[1], presence("training", 9, 1.0, [CHAIN]), UNIX_SECONDS)], 0.0)
    observation.questions(0.0)
    observation.hear(PEERS[1], message, 0.1)
    observation.notice(0.2)
    observation.questions(0.2)
    observation.view(0.3)


def _observed() -> tuple[bytes, ...]:
    """Answers that an observer asks for, with something in each of their lists."""
    abstained = [say(PEERS[2], "abstain", EMPTY, HEADS, Abstain(attempt=number)) for number in (1, 2)]
    evidence = contradiction(*abstained)
    status = PublicStatus(
        role="learner",
        note="a",
        wall_seconds=1.5,
        evaluations=(Evaluation(versions=3, tokens_certified=7, wall_seconds=1.0, loss=2.5),),
        rounds=(RoundView(fragment=0, version=1, leader=PEERS[1], members=PEERS[:2], digest=HEAD.hex()),),
        bans=(BanView(peer_id=PEERS[2], digest=evidence.digest.hex()),),
    )
    return tuple(
        encode_header(message)
        for message in (
            ChainNote(fragment=0, certificates=tuple(CHAIN.certificates)),
            ConvictionsNote(convictions=(Conviction(peer=PEERS[2], evidence=evidence.digest),)),
            EvidenceNote(evidence=evidence.to_wire()),
            encode_status(status),
        )
    )


STRANGER_TARGETS = {
    "donor": Target(answer, tuple(map(encode_header, QUESTIONS)), prefix_bytes=1),
    "newcomer": Target(introduce, tuple(map(encode_header, INTRODUCTIONS)), prefix_bytes=1),
    "download": Target(download, tuple(piece.to_wire() for piece in PIECES)),
    "observer": Target(observe, _observed(), prefix_bytes=1),
}

"""Context shared by all parts of a peer's protocol core: our key, the run, and the peers that seem to be live."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from coordinator.chain.certificate import more_than_share
from coordinator.chain.chain import CHAIN_KEPT, Chain, Rules
from coordinator.core.actions import RoundKey, Send
from coordinator.core.admission_control import AdmissionControl
from coordinator.core.answer_budget import FRAGMENT_BYTES_AT_ONCE, AnswerBudget
from coordinator.core.events import OriginsSeen, ReachSeen, Seen
from coordinator.core.lateness import Lateness
from coordinator.core.quorum import GraceEstimates, grace_seconds
from coordinator.core.tickets import has_ticket, is_full
from coordinator.core.timeline import GRACE_SHARE_MAX
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, Manifest, PaceSpec
from coordinator.trust.bans import Bans
from coordinator.trust.evidence import ProofChecker
from coordinator.wire.messages import NONCE_BYTES, Message
from coordinator.wire.presence import PresenceTable
from dht.errors import PeerError
from dht.identity import PeerId, Signer, Verifier
from dht.statement import Context, Statement, make_statement
from dht.wire import Wire

RandomBytes = Callable[[int], bytes]

UNABLE_DEADLINES = 4.0  # a peer that could not write its vote to disk joins no group this long: it could not vote
DEADLINE_DOUBLINGS_MAX = 3  # a void group doubles the next deadline, at most to × 8 (design §6.2)


@dataclass(slots=True)
class Core:
    """The context shared by all fragments of one peer's protocol core. No I/O; every call passes the time in."""

    manifest: Manifest
    signer: Signer
    verifier: Verifier
    random_bytes: RandomBytes
    unix_offset_seconds: float  # unix time = monotonic time + this
    contributes: bool = True
    dialable: bool = True
    networks: tuple[bytes, ...] = ()  # public networks from which we call, as named in our joins
    origins: Mapping[PeerId, bytes] = field(default_factory=dict)  # public network from which each peer calls us
    chain_kept: int = CHAIN_KEPT
    boot: bytes = field(init=False)
    rules: Rules = field(init=False)
    presence: PresenceTable = field(init=False)
    answering: AnswerBudget = field(init=False)
    draining: bool = False  # we take part in no new round
    withdrawn: bool = False  # the same, but only for a while
    unable_until: float = -math.inf  # until then we cannot vote
    steps: int = 0
    steps_seen: float = 0.0  # the time at which `steps` was reported
    steps_per_second: float = 0.0
    estimates: GraceEstimates = field(default_factory=GraceEstimates)
    bans: Bans = field(default_factory=Bans)
    admission: AdmissionControl = field(init=False)
    lateness: Lateness = field(default_factory=Lateness)
    carries: bool = True  # contribute our work again if only a losing branch had certified it
    proof_checker: ProofChecker | None = None  # None: we convict nobody by evidence whose check takes tensors

    def __post_init__(self) -> None:
        self.boot = self.random_bytes(NONCE_BYTES)
        self.rules = Rules.of(self.manifest, self.verifier, self.chain_kept)
        self.admission = AdmissionControl(
            self.rules.admission, self.rules.authority, self.rules.keyholders, self.bans.orders
        )
        self.presence = PresenceTable(self.pace.presence_lifetime_seconds)
        self.answering = AnswerBudget(at_once=self.pace.fragments * FRAGMENT_BYTES_AT_ONCE)

    @property
    def me(self) -> PeerId:
        return self.signer.peer_id

    @property
    def pace(self) -> PaceSpec:
        return self.manifest.config.pace

    @property
    def codec(self) -> str:
        return self.manifest.config.outer.contribution_codec

    def unix_seconds(self, now: float) -> float:
        return now + self.unix_offset_seconds

    def steps_now(self, now: float) -> int:
        """Estimate our inner steps from the last report and our step rate, for at most one presence lifetime ahead."""
        seconds = min(max(now - self.steps_seen, 0.0), self.pace.presence_lifetime_seconds)
        return int(self.steps + self.steps_per_second * seconds)

    def crowded(self, chain: Chain, now: float) -> bool:
        """Whether more peers train than fit into one group, so that not every peer can have a seat.

        Presence alone proves nothing, as keys cost nothing. So the newest group has to be full, too (docs/adr/0042).
        """
        return self.presence.population(now) > PEERS_PER_GROUP_MAX and is_full(chain.newest_roster())

    def has_ticket(self, chain: Chain, peer: PeerId, now: float) -> bool:
        """Whether this peer may ask for a seat when not every peer can have one (`coordinator.core.tickets`)."""
        if not self.crowded(chain, now):  # always so in a small swarm; saves the hash below
            return True
        known = chain.newest_roster() | chain.active_set()
        return has_ticket(chain.beacon(), peer, known, self.presence.population(now))

    def note(self, event: Seen, now: float) -> None:
        """Record our learner's progress, the networks from which peers call, or whether their calls reach us."""
        if isinstance(event, OriginsSeen):
            self.origins = event.networks
            return
        if isinstance(event, ReachSeen):
            self.dialable = event.dialable
            return
        self.steps, self.steps_per_second, self.steps_seen = event.steps, event.steps_per_second, now

    def note_unable(self, now: float) -> None:
        """Stay out of new groups for a while, as a vote of ours could not be written to disk."""
        self.unable_until = now + UNABLE_DEADLINES * self.pace.round_seconds

    def sign_statement(self, kind: str, key: RoundKey, group: bytes, body: Wire) -> Statement:
        """Sign a statement about (fragment, version)."""
        context = Context(run_id=self.rules.run_id, kind=kind, fragment=key.fragment, version=key.version, group=group)
        return make_statement(self.signer, context, body)

    def check_signed(self, statement: Statement) -> None:
        """Raise PeerError unless its sender signed it: an unsigned statement proves nothing about the sender."""
        if not statement.verify(self.verifier):
            raise PeerError("is not signed by its sender")

    def to_all(self, peers: tuple[PeerId, ...], message: Message, payload: bytes | None = None) -> list[Send]:
        """Return one Send per peer, including ourselves if listed (the engine delivers that one at once)."""
        return [Send(peer, message, payload) for peer in peers]

    def networks_of(self, peer: PeerId, named: Set[bytes]) -> frozenset[bytes]:
        """Return the networks of a peer: the ones that it names and the one from which we see it call."""
        return frozenset(named) | ({self.origins[peer]} if peer in self.origins else frozenset())

    def is_dialable(self, peer: PeerId) -> bool:
        """Whether others can call this peer, by its own word."""
        return self.dialable if peer == self.me else self.presence.is_dialable(peer)

    def witnesses_needed(self, active: frozenset[PeerId], now: float) -> bool:
        """Whether the live learners of the active set are too few for a full certificate (docs/adr/0004)."""
        learners = sum(self.contributes if peer == self.me else self.presence.is_training(peer, now) for peer in active)
        return not more_than_share(learners, len(active), self.pace.min_share)

    def step_seconds(self, peers: Set[PeerId]) -> float:
        """Return the seconds per inner step of the slowest of these peers: ours measured, the others' by their word."""
        ours = 1 / self.steps_per_second if self.me in peers and self.steps_per_second > 0 else 0.0
        return max(ours, self.presence.step_seconds(peers))

    def grace_seconds(self) -> float:
        """Return how long a leader waits for more peers once the quorum has joined."""
        rate = self.steps_per_second
        step_seconds = 1 / rate if rate > 0 else self.pace.round_seconds / self.pace.steps_per_version
        return min(grace_seconds(self.pace, step_seconds, self.estimates), GRACE_SHARE_MAX * self.pace.round_seconds)

    def deadline_seconds(self, voids: int) -> float:
        """Return the length of an attempt after `voids` void groups."""
        return self.pace.round_seconds * 2.0 ** min(voids, DEADLINE_DOUBLINGS_MAX)

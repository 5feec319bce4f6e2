"""The certificate chains of a run, followed as a newcomer follows them, and their sums.

A protocol core that takes part in nothing decides which peers to ask and which branch to believe. The observer tells
it that it holds every state, so that it goes on to the next version at once. It has no key to sign with.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import CHAIN_KEPT, Chain
from coordinator.core.actions import FetchState, Send, Tell
from coordinator.core.context import Core
from coordinator.core.events import Event, PresenceSeen, Received, StateFetched, Tick
from coordinator.engine.engine import Engine
from coordinator.engine.fragment import FragmentMachine
from coordinator.run.manifest import Manifest
from coordinator.trust.bans import Ban
from coordinator.views.credit import Credit
from coordinator.views.network_view import DAYS_KEPT
from coordinator.wire.messages import AskChainNote, AskEvidenceNote, ChainNote, ConvictionsNote, EvidenceNote
from coordinator.wire.presence import Presence
from dht.identity import PeerId, Verifier
from dht.units import DAY_SECONDS
from peer.rounds.tensor_proofs import TensorProofChecker
from peer.storage.anchors import layouts_of
from peer.sync.introduction import empty_chains

FRESH_MAX = 4  # up to so many versions of a fragment at once are news; more are history that we catch up with
TOLD_MAX = 64
LEADERS_KEPT = 1024

Question = tuple[PeerId, AskChainNote | AskEvidenceNote]


@dataclass(frozen=True, slots=True)
class SeenCertificate:
    """A certificate of a chain. `unix_seconds` is when we first saw it; if `fresh`, it was made shortly before."""

    certificate: Certificate
    leader: PeerId | None
    unix_seconds: float
    fresh: bool


@dataclass(slots=True)
class SeenCredit(Credit):
    """Credit with the times at which its certificates were first seen, and its growth from version to version."""

    last_unix_seconds: dict[str, float] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)  # tokens in version 1, 2, … of all fragments, as far as seen
    days: dict[str, Counter[int]] = field(default_factory=dict)  # tokens × fragments by day (UTC, since 1970)

    def see(self, seen: SeenCertificate, sign: int) -> None:
        """Count a certificate (`sign` 1), or take it back (−1) because its branch was left."""
        outcome = seen.certificate.outcome
        self.count(outcome, sign)
        self.levels += [0] * (outcome.version - len(self.levels))
        self.levels[outcome.version - 1] += sign * outcome.tokens
        for one in outcome.included():
            self.last_unix_seconds[one.peer] = max(seen.unix_seconds, self.last_unix_seconds.get(one.peer, 0.0))
        if seen.fresh:
            self._count_day(int(seen.unix_seconds // DAY_SECONDS), outcome.credited(), sign)

    def _count_day(self, day: int, credited: Mapping[str, int], sign: int) -> None:
        """Count a fresh certificate for its day; the day of an older one is not known."""
        for peer, tokens in credited.items():
            own = self.days.setdefault(peer, Counter())
            own[day] += sign * tokens
            for old in [one for one in own if one <= day - DAYS_KEPT]:
                del own[old]

    def days_of(self, contributor: str) -> tuple[tuple[int, int], ...]:
        """Return the certified tokens of a contributor by day, oldest first."""
        days = sorted(self.days.get(contributor, Counter()).items())
        return tuple((day, tokens // self.fragments) for day, tokens in days if tokens > 0)


class _NoKey:
    """A signer for an observer, which must never sign."""

    def __init__(self, peer_id: PeerId) -> None:
        self.peer_id = peer_id

    def sign(self, data: bytes) -> bytes:
        raise RuntimeError("an observer signs nothing")


class Chains:
    """The verified chains of all fragments, which grow by other peers' answers."""

    def __init__(self, manifest: Manifest, me: PeerId, verifier: Verifier, begin: Sequence[Chain] = ()) -> None:
        """`begin` holds the chains up to the waypoint of an invite; without it they begin at version 0."""
        core = Core(manifest, _NoKey(me), verifier, bytes, 0.0, contributes=False, draining=True)
        core.proof_checker = TensorProofChecker(layouts_of(manifest.config), manifest.config.outer)
        chains = list(begin) or empty_chains(manifest, core.rules)
        self._engine = Engine(core, chains, [chain.version for chain in chains], now=0.0)
        self._before = tuple(chain.version for chain in chains)  # earlier versions are not counted
        self.seen: list[deque[SeenCertificate]] = [deque(maxlen=CHAIN_KEPT) for _ in chains]
        self.credit = SeenCredit(len(chains))
        self.told: deque[Tell] = deque(maxlen=TOLD_MAX)  # events of the core that nobody has taken yet
        self._questions: list[Question] = []
        self._leaders: dict[bytes, tuple[PeerId, ...]] = {}  # of the version after this one, in order

    def set_clock(self, unix_offset_seconds: float) -> None:
        """Set Unix time minus monotonic time from now on; earlier dates stay as they are."""
        self._engine.core.unix_offset_seconds = unix_offset_seconds

    def unix_seconds(self, now: float) -> float:
        return self._engine.core.unix_seconds(now)

    @property
    def out_of_reach(self) -> bool:
        """Whether a peer is too far ahead for us to follow, and no peer has helped since."""
        return bool(self._engine.fork_choice.ahead)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(machine.chain.version for machine in self._engine.machines)

    @property
    def whole(self) -> bool:
        """Whether the chains begin at the first version, so that their sums are the run's."""
        return not any(self._before)

    def digest_of(self, fragment: int, version: int) -> bytes | None:
        """Return the digest of the certified version with this number; None if it is not known."""
        return self._engine.machines[fragment].chain.digest_at(version) if fragment < len(self.seen) else None

    def leader(self, fragment: int, version: int, attempt: int) -> PeerId | None:
        """Return the leader of this attempt at a version; None if the chain does not reach to it, or not any more."""
        chain = self._engine.machines[fragment].chain
        if not chain.first_version < version <= chain.version + 1:
            return None
        base = chain.digest_at(version - 1) or b""
        if base not in self._leaders:
            if len(self._leaders) >= LEADERS_KEPT:
                self._leaders.clear()
            self._leaders[base] = chain.truncated(version - 1).leaders()
        return self._leaders[base][attempt % len(self._leaders[base])]

    def see(self, peer: PeerId, presence: Presence, now: float) -> None:
        """Note the versions in a peer's presence, and queue questions for those that we lack."""
        self._handle(PresenceSeen(peer, presence), now)

    def hear(self, sender: PeerId, note: ChainNote, now: float) -> list[SeenCertificate]:
        """Take in a peer's answer; returns the certificates that it added to our chains."""
        self._handle(Received(sender, note), now)
        return [one for machine in self._engine.machines for one in self._follow(machine, now)]

    def take(self, sender: PeerId, note: ConvictionsNote | EvidenceNote, now: float) -> None:
        """Take in a peer's list of bans, or the evidence that we asked it for."""
        self._handle(Received(sender, note), now)

    def on_probation(self, peer: PeerId) -> bool:
        """Whether this key's work has no weight yet in some fragment."""
        return any(machine.chain.on_probation({peer}) for machine in self._engine.machines)

    @property
    def bans(self) -> dict[PeerId, Ban]:
        """The banned keys, each with evidence that was verified here."""
        return self._engine.core.bans.held

    def tick(self, now: float) -> None:
        self._handle(Tick(), now)

    def take_questions(self) -> list[Question]:
        """Return the questions queued since the last call, each with the peer to ask."""
        questions, self._questions = self._questions, []
        return questions

    def _handle(self, event: Event, now: float) -> None:
        events = [event]
        while events:
            for action in self._engine.handle(events.pop(), now):
                if isinstance(action, Send) and isinstance(action.message, AskChainNote | AskEvidenceNote):
                    self._questions.append((action.to, action.message))
                elif isinstance(action, FetchState):
                    events.append(StateFetched(action.certificate.fragment, action.certificate.digest))
                elif isinstance(action, Tell):
                    self.told.append(action)

    def _follow(self, machine: FragmentMachine, now: float) -> list[SeenCertificate]:
        """Count certificates new in a chain, and take back those on a branch that was left; returns the new ones."""
        chain, seen = machine.chain, self.seen[machine.index]
        while seen and chain.digest_at(seen[-1].certificate.version) != seen[-1].certificate.digest:
            self.credit.see(seen.pop(), -1)
        known = seen[-1].certificate.version if seen else self._before[machine.index]
        certificates = chain.after(known, chain.version - known)
        fresh, unix_seconds = len(certificates) <= FRESH_MAX, self.unix_seconds(now)
        added = [
            SeenCertificate(one, self.leader(one.fragment, one.version, one.outcome.attempt), unix_seconds, fresh)
            for one in certificates
        ]
        for one in added:
            self.credit.see(one, 1)
        seen.extend(added)
        return added

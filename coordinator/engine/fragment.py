"""One fragment at one peer: its chain, our state of it, and our rounds at the newest version.

Sans-IO. `VersionRound` makes the next version with others; `StateSync` fetches the state of versions that others made;
`VoteLocks` remember our votes at every base. This machine moves the chain on when a certificate appears, no matter
who made it, and changes to another branch (design §6.2 step 10, §8).
"""

from __future__ import annotations

from coordinator.cells.cell_rounds import CellRounds
from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Discard, Tell, VersionCertified
from coordinator.core.context import Core
from coordinator.core.own_work import OwnWork
from coordinator.core.state_sync import FETCH_RETRY_SECONDS, StateSync
from coordinator.core.vote_locks import VoteLocks
from coordinator.engine.gossip import announce, spread
from coordinator.engine.transition import Transition, transition
from coordinator.engine.version_round import VersionRound
from coordinator.group.eligibility import Hindrance, eligibility
from coordinator.group.pacing import Tempo
from coordinator.round.attempt import Attempt
from coordinator.round.joint_reduction import JointReduction
from coordinator.round.roles import may_send
from dht.identity import PeerId
from dht.statement import Statement


class FragmentMachine:
    """The protocol of one fragment at one peer. `chain` is the newest that we know; `held_chain` ends at our state."""

    def __init__(self, core: Core, chain: Chain, held: int, now: float) -> None:
        """`held` is the version whose state we have; `chain`, whose certificates are verified, may know newer ones."""
        self.core = core
        self.chain = chain
        self.state_sync = StateSync(core)
        self.vote_locks = VoteLocks(core)
        self.own_work = OwnWork(core.me)
        self.tempo = Tempo(core, certified_at=now, counted_from=now)
        self.finished: Attempt | None = None  # our attempt that was certified last, until the auditor takes it
        if held != chain.version:
            self.state_sync.fall_behind(chain.truncated(held), now)
            self.state_sync.again_at = now
        self.rounds = self._new_rounds()

    def _new_rounds(self) -> VersionRound:
        cells = CellRounds(self.core, self.chain, self.state_sync, self.own_work)
        return VersionRound(self.core, self.chain, self.state_sync, self.vote_locks, self.own_work, self.tempo, cells)

    @property
    def cells(self) -> CellRounds:
        """Our cells at the newest version, through which peers without a seat contribute."""
        return self.rounds.cells

    # -- our situation

    @property
    def index(self) -> int:
        return self.chain.fragment

    @property
    def held_chain(self) -> Chain:
        """The chain up to the version whose state we have; another branch than `chain` after a change of lineage."""
        return self.chain if self.state_sync.behind is None else self.state_sync.behind

    @property
    def held(self) -> int:
        """The version whose state we have."""
        return self.held_chain.version

    @property
    def ready(self) -> bool:
        """Whether we hold the newest version and so may take part in its successor."""
        return self.state_sync.complete

    @property
    def busy(self) -> bool:
        """Whether a round of ours is in flight."""
        return self.rounds.busy or self.cells.busy

    @property
    def attempt(self) -> Attempt | None:
        """Our attempt in the group that we are in, if any."""
        return self.rounds.attempt

    @property
    def joining_since(self) -> float | None:
        """The time since which we have been asking into a group or a cell; None while we do not ask."""
        return self.rounds.joining.since if self.cells.since is None else self.cells.since

    def find(self, roster_id: bytes) -> JointReduction | None:
        """Return our attempt or cell with this roster, if any."""
        return self.rounds.find(roster_id) or self.cells.find(roster_id)

    def bound(self, now: float) -> bool:
        """Whether a vote forbids us to enter a group."""
        return self.rounds.bound(now)

    # -- events

    def eligibility(self, now: float) -> tuple[bool, Hindrance | None]:
        """Return whether we may ask into a group, or first into a cell; and the reason if not."""
        if self.cells.may_open(now):
            return True, None
        return (False, Hindrance.BUSY) if self.cells.busy else eligibility(self.rounds.situation(now), now)

    def open(self, now: float) -> list[Action]:
        """Take part in making the next version; the caller has checked that we may."""
        return self.cells.open(now) if self.cells.may_open(now) else self.rounds.open(now)

    def receive(self, statement: Statement, root: bytes | None, now: float, shown_by: PeerId) -> list[Action]:
        """Take a statement about our newest version; raises PeerError if it is false or out of place."""
        self.core.check_signed(statement)  # the only way into groups and cells, which do not check it again
        if statement.context.kind == "cell" or self.cells.find_by_group(statement.context.group) is not None:
            return self.cells.receive(statement, root, now)
        return self.rounds.receive(statement, root, now, shown_by)

    def lose(self, peer: PeerId, now: float) -> list[Action]:
        """Stop waiting for a peer that the transport lost."""
        return self.rounds.lose(peer, now) + self.cells.lose(peer, now)

    # -- time

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions = self.rounds.tick(now) + self.cells.tick(now)
        if self.state_sync.again_at is not None and now >= self.state_sync.again_at:
            actions += self.state_sync.fetch(self.chain, now)
        return actions

    def next_deadline(self, now: float) -> list[float]:
        """Return the times at which there is something to do."""
        again_at = self.state_sync.again_at
        times = self.rounds.next_deadline(now)
        times += [] if self.cells.is_quiet else self.cells.next_deadline(now)
        return times + ([] if again_at is None else [again_at])

    # -- versions

    def settle(self, now: float) -> list[Action]:
        """Move on if one of our groups has made a certificate; leave a group that can make none."""
        if self.rounds.attempt is None and not self.rounds.past and self.cells.is_quiet:
            return []  # true of most fragments at most events
        for attempt in self.rounds.all():
            certificate = attempt.certificate
            if certificate is not None and not self.rounds.shall_hold(certificate, now):
                led = attempt.group.leader == self.core.me
                told = announce(self.core, self.chain, certificate, now) if led else []
                return self.learn(certificate, now) + told + spread(self.core, self.chain, certificate, now)
        return self.rounds.leave_pointless(now) + self._follow_cells(now)

    def _follow_cells(self, now: float) -> list[Action]:
        """Go on with our cells; when they are over, ask into the group."""
        actions = self.cells.settle(now)
        into_group = self.cells.hand_over() and eligibility(self.rounds.situation(now), now)[0]
        return actions + (self.rounds.open(now) if into_group else [])

    def learn(self, certificate: Certificate, now: float) -> list[Action]:
        """Follow the next version; the caller, or our own ballot, has verified its certificate."""
        if self.rounds.shall_hold(certificate, now):
            return []
        return self.advance(certificate, now) + self.fetch_if_behind(now)

    def advance(self, certificate: Certificate, now: float) -> list[Action]:
        """Move the chain on without fetching the state: if more versions follow, only the last one's is needed."""
        return self.apply(transition(self.rounds, certificate, now), now)

    def apply(self, step: Transition, now: float) -> list[Action]:
        """Apply all changes that a new version brings."""
        certificate, adopt, state_sync = step.certificate, step.adopt, self.state_sync
        self.rounds.leave(now)
        self.finished, self.core.estimates = step.attempt, step.estimates
        self.tempo.counted_from = step.counted_from
        if not certificate.outcome.minor:
            self.tempo.certified_at = now
        state_sync.upstream, state_sync.downstream = step.upstream, step.downstream
        if not step.held:
            state_sync.fall_behind(self.held_chain, now)  # this chain, before it moves on
        self.chain.append(certificate)
        actions: list[Action] = [VersionCertified(certificate), _tell_certified(self.core, certificate)]
        if adopt is not None and step.held:
            if adopt.snapshot is not None:
                self.own_work.count(adopt.snapshot.roster_id, certificate.outcome)
            actions += [adopt, *state_sync.notify_downstream(certificate)]
        elif adopt is not None and adopt.snapshot is not None:
            state_sync.unadopted = adopt
        state_sync.included_unseen |= step.unseen
        return actions + self._begin_anew()

    def _begin_anew(self) -> list[Action]:
        """Discard the rounds at the base that we leave, except a snapshot whose version's state is still missing."""
        kept = None if self.state_sync.unadopted is None else self.state_sync.unadopted.snapshot
        keys = [one.group.key for one in self.rounds.all()] + [one.group.key for one in self.cells.cells()]
        self.rounds = self._new_rounds()
        return [Discard(key) for key in keys if key != kept]

    # -- catching up, changing branches

    def fetch_if_behind(self, now: float) -> list[Action]:
        """Fetch the newest state if we lack it; if there is an upstream peer, wait until it says that it has it."""
        if self.ready:
            return []
        if self.state_sync.upstream is None:
            return self.state_sync.fetch(self.chain, now)
        self.state_sync.await_upstream(now)
        return []

    def fetch_later(self, now: float) -> None:
        """Put off fetching the newest state for a moment, as more versions are about to follow."""
        self.state_sync.again_at = None if self.ready else now + FETCH_RETRY_SECONDS

    def fetched(self, digest: bytes, now: float) -> list[Action]:
        """Adopt a version's state that has arrived; ignore one older than the newest version."""
        if self.ready or digest != self.chain.digest:
            return []
        returned, unadopted = None, self.state_sync.unadopted
        if unadopted is not None and unadopted.snapshot is not None:
            self.own_work.count(unadopted.snapshot.roster_id, unadopted.certificate.outcome)
        elif self.state_sync.included_unseen:
            self.own_work.count_all(self.core.steps_now(now))
        elif self.core.carries:
            returned = self.own_work.take_back(self.chain)
        state_sync, newest = self.state_sync, self.chain.certificates[-1]
        return state_sync.fetched(self.chain, returned) + state_sync.notify_downstream(newest)

    def fetch_failed(self, digest: bytes, now: float) -> list[Action]:
        """Note that nobody gave the state; after a while its version counts as absent, and we go on without it."""
        interval = self.tempo.interval_seconds(self.chain, now)
        if self.ready or digest != self.chain.digest or not self.state_sync.failed(self.chain, interval, now):
            return []
        version = self.chain.version
        self.rounds.leave(now)
        self.chain, actions = self.state_sync.abandon_missing(now)
        return [*actions, Tell("version_unserved", self.index, version, {"held": self.held}), *self._begin_anew()]

    def begin_at(self, chain: Chain, now: float) -> None:
        """Go on from a chain that the invite vouches for, whatever version we hold (design §8). Call before any event.

        Nobody can tell which of our work from before a restart led to it, so we contribute none of that again.
        """
        self.state_sync.fall_behind(self.chain, now)
        self.state_sync.floor = chain.truncated(chain.version)
        self.state_sync.included_unseen = self.held > 0
        self.chain = chain
        self.fetch_later(now)
        self.rounds = self._new_rounds()

    def switch(self, rival: Chain, fork: int, now: float) -> list[Action]:
        """Leave our branch, from version `fork` on, for a rival one (design §8); its state has to be fetched."""
        self.rounds.leave(now)
        self.state_sync.upstream = None
        self.state_sync.fall_behind(self.chain, now)
        unadopted = self.state_sync.unadopted
        dropped = unadopted is not None and unadopted.certificate.version > fork
        actions = self.state_sync.drop_unadopted() if dropped else []
        if not self.own_work.change_over([one.outcome for one in rival.after(fork, rival.version - fork)]):
            self.state_sync.included_unseen = True
        self.chain = rival
        self.tempo.counted_from, self.tempo.certified_at = now, now
        return actions + self._begin_anew()


def roots_needed(machine: FragmentMachine) -> frozenset[bytes]:
    """Return the roots of the tensor bytes that a fragment's work in flight needs."""
    exchanges = [cell.exchange for cell in machine.cells.cells()]
    exchanges += [] if machine.attempt is None else [machine.attempt.exchange]
    return frozenset(root for exchange in exchanges for root in exchange.roots)


def is_in_part(machine: FragmentMachine, statement: Statement) -> bool:
    """Whether the sender's role in a group or cell of ours allows this statement."""
    attempts = [*machine.rounds.all(), *([] if machine.finished is None else [machine.finished])]
    members: list[JointReduction] = [*attempts, *machine.cells.cells()]
    return any(may_send(one.exchange, statement) for one in members)


def _tell_certified(core: Core, certificate: Certificate) -> Tell:
    """Tell people of a certificate: its group, tokens and steps, and our grace window with its estimates."""
    outcome, estimates = certificate.outcome, core.estimates
    details: dict[str, object] = {
        "group": len(outcome.included()),
        "roster": len(outcome.roster),
        "tokens": outcome.tokens,
        "minor": outcome.minor,
        "steps": max((one.steps for one in outcome.included()), default=0),
        "grace_seconds": core.grace_seconds(),
        "quorum_seconds": estimates.quorum_seconds,
        "sync_seconds": estimates.sync_seconds,
    }
    return Tell("certified", outcome.fragment, certificate.version, details)

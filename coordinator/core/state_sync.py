"""Which certified state we really hold, and how we come by the one that we should hold (design §8, catch-up).

A chain is followed as soon as its certificates are known: a peer that knows of a version must not help to make
another one. The bytes follow later, or never. A version whose bytes nobody serves is treated as not existing.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain, beacon_order
from coordinator.core.actions import (
    Action,
    Adopt,
    Discard,
    FetchState,
    IncludedUnseen,
    NotIncluded,
    Returned,
    Send,
    Tell,
)
from coordinator.core.context import Core
from coordinator.wire.messages import CertificateNote
from dht.identity import PeerId
from dht.statement import digest_of

FETCH_RETRY_SECONDS = 1.0
LACKING_INTERVALS = 4.0  # expected ones until a version that nobody serves does not exist: longer than minor ones wait
UNSERVED_INTERVALS = 3.0  # for how long it does not exist then
UNSERVED_INTERVALS_MAX = 48.0  # of the latter, which doubles each time that it is not served again
UNSERVED_MAX = 16
UPSTREAM_DEADLINES = 0.5  # of a round: how long to wait for the upstream
HOLDERS_MAX = 16
STRANGERS_MAX = HOLDERS_MAX // 2  # of these; who only publishes presence leaves room for who signed


@dataclass(frozen=True, slots=True)
class Unserved:
    """A version that nobody served does not exist until then; for so many expected intervals."""

    until: float
    intervals: float


@dataclass(slots=True)
class StateSync:
    """One fragment's state. `behind` is the chain up to the state that we hold while we lack the newest one, else None.

    `floor` is where the invite had us begin, until we hold a state from there on: we never go back to what lies before.
    """

    core: Core
    behind: Chain | None = None
    floor: Chain | None = None
    unadopted: Adopt | None = None  # a version with our work in it whose state has still to come
    included_unseen: bool = False  # a version that we lack has work of ours of which we have no snapshot
    again_at: float | None = None
    lacking_since: float = 0.0  # the newest one
    upstream: PeerId | None = None  # the leader of the cell that brought our work, who tells us when it has the state
    downstream: tuple[PeerId, ...] = ()  # whom we tell
    unserved: dict[bytes, Unserved] = field(default_factory=dict)
    tries: int = 0

    @property
    def complete(self) -> bool:
        """Whether we hold the newest state."""
        return self.behind is None

    def fall_behind(self, held: Chain, now: float) -> None:
        """The chain moves on without us; `held` is a chain that ends where our state does."""
        self.lacking_since = now
        if self.behind is None:
            self.behind = held.truncated(held.version)  # a copy: the chain itself grows

    def fetch(self, chain: Chain, now: float) -> list[Action]:
        """Get the newest state: from its signers, then from others who say that they have it.

        Everyone asks in another order, and each time, so that not all ask the same holder, nor always the same in vain.
        """
        self.again_at, self.tries = None, self.tries + 1
        newest = chain.certificates[-1]
        live = {peer for peer in newest.voters - {self.core.me} if self.core.presence.is_live(peer, now)}
        seed = digest_of(b"muster-holders", self.core.me.encode(), newest.digest, self.tries.to_bytes(8, "big"))
        upstream = () if self.upstream is None else (self.upstream,)
        holders = dict.fromkeys((*upstream, *beacon_order(seed, live)))
        if len(holders) < HOLDERS_MAX:  # of a full group more than that are there: all others need not be looked at
            holders |= dict.fromkeys(self._other_holders(seed, live, chain, now))
        return [FetchState(newest, tuple(holders)[:HOLDERS_MAX])]

    def _other_holders(self, seed: bytes, asked: Set[PeerId], chain: Chain, now: float) -> tuple[PeerId, ...]:
        """Who says to have it, and signers that seem to be away."""
        presence, signers = self.core.presence, chain.certificates[-1].voters - {self.core.me}
        others = presence.live(now) - signers
        claimants = {peer for peer in others if presence.says_head(peer, chain.fragment, chain.digest)}
        known, strangers = claimants & chain.known(), beacon_order(seed, claimants - chain.known())
        return (
            *beacon_order(seed, known),
            *strangers[:STRANGERS_MAX],
            *beacon_order(seed, signers - asked),
            *strangers[STRANGERS_MAX:],
        )

    def await_upstream(self, now: float) -> None:
        """The peer upstream tells us when it has the newest state; if it does not, we ask others."""
        self.again_at = now + UPSTREAM_DEADLINES * self.core.pace.round_seconds

    def pass_on(self, certificate: Certificate) -> list[Action]:
        """We hold the newest version: tell those whose work went through us that they can have it here, once."""
        downstream, self.downstream = self.downstream, ()
        note = CertificateNote(certificate=certificate)
        return [Send(peer, note) for peer in downstream]

    def offered(self, sender: PeerId, digest: bytes, chain: Chain, now: float) -> list[Action]:
        """Fetch the newest version from the peer upstream once it says that it has it."""
        awaited = not self.complete and sender == self.upstream and digest == chain.digest
        return self.fetch(chain, now) if awaited else []

    def fetched(self, chain: Chain, returned: Returned | None = None) -> list[Action]:
        """The newest state is here: adopt it, with the snapshot of ours that an earlier version holds, if any does.

        `returned` is our work in the branch of the state that we held, where this one is of another.
        """
        newest, included = chain.certificates[-1], self.unadopted
        ours = IncludedUnseen() if self.included_unseen else returned or NotIncluded()
        self.unserved.pop(newest.digest, None)
        self._caught_up()
        if included is None:
            return [Adopt(newest, applied=None, ours=ours), *_told(newest, returned)]
        if included.certificate.digest != newest.digest:  # what was frozen there may have moved since
            included = replace(included, certificate=newest, frozen=(False,) * len(included.frozen))
        return [included, *([] if included.snapshot is None else [Discard(included.snapshot)])]

    def failed(self, chain: Chain, interval_seconds: float, now: float) -> bool:
        """Nobody gave the newest state. True once it is to be treated as not existing; else we try again.

        Each time for longer: who falls back at different times would else teach each other the lost version for ever.
        """
        self.again_at = now + FETCH_RETRY_SECONDS
        if self.floor is not None and chain.digest == self.floor.digest:
            return False
        if now < self.lacking_since + LACKING_INTERVALS * interval_seconds:
            return False
        before = self.unserved.pop(chain.digest, None)
        intervals = UNSERVED_INTERVALS if before is None else min(2 * before.intervals, UNSERVED_INTERVALS_MAX)
        self.unserved[chain.digest] = Unserved(now + intervals * interval_seconds, intervals)
        while len(self.unserved) > UNSERVED_MAX:
            del self.unserved[next(iter(self.unserved))]
        return True

    def is_unserved(self, version: bytes, now: float) -> bool:
        """Whether this version does not exist at the moment."""
        absence = self.unserved.get(version)
        return absence is not None and now < absence.until

    def turn_back(self, now: float) -> tuple[Chain, list[Action]]:
        """Forget what we lack; returns the chain of what we hold, or the one with which we began."""
        held, dropped = self.behind, self.drop_unadopted()
        assert held is not None
        if self.floor is not None:
            self.lacking_since = now
            return self.floor.truncated(self.floor.version), dropped
        self._caught_up()
        return held, dropped

    def drop_unadopted(self) -> list[Action]:
        """The version with our work in it is not ours any more; the work itself is not lost, it counts again."""
        dropped, self.unadopted = self.unadopted, None
        return [] if dropped is None or dropped.snapshot is None else [Discard(dropped.snapshot)]

    def _caught_up(self) -> None:
        self.behind, self.floor, self.unadopted, self.included_unseen, self.again_at = None, None, None, False, None


def _told(newest: Certificate, returned: Returned | None) -> list[Action]:
    if returned is None:
        return []
    details: dict[str, object] = {"steps": returned.steps, "tokens": returned.tokens}
    return [Tell("branch_carried", newest.fragment, newest.version, details)]

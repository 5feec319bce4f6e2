"""The certified state that we really hold, and how we fetch the newest one (design §8, catch-up).

We follow a chain as soon as we know its certificates: a peer that knows of a version must not help to make
another one. The state's bytes follow later, or never. A version whose bytes nobody serves is treated as not existing.
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
LACKING_INTERVALS = 4.0  # expected intervals until an unserved version counts as absent: longer than a minor one waits
UNSERVED_INTERVALS = 3.0  # for how many intervals it counts as absent the first time
UNSERVED_INTERVALS_MAX = 48.0  # upper limit of these, which double each time that nobody serves it again
UNSERVED_MAX = 16
UPSTREAM_DEADLINES = 0.5  # how long to wait for the upstream peer, in deadlines of a round
HOLDERS_MAX = 16
STRANGERS_MAX = HOLDERS_MAX // 2  # holders known by presence only, so that signers keep a place in the list


@dataclass(frozen=True, slots=True)
class Unserved:
    """A version that nobody served: it counts as absent until `until`, for `intervals` expected intervals."""

    until: float
    intervals: float


@dataclass(slots=True)
class StateSync:
    """Sync of one fragment's state.

    `behind` is the chain up to the state that we hold while we lack the newest one, else None.
    `floor` is the chain with which the invite had us begin, until we hold a state from there on. We never go back
    to a version before it.
    """

    core: Core
    behind: Chain | None = None
    floor: Chain | None = None
    unadopted: Adopt | None = None  # a version with our work in it whose state is still missing here
    included_unseen: bool = False  # whether a version that we lack holds work of ours without a snapshot here
    again_at: float | None = None
    lacking_since: float = 0.0  # when we began to lack the newest state
    upstream: PeerId | None = None  # the leader of the cell that passed on our work; it tells us when it has the state
    downstream: tuple[PeerId, ...] = ()  # peers that we tell when we have the state
    unserved: dict[bytes, Unserved] = field(default_factory=dict)
    tries: int = 0

    @property
    def complete(self) -> bool:
        """Whether we hold the newest state."""
        return self.behind is None

    def fall_behind(self, held: Chain, now: float) -> None:
        """Note that the chain moves on without us; `held` is a chain that ends at our state."""
        self.lacking_since = now
        if self.behind is None:
            self.behind = held.truncated(held.version)  # a copy: the chain itself grows

    def fetch(self, chain: Chain, now: float) -> list[Action]:
        """Fetch the newest state: from its signers first, then from other peers that say they have it.

        The order differs between peers and between tries. So peers do not all ask the same holder, and no peer keeps
        asking a holder that does not answer.
        """
        self.again_at, self.tries = None, self.tries + 1
        newest = chain.certificates[-1]
        live = {peer for peer in newest.voters - {self.core.me} if self.core.presence.is_live(peer, now)}
        seed = digest_of(b"muster-holders", self.core.me.encode(), newest.digest, self.tries.to_bytes(8, "big"))
        upstream = () if self.upstream is None else (self.upstream,)
        holders = dict.fromkeys((*upstream, *beacon_order(seed, live)))
        if len(holders) < HOLDERS_MAX:  # a full group has more signers than that: then we need no others
            holders |= dict.fromkeys(self._other_holders(seed, live, chain, now))
        return [FetchState(newest, tuple(holders)[:HOLDERS_MAX])]

    def _other_holders(self, seed: bytes, asked: Set[PeerId], chain: Chain, now: float) -> tuple[PeerId, ...]:
        """Return other peers that say they have the state, and signers that seem to be away."""
        presence, signers = self.core.presence, chain.certificates[-1].voters - {self.core.me}
        others = presence.live(now) - signers
        claimants = {peer for peer in others if presence.reports_head(peer, chain.fragment, chain.digest)}
        known, strangers = claimants & chain.known(), beacon_order(seed, claimants - chain.known())
        return (
            *beacon_order(seed, known),
            *strangers[:STRANGERS_MAX],
            *beacon_order(seed, signers - asked),
            *strangers[STRANGERS_MAX:],
        )

    def await_upstream(self, now: float) -> None:
        """Wait for the upstream peer to report the newest state; ask others if it does not report in time."""
        self.again_at = now + UPSTREAM_DEADLINES * self.core.pace.round_seconds

    def notify_downstream(self, certificate: Certificate) -> list[Action]:
        """Tell the downstream peers, once, that we hold the newest version and they can fetch it here."""
        downstream, self.downstream = self.downstream, ()
        note = CertificateNote(certificate=certificate)
        return [Send(peer, note) for peer in downstream]

    def offered(self, sender: PeerId, digest: bytes, chain: Chain, now: float) -> list[Action]:
        """Fetch the newest version from the upstream peer once it says that it has it."""
        awaited = not self.complete and sender == self.upstream and digest == chain.digest
        return self.fetch(chain, now) if awaited else []

    def fetched(self, chain: Chain, returned: Returned | None = None) -> list[Action]:
        """Adopt the newest state, now that it is here, with our snapshot that an earlier version holds, if any.

        `returned` is our work in the branch that we leave, if the newest state belongs to another branch.
        """
        newest, included = chain.certificates[-1], self.unadopted
        ours = IncludedUnseen() if self.included_unseen else returned or NotIncluded()
        self.unserved.pop(newest.digest, None)
        self._caught_up()
        if included is None:
            return [Adopt(newest, applied=None, ours=ours), *_told(newest, returned)]
        if included.certificate.digest != newest.digest:  # partitions frozen in that version may have changed since
            included = replace(included, certificate=newest, frozen=(False,) * len(included.frozen))
        return [included, *([] if included.snapshot is None else [Discard(included.snapshot)])]

    def failed(self, chain: Chain, interval_seconds: float, now: float) -> bool:
        """Note that nobody gave the newest state; return True once to treat it as not existing, else we try again.

        It counts as absent for longer each time. Else peers that give it up at different times would tell each other
        of the lost version for ever.
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
        """Whether this version counts as not existing at the moment."""
        absence = self.unserved.get(version)
        return absence is not None and now < absence.until

    def abandon_missing(self, now: float) -> tuple[Chain, list[Action]]:
        """Give up the missing version; return the chain of the state that we hold, or the one with which we began."""
        held, dropped = self.behind, self.drop_unadopted()
        assert held is not None
        if self.floor is not None:
            self.lacking_since = now
            return self.floor.truncated(self.floor.version), dropped
        self._caught_up()
        return held, dropped

    def drop_unadopted(self) -> list[Action]:
        """Drop the unadopted version with our work in it; the work is not lost, we contribute it again."""
        dropped, self.unadopted = self.unadopted, None
        return [] if dropped is None or dropped.snapshot is None else [Discard(dropped.snapshot)]

    def _caught_up(self) -> None:
        self.behind, self.floor, self.unadopted, self.included_unseen, self.again_at = None, None, None, False, None


def _told(newest: Certificate, returned: Returned | None) -> list[Action]:
    if returned is None:
        return []
    details: dict[str, object] = {"steps": returned.steps, "tokens": returned.tokens}
    return [Tell("branch_carried", newest.fragment, newest.version, details)]

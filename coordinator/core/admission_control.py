"""Admission of peers by their passes, the organiser's orders and the uses of invites (docs/adr/0061).

A decision depends only on the manifest, the pass, the orders that this peer has seen and the certificates of
fragment 0. So peers with the same knowledge admit the same peers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from coordinator.chain.used_invites import INVITED_MAX, NONE_USED, UsedInvites, count_of, surplus, tag_of, uses_of
from coordinator.run.admission_spec import AdmissionSpec
from coordinator.trust.orders import Orders
from dht.admission import USES_MAX, AdmissionAuthority, ProvenPass, read_pass
from dht.errors import PeerError
from dht.identity import PeerId
from dht.refusal import Refusal

PASSES_KEPT = 4096
CLOCK_TOLERANCE_SECONDS = 30  # allowed clock error when a peer checks whether an invite has expired, as for joins


@dataclass(slots=True)
class AdmissionControl:
    """The admission rules of one peer. If `spec` asks for no passes, every peer may come unless it was removed."""

    spec: AdmissionSpec | None
    authority: AdmissionAuthority
    keyholders: Set[PeerId]  # the organiser and the founders, whose keys are their passes
    orders: Orders
    own: bytes = b""  # our own pass
    used_invites: UsedInvites = NONE_USED  # as in the newest certificate of fragment 0
    shown: OrderedDict[PeerId, tuple[bytes, ProvenPass]] = field(default_factory=OrderedDict)

    @property
    def is_closed(self) -> bool:
        """Whether the run asks for passes."""
        return self.spec is not None and self.spec.asks_for_passes

    def refusal(self, peer: PeerId, shown: bytes, unix_seconds: float) -> Refusal | None:
        """Return why a peer with this pass may not take part; None if it may."""
        if self.orders.is_revoked(peer):
            return Refusal.REVOKED
        if not self.is_closed or peer in self.keyholders:
            return None
        if not shown:  # a cheap answer: crowds of outsiders cause this question all the time
            return Refusal.NO_PASS
        try:
            proven = self.read(peer, shown)
        except PeerError:
            return Refusal.FALSE_PASS
        return self._standing(peer, proven, unix_seconds)

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        """Whether this was ever a valid pass of the peer; all peers agree on this, whatever orders they have seen."""
        if not self.is_closed or peer in self.keyholders:
            return True
        try:
            self.read(peer, shown)
        except PeerError:
            return False
        return True

    def seat_refusal(self, peer: PeerId, shown: bytes, contributes: bool, unix_seconds: float) -> Refusal | None:
        """Return why the peer may not have a seat in a group; None if it may."""
        refused = self.refusal(peer, shown, unix_seconds)
        if refused is not None or not self.is_closed or peer in self.keyholders:
            return refused
        role = self.read(peer, shown).grant.role
        if role == "observer":
            return Refusal.ONLY_OBSERVES
        return Refusal.ONLY_VOTES if contributes and role == "witness" else None

    def read(self, peer: PeerId, shown: bytes) -> ProvenPass:
        """Return the content of this pass, checked once and then remembered. Raises PeerError if it is not valid."""
        held = self.shown.get(peer)
        if held is None or held[0] != shown:
            held = self.shown[peer] = shown, read_pass(shown, peer, self.authority)
            while len(self.shown) > PASSES_KEPT:
                self.shown.popitem(last=False)
        self.shown.move_to_end(peer)
        return held[1]

    def knows(self, peer: PeerId, unix_seconds: float) -> bool:
        """Whether this peer may take part, by the pass that it has shown before."""
        return self.refusal(peer, self.shown[peer][0] if peer in self.shown else b"", unix_seconds) is None

    def may_have_states(self, peer: PeerId) -> bool:
        """Whether a peer that may take part may also fetch the model."""
        if not self.is_closed or peer in self.keyholders or self.spec is None or self.spec.observers_get_states:
            return True
        held = self.shown.get(peer)
        return held is not None and held[1].grant.role != "observer"

    def grounds(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Return the keys for which an order could refuse this peer."""
        held = self.shown.get(peer)
        return (peer,) if held is None else (peer, PeerId(held[1].grant.key), held[1].issuer)

    def surplus(self, order: Sequence[PeerId], passes: Mapping[PeerId, bytes]) -> frozenset[PeerId]:
        """Return the peers of `order` that exceed the uses of their invites, counted in that order."""
        if not self.is_closed:
            return frozenset()
        limited = {}
        for peer, shown in passes.items():
            if peer in self.keyholders or self._is_let_in(peer):
                continue
            grant = self.read(peer, shown).grant
            if grant.is_limited:
                limited[peer] = PeerId(grant.key), grant.uses or USES_MAX
        return surplus(self.used_invites, order, limited)

    def _standing(self, peer: PeerId, proven: ProvenPass, unix_seconds: float) -> Refusal | None:
        if self._is_let_in(peer):
            return None
        if proven.invite is not None and self.spec is not None and self.spec.mode == "list":
            return Refusal.NOT_NAMED
        if any(self.orders.is_revoked(key) for key in (PeerId(proven.grant.key), proven.issuer)):
            return Refusal.WITHDRAWN
        grant = proven.grant
        used = uses_of(self.used_invites, PeerId(grant.key))
        if not grant.is_limited or tag_of(peer) in used:
            return None
        if (grant.expires_unix_seconds or unix_seconds) < unix_seconds - CLOCK_TOLERANCE_SECONDS:
            return Refusal.EXPIRED
        if grant.uses is not None and len(used) >= grant.uses:
            return Refusal.USED_UP
        return Refusal.FULL if count_of(self.used_invites) >= INVITED_MAX else None

    def _is_let_in(self, peer: PeerId) -> bool:
        """Whether an order admits the peer by name: this outweighs the state of its invite."""
        verdict = self.orders.verdict(peer)
        return verdict is not None and not verdict.order.revoked

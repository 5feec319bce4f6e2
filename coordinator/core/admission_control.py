"""Who may take part: what a pass says, what was ordered about it, and how often its invite was used (docs/adr/0061).

Everything here follows from the manifest, the pass, the orders that this peer has seen and the certificates of
fragment 0. So peers that have seen the same let in the same.
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
CLOCK_TOLERANCE_SECONDS = 30  # of a peer that checks whether an invite has expired, as for joins


@dataclass(slots=True)
class AdmissionControl:
    """One peer's door. Without a `spec` that asks for passes, all may come that were not shown out."""

    spec: AdmissionSpec | None
    authority: AdmissionAuthority
    keyholders: Set[PeerId]  # the organiser and the founders, whose keys are their passes
    orders: Orders
    own: bytes = b""  # our pass
    used_invites: UsedInvites = NONE_USED  # as the newest certificate of fragment 0 has them
    unix_offset_seconds: float = 0.0  # unix time = monotonic time + this
    shown: OrderedDict[PeerId, tuple[bytes, ProvenPass]] = field(default_factory=OrderedDict)

    @property
    def is_closed(self) -> bool:
        """Whether passes are asked for."""
        return self.spec is not None and self.spec.asks_for_passes

    def refusal(self, peer: PeerId, shown: bytes, now: float) -> Refusal | None:
        """Why a peer that shows this has no part; None if it may come in."""
        if self.orders.is_revoked(peer):
            return Refusal.SHOWN_OUT
        if not self.is_closed or peer in self.keyholders:
            return None
        if not shown:  # of a crowd of outsiders this is asked all the time
            return Refusal.NO_PASS
        try:
            welcome = self.read(peer, shown)
        except PeerError:
            return Refusal.FALSE_PASS
        return self._standing(peer, welcome, now + self.unix_offset_seconds)

    def proves(self, peer: PeerId, shown: bytes) -> bool:
        """Whether this was a pass of the peer's at any time: what all peers say alike, whatever they have heard."""
        if not self.is_closed or peer in self.keyholders:
            return True
        try:
            self.read(peer, shown)
        except PeerError:
            return False
        return True

    def seat_refusal(self, peer: PeerId, shown: bytes, contributes: bool, now: float) -> Refusal | None:
        """Why it has no seat in a group."""
        refused = self.refusal(peer, shown, now)
        if refused is not None or not self.is_closed or peer in self.keyholders:
            return refused
        role = self.read(peer, shown).grant.role
        if role == "observer":
            return Refusal.ONLY_LOOKS
        return Refusal.ONLY_VOTES if contributes and role == "witness" else None

    def read(self, peer: PeerId, shown: bytes) -> ProvenPass:
        """What this pass says; raises PeerError. One that was found good is not looked at again."""
        held = self.shown.get(peer)
        if held is None or held[0] != shown:
            held = self.shown[peer] = shown, read_pass(shown, peer, self.authority)
            while len(self.shown) > PASSES_KEPT:
                self.shown.popitem(last=False)
        self.shown.move_to_end(peer)
        return held[1]

    def knows(self, peer: PeerId, now: float) -> bool:
        """Whether this peer may come in, by what it has shown before."""
        return self.refusal(peer, self.shown[peer][0] if peer in self.shown else b"", now) is None

    def may_have_states(self, peer: PeerId) -> bool:
        """Whether a peer that may come in may also fetch the model."""
        if not self.is_closed or peer in self.keyholders or self.spec is None or self.spec.observers_get_states:
            return True
        held = self.shown.get(peer)
        return held is not None and held[1].grant.role != "observer"

    def grounds(self, peer: PeerId) -> tuple[PeerId, ...]:
        """Keys about which an order may be why this peer is not let in."""
        held = self.shown.get(peer)
        return (peer,) if held is None else (peer, PeerId(held[1].grant.key), held[1].issuer)

    def surplus(self, order: Sequence[PeerId], passes: Mapping[PeerId, bytes]) -> frozenset[PeerId]:
        """Who of these, taken in order, is more than its invite lets in."""
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

    def _standing(self, peer: PeerId, welcome: ProvenPass, unix_seconds: float) -> Refusal | None:
        if self._is_let_in(peer):
            return None
        if welcome.invite is not None and self.spec is not None and self.spec.mode == "list":
            return Refusal.NOT_NAMED
        if any(self.orders.is_revoked(key) for key in (PeerId(welcome.grant.key), welcome.issuer)):
            return Refusal.WITHDRAWN
        grant = welcome.grant
        used = uses_of(self.used_invites, PeerId(grant.key))
        if not grant.is_limited or tag_of(peer) in used:
            return None
        if (grant.expires_unix_seconds or unix_seconds) < unix_seconds - CLOCK_TOLERANCE_SECONDS:
            return Refusal.EXPIRED
        if grant.uses is not None and len(used) >= grant.uses:
            return Refusal.USED_UP
        return Refusal.FULL if count_of(self.used_invites) >= INVITED_MAX else None

    def _is_let_in(self, peer: PeerId) -> bool:
        """Whether an order names it: that goes before whatever has become of its invite."""
        verdict = self.orders.verdict(peer)
        return verdict is not None and not verdict.order.revoked

"""The members of the run, and the orders of this peer's owner if it is the organiser (docs/adr/0060)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from coordinator.chain.chain import active_sets
from coordinator.core.context import Core
from coordinator.core.events import Received
from coordinator.engine.engine import Engine
from coordinator.trust.orders import ORDERS_EACH_MAX, REASON_CHARACTERS_MAX, Order
from coordinator.views.members import MemberList, Role, RunMember
from coordinator.wire.messages import EvidenceNote
from coordinator.wire.presence import NAME_CHARACTERS_MAX
from dht.errors import UsageError
from dht.identity import PeerId
from dht.refusal import ADVICE, Refusal
from peer.machine.text import plain
from peer.node.invitations import ENDING_CHARACTERS_MIN, Invitations
from peer.node.organiser_rights import OrganiserRights
from peer.rounds.driver import RoundDriver

REFUSED_SECONDS = 30.0
UNSEEN_SECONDS = 300.0  # where versions that we lack yet may admit us; a peer that is cut off never receives them
OF_VERSIONS = (Refusal.EXPIRED, Refusal.FULL)


class Membership:
    """The members of a run, and the organiser's orders about them.

    `own_name` is the name by which others see this peer.
    """

    def __init__(
        self, driver: RoundDriver, organiser_rights: OrganiserRights, invitations: Invitations, own_name: str
    ) -> None:
        self._driver = driver
        self._organiser_rights = organiser_rights
        self._invitations = invitations
        self._own_name = plain(own_name, NAME_CHARACTERS_MAX)
        self._refused_since = math.inf
        self._began_unix_seconds = driver.engine.core.unix_seconds(driver.now)

    @property
    def exclusion_reason(self) -> str:
        """The reason why this peer is excluded from the run, as a sentence; empty while it is not."""
        core = self._driver.engine.core
        ban = core.bans.held.get(core.me)
        if ban is None:
            return self._turned_away(core)
        remembered = ban.guilt.issued is not None and ban.unix_seconds < self._began_unix_seconds
        if remembered and not self._lasts(REFUSED_SECONDS):  # it may have been readmitted while it was away
            return ""
        return f"this peer was {ban.guilt.reason}; ask the run's organiser, whose key is {core.rules.organiser}"

    def _turned_away(self, core: Core) -> str:
        """Return why this peer gets no seat, after a while in that state: what admits it may still be on its way."""
        unix_seconds = core.unix_seconds(self._driver.now)
        refused = core.admission.seat_refusal(core.me, core.admission.own, core.contributes, unix_seconds)
        if refused is None:
            self._refused_since = math.inf
            return ""
        return ADVICE[refused] if self._lasts(UNSEEN_SECONDS if refused in OF_VERSIONS else REFUSED_SECONDS) else ""

    def _lasts(self, seconds: float) -> bool:
        """Whether this peer has been refused for this long, as far as it knows."""
        now = self._driver.now
        self._refused_since = min(self._refused_since, now)
        return now >= self._refused_since + seconds

    def order(self, subject: str, reason: str, everybody: bool = False, *, revoked: bool) -> PeerId:
        """Exclude this key, or admit it again, and return it; raises UsageError if that is not ours to decide.

        If an invite is revoked, its peers stay, each named in an order of its own, unless `everybody` is to go.
        """
        engine = self._driver.engine
        rules, bans = engine.core.rules, engine.core.bans
        self._organiser_rights.require()
        invite = self._invitations.find(subject.removeprefix("…"))
        if invite is not None:
            admitted = self._admitted_by(invite) if revoked else ()  # named first, so that none leaves
            self._give([*((one, reason * everybody, everybody) for one in admitted), (invite, reason, revoked)])
            return invite
        peer = self._named(subject)
        if peer == rules.organiser:
            raise UsageError("an organiser cannot remove itself; end the run, or leave it with: muster stop")
        if revoked and peer in bans and bans.held[peer].guilt.issued is None:
            raise UsageError(f"{peer} has lost its place already: it {bans.held[peer].guilt.reason}")
        admission, unix_seconds = engine.core.admission, engine.core.unix_seconds(self._driver.now)
        turned_away = peer in admission.shown and not admission.knows(peer, unix_seconds)
        if not revoked and not turned_away and peer not in bans.orders.revoked():
            raise UsageError(f"{peer} was not removed, nor has its invite lapsed, so it cannot be readmitted")
        self._give([(peer, reason, revoked)])
        return peer

    def is_invite(self, key: PeerId) -> bool:
        """Whether this key is of an invite that was made here, and not of a peer."""
        return key in self._invitations.own_keys()

    def open_invite_of(self, peer: PeerId) -> PeerId | None:
        """Return the invite with which a peer came, while it admits others, or the same owner under another key."""
        core = self._driver.engine.core
        held = core.admission.shown.get(peer)
        invite = None if held is None else held[1].invite
        return None if invite is None or core.bans.orders.is_revoked(invite) else invite

    def deputise(self, subject: str) -> tuple[PeerId, str]:
        """Return a peer and the signature that makes it a co-organiser; raises UsageError if we may not give it."""
        peer = self._named(subject)
        return peer, self._organiser_rights.appoint(peer)

    def _give(self, wanted: Sequence[tuple[PeerId, str, bool]]) -> None:
        """Give orders about these keys; raises UsageError if one of them has no effect.

        Also raises before the first order if they would displace other orders of ours, and so readmit excluded peers.
        """
        core = self._driver.engine.core
        taken = len({*core.bans.orders.latest.get(core.me, ()), *(subject for subject, _, _ in wanted)})
        if taken > ORDERS_EACH_MAX:
            raise UsageError(
                f"this takes {taken} orders of yours, and peers keep {ORDERS_EACH_MAX} of each; have a co-organiser "
                "give it, whom the organiser names with: muster deputise"
            )
        for subject, reason, revoked in wanted:
            self._order(subject, reason, revoked)
        for subject, _, revoked in wanted:
            verdict = core.bans.orders.verdict(subject)
            if verdict is None or verdict.order.revoked != revoked:
                raise UsageError(
                    f"the order about {subject} does not count: the organiser has said otherwise about that key or "
                    "about you, or has more co-organisers than peers listen to; ask the organiser"
                )

    def _order(self, subject: PeerId, reason: str, revoked: bool) -> None:
        core = self._driver.engine.core
        known = core.bans.orders.get(core.me, subject)
        now = int(1000 * core.unix_seconds(self._driver.now))
        serial = max(now, 0 if known is None else known.order.serial + 1)
        order = Order(subject=subject, revoked=revoked, serial=serial, reason=plain(reason, REASON_CHARACTERS_MAX))
        self._driver.feed(Received(core.me, EvidenceNote(evidence=self._organiser_rights.order(order).to_wire())))

    def _admitted_by(self, invite: PeerId) -> list[PeerId]:
        """Return the peers of this invite that are not excluded, and have certified work in the run or are here.

        Returns none if the invite names its peer, because the order itself is about that peer.
        """
        core, engine = self._driver.engine.core, self._driver.engine
        here = {*core.presence.sightings, *_active(engine)}
        shown = core.admission.shown.items()
        came = [peer for peer, (_, proven) in shown if proven.invite == invite]
        return [peer for peer in came if peer in here and peer not in core.bans]

    def view(self, tokens: Mapping[str, int]) -> MemberList:
        """Return all members; `tokens` are certified tokens by peer. Peers that only looked at the run are none."""
        engine, now = self._driver.engine, self._driver.now
        deputies = self._deputies(engine.core)
        keys = sorted(self._members() | tokens.keys() | deputies)
        found = [self._member(PeerId(peer), tokens.get(peer, 0), deputies, now) for peer in keys]
        found.sort(key=lambda one: (bool(one.out), not one.live, -one.tokens))
        return MemberList(
            run_id=engine.core.rules.run_id.hex(), members=tuple(found), invites=self._invitations.views()
        )

    def _members(self) -> set[str]:
        """Return the peers that are or were in the run, are excluded, or are admitted by name; `view` adds others."""
        engine = self._driver.engine
        core, rules = engine.core, engine.core.rules
        named = {peer for peer, (_, proven) in core.admission.shown.items() if proven.invite is None}
        outside = self._invitations.own_keys()  # an order may be about an invite, too
        known = {*core.presence.sightings, *core.bans.held, *named} - outside
        return {core.me, rules.organiser, *rules.founders, *_active(engine), *known}

    def _member(self, peer: PeerId, tokens: int, deputies: Set[PeerId], now: float) -> RunMember:
        core = self._driver.engine.core
        sighting, ban = core.presence.sightings.get(peer), core.bans.held.get(peer)
        live = core.presence.is_live(peer, now)
        name = "" if sighting is None else plain(sighting.presence.name)
        return RunMember(
            peer_id=peer,
            name=self._own_name if peer == core.me else name,  # we keep no presence of our own
            role=_role(self._driver.engine, peer, tokens, deputies),
            live=peer == core.me or live,
            since_unix_seconds=core.unix_seconds(sighting.since_seconds) if sighting is not None and live else None,
            tokens=tokens,
            out="" if ban is None else plain(ban.guilt.reason),
            invite=_invite_of(core, peer),
        )

    def _deputies(self, core: Core) -> frozenset[PeerId]:
        """Return the co-organisers that have given an order or invite, and ourselves if we are one."""
        given = {*core.bans.orders.latest, *(proven.issuer for _, proven in core.admission.shown.values())}
        own = {core.me} if self._organiser_rights.may_give() else set()
        return frozenset((given | own) - {core.rules.organiser})

    def _named(self, text: str) -> PeerId:
        """Return the peer with this id, or with an id of this ending among those that we know."""
        ending = text.removeprefix("…")
        if len(ending) < ENDING_CHARACTERS_MIN:
            raise UsageError(f"name it by its id, or by the last {ENDING_CHARACTERS_MIN} letters of it at least")
        core = self._driver.engine.core
        keys = self._members() | self._deputies(core) | core.admission.shown.keys()
        known = sorted(peer for peer in keys if peer.endswith(ending))
        if len(known) > 1:
            raise UsageError(f"{len(known)} peers have an id that ends in {ending}; give more of it")
        if not known:
            raise UsageError(f"nobody here knows a peer whose id ends in {ending}; see: muster members")
        return PeerId(known[0])


def _invite_of(core: Core, peer: PeerId) -> str:
    held = core.admission.shown.get(peer)
    return "" if held is None or held[1].invite is None else held[1].invite


def _active(engine: Engine) -> frozenset[PeerId]:
    return active_sets(machine.chain for machine in engine.machines)


def _role(engine: Engine, peer: PeerId, tokens: int, deputies: Set[PeerId]) -> Role:
    rules = engine.core.rules
    if peer in deputies:
        return "co-organiser"
    if peer == rules.organiser:
        return "organiser"
    if peer in rules.founders:
        return "founder"
    held = engine.core.admission.shown.get(peer)
    if held is not None and held[1].grant.role == "observer":
        return "observer"
    return "trainer" if tokens or peer in _active(engine) else "newcomer"

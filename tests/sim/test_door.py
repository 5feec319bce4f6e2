"""Outsiders, expired, overused and withdrawn invites: no honest peer is shut out, and versions go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.chain.used_invites import tag_of
from coordinator.core.events import Received
from coordinator.run.admission_spec import AdmissionMode, AdmissionSpec
from coordinator.run.manifest import PaceSpec
from coordinator.simulator.keys import KeyedSigner, virtual_peer_id
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.trust.evidence import order_evidence
from coordinator.trust.orders import Order, delegate, sign_order
from coordinator.wire.messages import EvidenceNote
from dht.admission import Grant, Pass, Role, admit, sign_grant
from dht.identity import PeerId
from dht.statement import Statement
from tests.sim.worlds import INTERVAL_SECONDS, LINKS, PACE, STEPS_PER_SECOND, machine, run_until, version

ORGANISER = 0
UNIX_SECONDS = 1e9  # unix time at virtual time 0
VERSIONS = 6


class Gathering:
    """A run of one founder, the organiser, and others that join later."""

    def __init__(self, others: int, *, seed: int = 1, mode: AdmissionMode = "invite", pace: PaceSpec = PACE) -> None:
        rates = [STEPS_PER_SECOND] * (others + 1)
        self.world = World(pace, rates, [ORGANISER], seed, LINKS, admission=AdmissionSpec(mode=mode))
        self.organiser, *self.others = self.world.peers
        self.invites = 0

    @property
    def run_id(self) -> bytes:
        return self.world.manifest.run_id

    def invite(
        self,
        *peers: VirtualPeer,
        uses: int | None = None,
        expires: float | None = None,
        role: Role = "trainer",
        by: VirtualPeer | None = None,
    ) -> PeerId:
        """Give these peers passes of one invite; return its key."""
        self.invites += 1
        signer, issuer = self.organiser.signer, by or self.organiser
        assert isinstance(signer, KeyedSigner)
        key = KeyedSigner(virtual_peer_id(1000 + self.invites, self.world.seed), signer.secret)
        unix_seconds = None if expires is None else int(UNIX_SECONDS + self.world.clock.now + expires)
        grant = Grant(key=key.peer_id, role=role, uses=uses, expires_unix_seconds=unix_seconds)
        delegation = None if by is None else self.delegation(by).signature
        word = sign_grant(issuer.signer, self.run_id, grant, delegation)
        for peer in peers:
            peer.own_pass = admit(key, self.run_id, word, peer.me).to_wire()
        return key.peer_id

    def name(self, *peers: VirtualPeer) -> None:
        """Give these peers passes that name them."""
        for peer in peers:
            peer.own_pass = Pass(word=sign_grant(self.organiser.signer, self.run_id, Grant(key=peer.me))).to_wire()

    def delegation(self, deputy: VirtualPeer) -> Statement:
        return delegate(self.organiser.signer, self.run_id, deputy.me)

    def order(self, about: PeerId, *, revoked: bool, serial: int, by: VirtualPeer | None = None) -> None:
        """Issue an order, as a peer does when its owner types it."""
        issuer = by or self.organiser
        word = b"" if by is None else self.delegation(by).to_wire()
        signed = sign_order(issuer.signer, self.run_id, Order(subject=about, revoked=revoked, serial=serial))
        issuer.handle(Received(issuer.me, EvidenceNote(evidence=order_evidence(signed, word).to_wire())))

    def start(self) -> None:
        for peer in self.world.peers:
            peer.start()

    def go_on(self, peers: Sequence[VirtualPeer], versions: int = VERSIONS) -> None:
        """Run until all these peers have `versions` more versions, and check that they are the same."""
        target = max(map(version, peers)) + versions
        assert run_until(self.world, lambda: all(version(one) >= target for one in peers), 60 * INTERVAL_SECONDS)
        assert len({machine(peer).chain.digest_at(target) for peer in peers}) == 1

    def seated(self, since: int = 0) -> set[PeerId]:
        """Return the members of all rosters after that version."""
        chain = machine(self.organiser).chain
        return {peer for one in chain.after(since, 1000) for peer in one.outcome.roster_ids}


def ids(*peers: VirtualPeer) -> set[PeerId]:
    return {peer.me for peer in peers}


@pytest.mark.parametrize("seed", range(2))
def test_outsiders_have_no_seat_and_keep_nobody_from_theirs(seed: int) -> None:
    run = Gathering(7, seed=seed)
    friends, outsiders = run.others[:3], run.others[3:]
    run.invite(*friends)
    outsiders[0].own_pass = friends[0].own_pass  # a stolen pass
    forged = Gathering(7, seed=seed + 100)
    forged.invite(outsiders[1])
    run.start()
    run.go_on([run.organiser, *friends])
    assert run.seated() == ids(run.organiser, *friends)
    assert all(version(one) == 0 for one in outsiders)


def test_an_invite_without_limits_leaves_no_trace_in_certificates() -> None:
    run = Gathering(3)
    run.invite(*run.others)
    run.start()
    run.go_on(run.world.peers)
    assert machine(run.organiser).chain.certificates[-1].outcome.used_invites is None


@pytest.mark.parametrize(("fragments", "seed"), [(1, 0), (1, 1), (2, 2)])
def test_an_invite_lets_in_as_many_as_it_says(seed: int, fragments: int) -> None:
    """The first ones get in: all peers count them alike, from certificates."""
    run = Gathering(7, seed=seed, pace=PACE.model_copy(update={"fragments": fragments}))
    friends, crowd = run.others[:2], run.others[2:]
    run.invite(*friends)
    invite = run.invite(*crowd, uses=3)
    run.start()
    run.go_on([run.organiser, *friends])
    used_invites = machine(run.organiser).chain.used_invites()
    (uses,) = used_invites
    assert uses.invite == tag_of(invite)
    assert len(uses.peers) == 3
    inside = {peer.me for peer in crowd if tag_of(peer.me) in uses.peers}
    before = version(run.organiser)
    staying = [run.organiser, *friends, *(peer for peer in crowd if peer.me in inside)]
    run.go_on(staying)
    assert run.seated(before) == ids(*staying)
    for fragment in range(fragments):
        later = machine(run.organiser, fragment).chain.certificates[-1].outcome.roster_ids
        assert later == ids(*staying)


def test_a_peer_that_came_before_its_invite_expired_stays() -> None:
    run = Gathering(4)
    early, late = run.others[:3], run.others[3]
    run.invite(*early, late, expires=8 * INTERVAL_SECONDS)
    run.organiser.start()
    for peer in early:
        peer.start()
    run.go_on([run.organiser, *early])
    run.world.run(20 * INTERVAL_SECONDS)  # beyond the expiry and the tolerance of clocks
    late.start()
    run.go_on([run.organiser, *early])
    assert run.seated(version(run.organiser) - 5) == ids(run.organiser, *early)
    run.world.crash(early[0])
    run.go_on([run.organiser, *early[1:]])
    early[0].start()
    run.go_on([run.organiser, *early])
    assert early[0].me in run.seated(version(run.organiser) - 2)


def test_an_observer_has_no_seat() -> None:
    run = Gathering(3)
    run.invite(*run.others[:2])
    run.invite(run.others[2], role="observer")
    run.start()
    run.go_on([run.organiser, *run.others[:2]])
    assert run.seated() == ids(run.organiser, *run.others[:2])


def test_a_list_lets_in_whom_it_names_only() -> None:
    run = Gathering(4, mode="list")
    run.name(*run.others[:2])
    run.invite(*run.others[2:])
    run.start()
    run.go_on([run.organiser, *run.others[:2]])
    assert run.seated() == ids(run.organiser, *run.others[:2])


@pytest.mark.parametrize("seed", range(2))
def test_a_withdrawn_invite_takes_its_peers_along_but_for_those_that_are_named(seed: int) -> None:
    """It is withdrawn in the middle of a round."""
    run = Gathering(6, seed=seed)
    friends, used_invites = run.others[:3], run.others[3:]
    run.invite(*friends)
    invite = run.invite(*used_invites)
    run.start()
    run.go_on(run.world.peers)
    run.world.run(0.37 * INTERVAL_SECONDS)
    run.order(invite, revoked=True, serial=1)
    run.order(used_invites[0].me, revoked=False, serial=2)
    staying = [run.organiser, *friends, used_invites[0]]
    before = version(run.organiser)
    run.go_on(staying)
    assert run.seated(before + 3) == ids(*staying)


def test_a_peer_that_was_away_hears_that_its_invite_was_withdrawn() -> None:
    run = Gathering(5)
    friends, guest = run.others[:4], run.others[4]
    run.invite(*friends)
    invite = run.invite(guest)
    run.start()
    run.go_on(run.world.peers)
    run.world.crash(guest)
    run.world.crash(friends[3])
    run.order(invite, revoked=True, serial=1)
    run.go_on([run.organiser, *friends[:3]])
    before = version(run.organiser)
    guest.start()
    friends[3].start()
    run.go_on([run.organiser, *friends])
    assert run.seated(before) == ids(run.organiser, *friends)


def test_invites_of_a_co_organiser_end_with_its_office() -> None:
    run = Gathering(6)
    deputy, friends, used_invites = run.others[0], run.others[1:4], run.others[4:]
    run.invite(deputy, *friends)
    run.invite(*used_invites, by=deputy)
    run.start()
    run.go_on(run.world.peers)
    run.order(deputy.me, revoked=True, serial=1)
    run.order(used_invites[0].me, revoked=False, serial=2)  # so the organiser keeps this peer
    staying = [run.organiser, *friends, used_invites[0]]
    before = version(run.organiser)
    run.go_on(staying)
    assert run.seated(before + 3) == ids(*staying)


def test_both_sides_of_a_partition_withdraw_invites_and_count_uses() -> None:
    run = Gathering(7)
    deputy = run.others[3]
    near, far, limited = run.others[:3], run.others[3:5], run.others[5:]
    run.invite(*near, deputy, run.others[4])
    invite = run.invite(*limited, uses=1)  # one on each side
    for peer in (run.organiser, *near, *far):
        peer.start()
    run.go_on([run.organiser, *near, *far], versions=4)
    run.world.network.sides = {peer.me: int(peer.me in ids(*far, limited[1])) for peer in run.world.peers}
    for peer in limited:
        peer.start()
    run.world.run(12 * INTERVAL_SECONDS)
    run.order(near[0].me, revoked=True, serial=1)
    run.order(far[1].me, revoked=True, serial=1, by=deputy)
    run.world.run(6 * INTERVAL_SECONDS)
    run.world.network.heal()
    honest = [run.organiser, *near[1:], deputy]
    run.go_on(honest, versions=16)
    (uses,) = machine(run.organiser).chain.used_invites()
    assert uses.invite == tag_of(invite)
    assert len(uses.peers) == 1
    inside = {peer.me for peer in limited if tag_of(peer.me) in uses.peers}
    assert run.seated(version(run.organiser) - 4) == ids(*honest) | inside

"""The members of a run, and the organiser's commands about them, over real engines in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.core.events import Received
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.trust.evidence import order_evidence
from coordinator.trust.orders import Order, delegate, sign_order
from coordinator.wire.messages import EvidenceNote
from dht.errors import UsageError
from dht.identity import PeerId
from peer.node.invitations import Invitations
from peer.node.membership import REFUSED_SECONDS, Membership
from peer.node.organiser_rights import OrganiserRights
from tests.sim.worlds import INTERVAL_SECONDS, run_to_version, swarm

NOWHERE = Path("/nonexistent")  # a folder without an invite
FEW = 8


class Driven:
    """A fake driver over a virtual peer, with only what the tests need."""

    def __init__(self, world: World, peer: VirtualPeer) -> None:
        self._world, self.feed = world, peer.handle
        self.engine = peer.engine

    @property
    def now(self) -> float:
        return self._world.clock.now


@pytest.fixture
def world() -> World:
    made = swarm(5, founders=range(3))
    run_to_version(made, 2)
    return made


def membership(world: World, number: int = 0, folder: Path = NOWHERE) -> Membership:
    peer = world.peers[number]
    driver: Any = Driven(world, peer)
    assert peer.engine is not None
    organiser_rights = OrganiserRights(peer.engine.core, peer.signer, folder)
    invitations = Invitations(peer.engine.core, organiser_rights, folder, None)
    return Membership(driver, organiser_rights, invitations, f"peer\x1b {number}")


def test_a_peer_is_shown_out_by_the_end_of_its_id_and_let_in_again(world: World) -> None:
    ours, ann, hers = membership(world), world.peers[4], membership(world, 4)
    assert ours.order(ann.me[-8:], "sends\x1b[2J nonsense", revoked=True) == ann.me
    world.run(2 * INTERVAL_SECONDS)
    why = "removed by the organiser: sends [2J nonsense"
    assert hers.exclusion_reason.startswith(f"this peer was {why}; ask")
    last = ours.view({}).members[-1]
    assert (last.peer_id, last.out) == (ann.me, why)
    assert ours.order(f"…{ann.me[-8:]}", "", revoked=False) == ann.me
    ours.order(ann.me, "", revoked=True)  # within the same millisecond, and still the later order
    ours.order(ann.me, "", revoked=False)
    world.run(2 * INTERVAL_SECONDS)
    assert hers.exclusion_reason == ""
    assert all(one.out == "" for one in ours.view({}).members)


def test_a_removed_peer_has_time_to_hear_that_it_was_readmitted(world: World) -> None:
    ours, ann = membership(world), world.peers[4]
    ours.order(ann.me, "", revoked=True)
    world.run(INTERVAL_SECONDS)
    later, as_ever = membership(world, 4), membership(world, 4)  # as after a restart
    assert (later.exclusion_reason, as_ever.exclusion_reason) == ("", "")
    world.run(REFUSED_SECONDS)
    assert as_ever.exclusion_reason.startswith("this peer was removed by the organiser; ask")
    ours.order(ann.me, "", revoked=False)
    world.run(INTERVAL_SECONDS)
    assert later.exclusion_reason == ""


def test_roles_and_credit_are_told(world: World) -> None:
    peers = [peer.me for peer in world.peers]
    found = {one.peer_id: one for one in membership(world).view({peers[1]: 7}).members}
    assert set(found) == set(peers)
    assert [found[peer].role for peer in peers[:3]] == ["organiser", "founder", "founder"]
    assert {found[peer].role for peer in peers[3:]} == {"trainer"}
    assert found[peers[1]].tokens == 7
    assert {one.since_unix_seconds for one in found.values() if one.peer_id != peers[0]} != {None}
    assert all(one.live for one in found.values())


def test_a_peer_lists_itself_by_the_name_that_its_owner_gave_it(world: World) -> None:
    """It keeps no presence of its own, where the names of the others come from."""
    for number in (0, 4):
        names = {one.peer_id: one.name for one in membership(world, number).view({}).members}
        assert {peer: name for peer, name in names.items() if name} == {world.peers[number].me: f"peer  {number}"}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of orders from each issuer to `FEW`."""
    for module in ("coordinator.trust.orders", "peer.node.membership"):
        monkeypatch.setattr(f"{module}.ORDERS_EACH_MAX", FEW)


def fill(world: World, number: int, count: int, serial: int) -> None:
    """Let a peer that may give orders send so many of them to everybody."""
    issuer, run_id = world.peers[number], world.manifest.run_id
    word = b"" if number == 0 else delegate(world.peers[0].signer, run_id, issuer.me).to_wire()
    for one in range(count):
        about = Order(subject=f"{one:064x}".replace("0", "z"), revoked=True, serial=serial + one)
        note = EvidenceNote(evidence=order_evidence(sign_order(issuer.signer, run_id, about), word).to_wire())
        issuer.handle(Received(issuer.me, note))


@pytest.mark.usefixtures("few")
def test_an_order_that_would_push_out_another_is_refused_and_nothing_done(world: World) -> None:
    fill(world, 0, FEW, serial=1)
    ours, engine = membership(world), world.peers[0].engine
    with pytest.raises(UsageError, match=f"takes {FEW + 1} orders of yours.*muster deputise"):
        ours.order(world.peers[4].me, "", revoked=True)
    assert engine is not None
    assert not engine.core.bans.orders.is_revoked(world.peers[4].me)
    assert engine.core.bans.orders.is_revoked(PeerId("z" * 64))


@pytest.mark.usefixtures("few")
def test_a_co_organiser_takes_no_room_of_the_organiser(world: World) -> None:
    fill(world, 1, FEW + 10, serial=1)
    world.run(2 * INTERVAL_SECONDS)
    membership(world).order(world.peers[4].me, "", revoked=True)
    world.run(2 * INTERVAL_SECONDS)
    assert all(peer.engine.core.bans.orders.is_revoked(world.peers[4].me) for peer in world.peers if peer.engine)


@pytest.mark.parametrize(
    ("by", "subject", "revoked", "words"),
    [
        (1, 4, True, "only the organiser"),
        (0, 0, True, "cannot remove itself"),
        (0, 4, False, "was not removed"),
        (0, "abc", True, "at least"),
        (0, "nobody-ends-so", True, "nobody here knows"),
    ],
)
def test_an_impossible_order_is_refused_in_words(
    world: World, by: int, subject: int | str, revoked: bool, words: str
) -> None:
    name = subject if isinstance(subject, str) else world.peers[subject].me
    with pytest.raises(UsageError, match=words):
        membership(world, by).order(name, "", revoked=revoked)
    assert all(not peer.engine.core.bans.held for peer in world.peers if peer.engine is not None)

"""Who is in the run, and what its organiser's owner may type, over real engines in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from dht.errors import UsageError
from peer.node.invitations import Invitations
from peer.node.membership import Membership
from peer.node.organiser_rights import OrganiserRights
from tests.sim.worlds import INTERVAL_SECONDS, run_to_version, swarm

NOWHERE = Path("/nonexistent")  # in which no invite lies


class Driven:
    """As much of a driver as is needed, over a virtual peer."""

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
    return Membership(driver, organiser_rights, Invitations(peer.engine.core, organiser_rights, folder, None))


def test_a_peer_is_shown_out_by_the_end_of_its_id_and_let_in_again(world: World) -> None:
    ours, ann = membership(world), world.peers[4]
    assert ours.order(ann.me[-8:], "sends\x1b[2J nonsense", revoked=True) == ann.me
    world.run(2 * INTERVAL_SECONDS)
    why = "shown out by the organiser: sends [2J nonsense"
    assert membership(world, 4).shown_out.startswith(f"this peer was {why}; ask")
    last = ours.view({}).members[-1]
    assert (last.peer_id, last.out) == (ann.me, why)
    assert ours.order(f"…{ann.me[-8:]}", "", revoked=False) == ann.me
    ours.order(ann.me, "", revoked=True)  # within the same millisecond, and still the later word
    ours.order(ann.me, "", revoked=False)
    world.run(2 * INTERVAL_SECONDS)
    assert membership(world, 4).shown_out == ""
    assert all(one.out == "" for one in ours.view({}).members)


def test_roles_and_credit_are_told(world: World) -> None:
    peers = [peer.me for peer in world.peers]
    found = {one.peer_id: one for one in membership(world).view({peers[1]: 7}).members}
    assert set(found) == set(peers)
    assert [found[peer].role for peer in peers[:3]] == ["organiser", "founder", "founder"]
    assert {found[peer].role for peer in peers[3:]} == {"member"}
    assert found[peers[1]].tokens == 7
    assert {one.since_unix_seconds for one in found.values() if one.peer_id != peers[0]} != {None}
    assert all(one.live for one in found.values())


@pytest.mark.parametrize(
    ("by", "subject", "revoked", "words"),
    [
        (1, 4, True, "only the organiser"),
        (0, 0, True, "cannot show itself out"),
        (0, 4, False, "was not shown out"),
        (0, "abc", True, "at least"),
        (0, "nobody-ends-so", True, "nobody here knows"),
    ],
)
def test_what_cannot_be_done_is_said(world: World, by: int, subject: int | str, revoked: bool, words: str) -> None:
    name = subject if isinstance(subject, str) else world.peers[subject].me
    with pytest.raises(UsageError, match=words):
        membership(world, by).order(name, "", revoked=revoked)
    assert all(not peer.engine.core.bans.held for peer in world.peers if peer.engine is not None)

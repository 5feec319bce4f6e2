"""Cells for more peers than a group takes: all work counts once, whichever peers die or lie."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from coordinator.cells.assignment import heads_for
from coordinator.chain.chain import beacon_order
from coordinator.core import tickets
from coordinator.core.actions import Action, Adopt, Reduce, Send
from coordinator.core.events import Reduced
from coordinator.engine.fork_choice import ASKED_AT_ONCE
from coordinator.run.manifest import RunConfig
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.tensors import VirtualTensors
from coordinator.wire.messages import CellRoster, YieldNote
from dht.identity import PeerId
from dht.statement import Statement, digest_of
from tests.extra import extra
from tests.sim.crowds import GROUP, PACE, PEERS, says, scene, two_tiers
from tests.sim.crowds import small_groups as small_groups


@pytest.mark.parametrize("seed", [1, *extra([0, 2])])
def test_a_version_holds_everybodys_work(seed: int) -> None:
    """If no peer dies or lies, heads and wards come to a version at one time, however slow they are."""
    crowd = scene(seed=seed)
    certificates = crowd.until(3)
    crowd.check_work(certificates)
    assert len(crowd.workers(certificates[0])) == GROUP  # nobody has a head yet
    assert [len(crowd.workers(one)) for one in certificates[1:]] == [PEERS] * (len(certificates) - 1)
    assert all(len(one.outcome.roster) <= GROUP for one in certificates)
    sent, received = crowd.meter.fragments_sent, crowd.meter.fragments_received
    assert max(*sent.values(), *received.values()) / len(certificates) < 4  # for the group, the cell and its results
    assert max(peer.given for peer in crowd.peers) / len(certificates) < GROUP


def test_a_leader_that_can_tell_all_itself_changes_nothing() -> None:
    """Heads do not come to the next version before their wards, which learn of the last one from its certificate."""
    crowd = scene(GROUP + 4)
    certificates = crowd.until(4)
    assert [len(crowd.workers(one)) for one in certificates[1:]] == [GROUP + 4] * (len(certificates) - 1)


def test_heads_of_many_deal_them_out_to_cells_below() -> None:
    crowd = scene(34)
    with two_tiers():
        certificates = crowd.until(3)
    crowd.check_work(certificates)
    assert all(len(crowd.workers(one)) > 0.8 * 34 for one in certificates[1:])
    leaders = {peer for version, peer in crowd.yields if version == 2}
    assert leaders - {PeerId(peer) for peer in certificates[1].outcome.roster}  # some peers without a seat lead cells


def test_in_a_run_that_cannot_have_cells_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunConfig, "uses_cells", False)
    crowd = scene()
    certificates = crowd.until(2)
    assert crowd.meter.kinds["WardNote"] == crowd.meter.kinds["cell"] == 0
    assert all(len(crowd.workers(one)) <= GROUP for one in certificates)


@pytest.mark.parametrize("kind", ["cell", "bundle", "join"])
def test_a_ward_that_loses_its_head_loses_no_work(kind: str) -> None:
    """The head dies before it deals out its wards, in the middle, or with their merged work."""

    def head_dies(peer: VirtualPeer, action: Action) -> bool:
        led = peer.engine is not None and peer.engine.machines[0].cells.leading is not None
        return says(action, kind) and action_version(action) == 1 and (kind == "cell" or led)

    crowd = scene()
    crowd.trap = head_dies
    certificates = crowd.until(4)
    assert crowd.dead
    crowd.check_work(certificates)
    assert len(crowd.workers(certificates[-1])) > 0.7 * PEERS


@pytest.mark.parametrize("seed", [3, *extra([4, 13])])  # in each it has wards, and some ask another head in time
def test_wards_of_a_head_that_is_gone_bring_their_work_through_another(seed: int) -> None:
    """The head dies at the version that makes it one. If a ward's next head learns of it late, its work comes later."""

    def head_dies(peer: VirtualPeer, action: Action) -> bool:
        return isinstance(action, Adopt) and action.certificate.version == 1

    crowd = scene(seed=seed)
    crowd.trap = head_dies
    certificates = crowd.until(3)
    crowd.check_work(certificates)
    beacon = certificates[0].beacon()
    heads = frozenset(beacon_order(beacon, certificates[0].outcome.roster_ids)[: GROUP - tickets.NEW_SEATS])
    living = {peer.me for peer in crowd.peers if peer.me not in crowd.dead}
    wards = {peer for peer in living - heads if heads_for(beacon, peer, heads)[0] == crowd.dead[0]}
    assert living - crowd.workers(certificates[1]).keys() < wards
    assert living == crowd.workers(certificates[2]).keys()


def action_version(action: Action) -> int:
    message = action.message if isinstance(action, Send) else None
    return message.context.version if isinstance(message, Statement) else -1


def test_a_reducer_of_a_cell_that_dies_is_replaced_by_its_leader() -> None:
    def reducer_dies(peer: VirtualPeer, action: Action) -> bool:
        cell = None if peer.engine is None else peer.engine.machines[0].cells.joined
        return (
            isinstance(action, Reduce)
            and cell is not None
            and action.key == cell.group.key
            and len(cell.group.members) > 3
        )

    crowd = scene(30)
    crowd.trap = reducer_dies
    certificates = crowd.until(3)
    assert crowd.dead
    assert crowd.again
    crowd.check_work(certificates)
    assert crowd.dead[0] in crowd.workers(certificates[1])  # its part of the work had come


def test_a_sub_leader_that_dies_costs_its_cell_alone() -> None:
    def sub_leader_dies(peer: VirtualPeer, action: Action) -> bool:
        rounds = None if peer.engine is None else peer.engine.machines[0].cells
        leads = rounds is not None and rounds.leading is not None and rounds.leading.group.head != peer.me
        return leads and says(action, "bundle")

    crowd = scene(34)
    crowd.trap = sub_leader_dies
    with two_tiers():
        certificates = crowd.until(3)
    assert crowd.dead
    crowd.check_work(certificates)
    assert len(crowd.workers(certificates[1])) > 0.7 * 34


@pytest.mark.parametrize("loses", [False, True])
def test_a_ward_commits_again_only_if_its_commitment_got_lost(loses: bool) -> None:
    """It does not repeat it while others of its cell are slow: else a head would get commitments again and again."""
    crowd = scene(34)
    came: Counter[tuple[PeerId, bytes]] = Counter()
    cells: set[bytes] = set()

    def lose_the_first(sender: PeerId, to: PeerId, message: object) -> bool:
        if not isinstance(message, Statement):
            return True
        if message.context.kind == "cell":
            cells.add(message.digest)
        if message.context.kind != "commit" or message.context.group not in cells or sender == to:
            return True
        came[sender, message.digest] += 1
        return not loses or came[sender, message.digest] > 1

    crowd.network.filter = lose_the_first
    with two_tiers():
        certificates = crowd.until(3)
    crowd.check_work(certificates)
    assert len(crowd.workers(certificates[1])) > 0.8 * 34
    assert set(came.values()) == ({2} if loses else {1})


def test_false_results_of_a_hostile_third_of_the_wards_are_made_again_and_convict_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = scene()
    hostile = {peer.me for number, peer in enumerate(crowd.peers) if number >= GROUP and number % 3 == 0}
    honest, lies = VirtualTensors.reduce, []

    def reduce(tensors: VirtualTensors, action: Reduce) -> Reduced:
        reduced = honest(tensors, action)
        if tensors.learner.peer not in hostile or action.turn or reduced.root is None:
            return reduced
        lies.append(digest_of(b"a lie", reduced.root))
        crowd.liars.add(tensors.learner.peer)
        return replace(reduced, root=lies[-1])

    monkeypatch.setattr(VirtualTensors, "reduce", reduce)
    certificates = crowd.until(3)
    assert crowd.meter.told["result_refuted"]
    assert crowd.again
    crowd.check_work(certificates)
    assert crowd.banned == crowd.liars
    assert len(crowd.workers(certificates[1])) > 0.8 * PEERS
    assert crowd.workers(certificates[-1]).keys() == {peer.me for peer in crowd.peers} - crowd.banned
    assert not {part.root for one in certificates for part in one.outcome.partitions if part} & set(lies)


def test_a_head_that_brings_something_else_than_its_cell_costs_its_wards_no_work() -> None:
    """They see it in the certificate, and contribute the same steps to the next version."""
    crowd = scene()
    cheats: list[VirtualPeer] = []  # the first head, once there is one
    cheated: set[PeerId] = set()

    def watch(peer: VirtualPeer, action: Action) -> bool:
        if isinstance(action, Send) and isinstance(action.message, YieldNote) and peer in (cheats or [peer]):
            cheats[:] = [peer]
            cheated.add(action.to)
            lines = tuple(
                one.model_copy(update={"steps": one.steps + 1}) for one in action.message.cells[0].contributors
            )
            cell = action.message.cells[0].model_copy(update={"contributors": lines})
            object.__setattr__(action, "message", action.message.model_copy(update={"cells": (cell,)}))
        return False

    crowd.trap = watch
    certificates = crowd.until(4)
    assert cheated
    newest = certificates[-1]
    for peer in crowd.peers:
        assert peer.tensors.states == [newest.state]
        if peer.me not in cheated:
            counted = sum(crowd.workers(one).get(peer.me, 0) for one in certificates)
            assert peer.tensors.learner.counted == [counted]
    assert all(len(one.outcome.included()) > GROUP // 2 for one in certificates)


def test_a_peer_late_in_a_large_swarm_asks_a_few_though_all_are_ahead() -> None:
    crowd = scene()
    newest = crowd.until(2)[-1]
    late, asked = crowd.peers[-1], crowd.meter.kinds["AskChainNote"]
    late.crash()
    late.start()
    assert late.alive
    assert 0 < crowd.meter.kinds["AskChainNote"] - asked <= 2 * ASKED_AT_ONCE
    end = crowd.clock.now + PACE.presence_seconds
    while crowd.clock.step(end):
        pass
    assert late.tensors.states == [newest.state]


def test_a_ward_takes_no_part_in_a_cell_that_is_not_its_heads() -> None:
    crowd = scene()
    stolen: list[PeerId] = []

    def steal(sender: PeerId, to: PeerId, message: object) -> bool:
        if isinstance(message, Statement) and message.context.kind == "cell":
            other = next(peer for peer in crowd.peers if peer.alive and peer.me not in (sender, to))
            assert other.engine is not None
            listed = {PeerId(one.peer) for one in message.read(CellRoster).wards} | {message.read(CellRoster).leader}
            before = other.engine.machines[0].cells.cells()
            if other.me not in listed:
                crowd.clock.after(0.0, lambda: crowd.network.inboxes[other.me](sender, message, None))
                stolen.append(other.me)
            assert other.engine.machines[0].cells.cells() == before
        return True

    crowd.network.filter = steal
    certificates = crowd.until(2)
    assert stolen
    assert crowd.meter.told["refused"]
    crowd.check_work(certificates)

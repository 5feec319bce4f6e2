"""Reactions to reducers that cheat, peers that do not open, and peers that complain (design §6.2).

The watcher checks that honest members keep their promises and go on, whatever a hostile one sends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from coordinator.core.actions import Action, Inspect, Reduce, Send
from coordinator.core.events import Finding, Inspected, Reduced
from coordinator.simulator.invariants import Watcher
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.simulator.tensors import VirtualTensors, merged_root
from coordinator.wire.messages import Message
from coordinator.wire.openings import OpenedInput, OpeningNote, OpenNote, Refutation
from dht.identity import PeerId
from dht.statement import Statement, digest_of
from tests.extra import extra
from tests.sim.worlds import LINKS, PACE, SLOW, Drop, Tape, certificates, run_to_version, statement_of, swarm, version

VERSIONS = 8
LATE_SECONDS = 0.43 * PACE.round_seconds  # checks are signed at CHECK_SHARE


class Cheat(VirtualTensors):
    """Tensors whose reductions `lie` changes."""

    lie: Callable[[Reduce, Reduced], Reduced]

    def reduce(self, action: Reduce) -> Reduced:
        return self.lie(action, VirtualTensors.reduce(self, action))


class Complainer(VirtualTensors):
    """Tensors that doubt or refute every result they inspect, but open their inputs."""

    finding: Finding = Finding.DOUBTFUL

    def inspect(self, action: Inspect) -> Inspected:
        shown = OpenedInput(member=0, pieces=(), siblings=())
        proof = Refutation(
            partition=action.partition, turn=action.turn, result=action.result, leaf=0, inputs=(shown,), piece=b"",
            siblings=(),
        )  # fmt: skip
        lie = proof if self.finding is Finding.REFUTED else None
        return Inspected(action.key, action.accuser, action.partition, action.turn, action.result, self.finding, lie)


def hostile(peer: VirtualPeer, kind: type[VirtualTensors]) -> VirtualTensors:
    """Give a living peer hostile tensors, and let the watcher accept its ban."""
    assert isinstance(peer.tensors, VirtualTensors)
    world = peer.world.watch
    assert isinstance(world, World)
    assert isinstance(world.watcher, Watcher)
    world.watcher.hostile.add(peer.me)
    peer.tensors = made = kind(peer.tensors.learner, peer.tensors.states)
    return made


def cheat(peer: VirtualPeer, lie: Callable[[Reduce, Reduced], Reduced]) -> None:
    made = hostile(peer, Cheat)
    assert isinstance(made, Cheat)
    made.lie = lie


def perturbed(_: Reduce, honest: Reduced) -> Reduced:
    """Return a result whose bytes do not follow from the inputs."""
    return replace(honest, root=digest_of(b"perturbed", honest.root or b""))


def dropped(action: Reduce, honest: Reduced) -> Reduced:
    """Return a result without one other member's input, and say so."""
    kept = action.inputs[1:]
    root = merged_root(action.partition, kept)
    return replace(honest, root=root, included=tuple(one.member for one in kept))


def raised(_: Reduce, honest: Reduced) -> Reduced:
    """Return a result with coefficients that do not follow from the merge rule."""
    return replace(honest, coefficients=(1.0,))


def reduced_by(world: World, peer: PeerId) -> list[bytes]:
    """Return this reducer's roots in all certified versions."""
    return [
        partition.root
        for certificate in world.watcher.certified.values()
        for partition in certificate.outcome.partitions
        if partition is not None and partition.reducer == peer
    ]


def result_statements(tape: Tape) -> dict[PeerId, list[Statement]]:
    found: dict[PeerId, list[Statement]] = {}
    for statement in tape.statements("result"):
        found.setdefault(PeerId(statement.sender), []).append(statement)
    return found


@pytest.mark.parametrize("seed", [0, *extra([1, 2])])
@pytest.mark.parametrize("lie", [perturbed, raised], ids=lambda lie: lie.__name__)
def test_nothing_of_a_cheating_reducer_becomes_part_of_a_version(
    lie: Callable[[Reduce, Reduced], Reduced], seed: int
) -> None:
    world = swarm(6, seed=seed)
    culprit = world.peers[3]
    cheat(culprit, lie)
    tape = Tape(world)
    run_to_version(world, VERSIONS)
    assert result_statements(tape)[culprit.me], "it has reduced"
    assert reduced_by(world, culprit.me) == []
    every = [one for at in range(1, VERSIONS + 1) for one in certificates(world, at)]
    # Another member reduces the partition instead, unless the cheat itself leads the group in which it is convicted.
    # The others then treat it like a leader that died. The second proposer cannot order a redo: only a leader can, in
    # the protocol of all minor versions. So the cheat freezes one partition for one version, at the price of its key.
    void = {one.version for one in every if None in one.outcome.partitions}
    led_by_it = {roster.context.version + 1 for roster in tape.statements("roster") if roster.sender == culprit.me}
    assert void <= (led_by_it if lie is perturbed else set())
    assert len(void) <= 1, "convicted once, it leads no more"
    honest = [peer for peer in world.peers if peer is not culprit]
    assert all(peer.me in {one.reducer for one in every[-1].outcome.partitions if one} for peer in honest)
    assert bool(tape.told("result_refuted")) == (lie is perturbed)
    assert {entry[2].details["reducer"] for entry in tape.told("result_refuted")} <= {culprit.me}
    banned = [peer for peer in honest if peer.engine is not None and culprit.me in peer.engine.core.bans]
    assert banned == (honest if lie is perturbed else []), "an estimate convicts nobody"
    world.quiesce(60.0)


def test_a_reducer_that_leaves_somebody_out_is_replaced() -> None:
    world = swarm(6)
    culprit = world.peers[3]
    cheat(culprit, dropped)
    tape = Tape(world)
    run_to_version(world, VERSIONS)
    assert result_statements(tape)[culprit.me]
    assert reduced_by(world, culprit.me) == []
    assert tape.told("result_refuted") == []
    every = [one for at in range(1, VERSIONS + 1) for one in certificates(world, at)]
    assert all(len(partition.included) == 6 for one in every for partition in one.outcome.partitions if partition)
    world.quiesce(60.0)


def test_two_cheats_in_a_row_freeze_a_partition_and_no_more() -> None:
    """If the second reducer cheats, too, the partition is void, but the version is still made."""
    world = swarm(7)
    for culprit in world.peers[2:4]:
        cheat(culprit, perturbed)
    run_to_version(world, VERSIONS)
    culprits = {peer.me for peer in world.peers[2:4]}
    every = [one for at in range(1, VERSIONS + 1) for one in certificates(world, at)]
    assert all(partition.reducer not in culprits for one in every for partition in one.outcome.partitions if partition)
    assert all(one.outcome.partitions.count(None) <= 2 for one in every)
    world.quiesce(60.0)


def opening_of(sender: PeerId) -> Callable[[PeerId, PeerId, Message], bool]:
    return lambda by, to, message: by == sender and isinstance(message, OpeningNote)


def test_a_reducer_that_does_not_open_is_looked_into_by_asking_the_others() -> None:
    world = swarm(6)
    silent = world.peers[2]
    world.network.filter = Drop(lambda by, to, message: opening_of(silent.me)(by, to, message))
    tape = Tape(world)
    run_to_version(world, VERSIONS, 200.0)
    asked = [action.message for _, _, action in tape.entries if isinstance(action, Send)]
    assert any(isinstance(message, OpenNote) and message.own for message in asked)
    world.quiesce(60.0)


def test_a_cheat_that_does_not_open_is_found_by_what_the_others_open() -> None:
    world = swarm(6)
    culprit = world.peers[3]
    cheat(culprit, perturbed)
    world.network.filter = Drop(lambda by, to, message: opening_of(culprit.me)(by, to, message))
    tape = Tape(world)
    run_to_version(world, VERSIONS, 200.0)
    assert reduced_by(world, culprit.me) == []
    assert result_statements(tape)[culprit.me]
    world.quiesce(60.0)


class LateAndMute(VirtualPeer):
    """A reducer that sends its results only when others are about to sign their checks, and opens nothing."""

    __slots__ = ()

    def _send(self, action: Send) -> None:
        if isinstance(action.message, OpeningNote):
            return
        if statement_of(action.message, "result"):
            self.world.clock.after(LATE_SECONDS, partial(super()._send, action))
        else:
            super()._send(action)


@pytest.mark.parametrize("seed", [0, *extra([1, 2])])
@pytest.mark.parametrize(("links", "redone"), [(LINKS, True), (SLOW, False)], ids=["fast", "slow"])
def test_a_result_that_no_member_has_inspected_yet_is_not_vouched_for(
    links: LinkFaults, redone: bool, seed: int
) -> None:
    """Once its result came just when it was time to sign, and all twelve versions held the made-up bytes."""
    world = swarm(6, seed=seed, links=links)
    culprit = world.peers[3]
    cheat(culprit, perturbed)
    culprit.__class__ = LateAndMute
    tape = Tape(world)
    run_to_version(world, VERSIONS, 400.0)
    assert reduced_by(world, culprit.me) == []
    assert result_statements(tape)[culprit.me]
    assert not redone or all(None not in one.outcome.partitions for one in world.watcher.certified.values())


def test_a_contributor_that_does_not_open_is_not_needed() -> None:
    """Reducers open its inputs instead."""
    world = swarm(6)
    silent = world.peers[2]
    world.network.filter = Drop(
        lambda by, to, message: opening_of(silent.me)(by, to, message) and len(message.inputs) == 1
    )
    tape = Tape(world)
    run_to_version(world, VERSIONS)
    assert tape.statements("redo") == []
    world.quiesce(60.0)


def fault_free_seconds(count: int) -> float:
    world = swarm(count)
    return run_to_version(world, VERSIONS)


@pytest.mark.parametrize("finding", [Finding.REFUTED, *extra([Finding.DOUBTFUL, Finding.UNOPENED])])
def test_one_that_complains_about_everything_does_not_stop_versions(finding: Finding) -> None:
    world = swarm(6)
    made = hostile(world.peers[3], Complainer)
    assert isinstance(made, Complainer)
    made.finding = finding
    tape = Tape(world)
    seconds = run_to_version(world, VERSIONS, 200.0)
    assert seconds < 2 * fault_free_seconds(6)
    assert tape.told("result_refuted") == [] or finding is Finding.REFUTED
    honest = [entry for entry in tape.told("result_refuted") if entry[1] is not world.peers[3]]
    assert honest == []
    assert {statement.sender for statement in tape.statements("redo")} <= {world.peers[3].me}, "nobody follows it"
    world.quiesce(120.0)


def test_one_that_announces_refutations_and_sends_none_costs_a_moment() -> None:
    world = swarm(6)
    made = hostile(world.peers[3], Complainer)
    assert isinstance(made, Complainer)
    made.finding = Finding.REFUTED
    world.network.filter = Drop(lambda by, to, message: statement_of(message, "refutation"))
    assert run_to_version(world, VERSIONS, 200.0) < 2 * fault_free_seconds(6)
    assert all(version(peer) >= VERSIONS for peer in world.peers)
    world.quiesce(120.0)


def test_one_that_feels_left_out_everywhere_has_nothing_redone() -> None:
    """It sends its parts to nobody: a member missing in most partitions is at fault itself."""
    world = swarm(6)
    left_out = world.peers[3].me
    tape = Tape(world)
    world.network.filter = Drop(
        lambda by, to, message: by == left_out and type(message).__name__ == "PartNote" and to != left_out
    )
    run_to_version(world, VERSIONS, 300.0)
    assert tape.statements("redo") == []
    world.quiesce(120.0)


def test_the_leader_tells_everybody_what_was_shown_to_it_alone() -> None:
    """The finder's refutation reaches only the leader."""
    world = swarm(5)
    culprit = world.peers[3]
    cheat(culprit, perturbed)
    tape = Tape(world)

    def lost(by: PeerId, to: PeerId, message: Message) -> bool:
        if not statement_of(message, "refutation") or by != getattr(message, "sender", None):
            return False
        leaders = {statement.sender for statement in tape.statements("bundle")}
        return to not in leaders

    world.network.filter = Drop(lost)
    run_to_version(world, 4, 200.0)
    assert reduced_by(world, culprit.me) == []
    assert PACE.fragments == 1


def test_actions_of_inspections_are_bounded() -> None:
    world = swarm(6)
    tape = Tape(world)
    run_to_version(world, VERSIONS)

    def count(kind: type[Action]) -> int:
        return sum(isinstance(action, kind) for _, _, action in tape.entries)

    rounds = len(tape.statements("bundle"))
    assert count(Inspect) <= 6 * 5 * rounds
    assert count(Inspect) >= 6 * 5 * (VERSIONS - 1)

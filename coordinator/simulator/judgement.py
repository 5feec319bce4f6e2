"""Invariants at the end of a run, after all peers could reach each other again (design §6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from coordinator.chain.certificate import Certificate
from coordinator.simulator.invariants import MESSAGES_PER_PEER_ROUND_MAX, InvariantError, Watcher
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.tensors import Work
from dht.identity import PeerId


def check_converged(peers: Sequence[VirtualPeer]) -> None:
    """(1b, 8) Raise InvariantError unless all live peers hold one lineage, and its newest certified state."""
    engines = {peer.me: peer.engine for peer in peers if peer.engine is not None}
    heads = {engine.heads() for engine in engines.values()}
    if len(heads) != 1:
        raise InvariantError(f"{len(engines)} live peers hold {len(heads)} different lineages: {sorted(heads)}")
    for peer in peers:
        for machine in peer.engine.machines if peer.engine is not None else ():
            if not machine.ready or peer.tensors.states[machine.index] != machine.chain.state:
                raise InvariantError(f"{peer.me} holds another state of fragment {machine.index} than certified")


def check_work(peers: Sequence[VirtualPeer], watcher: Watcher) -> None:
    """(5) Raise InvariantError if the winning lineage counts a step twice, or lost a step of an undisturbed peer."""
    reference = next(peer.engine for peer in peers if peer.engine is not None)
    for machine in reference.machines:
        lineage = watcher.lineage(machine.chain)
        for peer in peers:
            certified = _certified_work(lineage, peer, honest=peer.me not in watcher.hostile)
            if peer.mischief is None or not peer.mischief.claims:
                _counts_once(certified, peer.me)
            if peer.life == 1 and peer.alive and peer.me not in watcher.disturbed:
                _loses_nothing(certified, peer, machine.index)


def _certified_work(lineage: Sequence[Certificate], peer: VirtualPeer, honest: bool) -> list[Work]:
    """Return this peer's work in a lineage; a peer that is not `honest` may have claimed more (docs/adr/0035)."""
    found: list[Work] = []
    for certificate in lineage:
        if any(certificate.outcome.included_in(peer.me)):
            done = peer.contributed[certificate.outcome.roster_id]
            if honest and sum(last - first for _, first, last in done) != _claimed_steps(certificate, peer.me):
                raise InvariantError(f"{peer.me} is credited with other steps than it committed")
            found += done
    return found


def _claimed_steps(certificate: Certificate, peer: PeerId) -> int:
    return next(one.steps for one in certificate.outcome.contributors if one.peer == peer)


def _counts_once(certified: list[Work], peer: PeerId) -> None:
    pieces = sorted(certified)
    for (life, first, last), (next_life, next_first, next_last) in pairwise(pieces):
        if life == next_life and next_first < last:
            raise InvariantError(f"steps {first}-{last} and {next_first}-{next_last} of {peer} count twice")


def _loses_nothing(certified: list[Work], peer: VirtualPeer, fragment: int) -> None:
    counted = peer.tensors.learner.counted[fragment]
    total = sum(last - first for _, first, last in certified)
    if total != counted:
        raise InvariantError(f"{peer.me} counts {counted} steps as certified, but {total} are")


def check_messages(peers: Sequence[VirtualPeer], messages_sent: int, rounds: int) -> None:
    """(7) Raise InvariantError if messages are out of proportion to rounds, void ones included."""
    limit = MESSAGES_PER_PEER_ROUND_MAX * len(peers) * max(rounds, 1)
    if messages_sent > limit:
        raise InvariantError(f"{messages_sent} messages for {rounds} rounds of {len(peers)} peers")

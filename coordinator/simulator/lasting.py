"""What most of a fork's active set signed last stays (docs/adr/0050), by the watcher's own arithmetic.

A peer knows the votes in its copies of certificates; the watcher knows all that were ever sent. So it asks less of a
peer than the peer's own rule does: that it never leaves what most of the active set are honest in, and signed last.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain
from coordinator.chain.lineage import last_shared
from coordinator.engine.fragment import FragmentMachine
from dht.identity import PeerId


@dataclass(frozen=True, slots=True)
class BranchChange:
    """A change in one fragment's lineage: what was left after the fork, and what was taken instead."""

    active: frozenset[PeerId]  # at the fork
    left: tuple[Certificate, ...]
    taken: tuple[Certificate, ...]

    @classmethod
    def between(cls, before: Chain, now: Chain) -> BranchChange:
        """From one chain to another; raises ValueError if they share nothing that is kept."""
        fork = last_shared(before, now)
        if fork is None:
            raise ValueError("lineages without a version that both keep")
        active = now.truncated(fork).active_set()
        return cls(active, before.after(fork, before.version - fork), now.after(fork, now.version - fork))


@dataclass(slots=True)
class Lasting:
    """Where each key signed last, which chain each peer had, and what it is leaving in the event under way."""

    newest: dict[tuple[int, PeerId], Certificate] = field(default_factory=dict)  # by fragment and voter
    chains: dict[tuple[PeerId, int], Chain] = field(default_factory=dict)
    changes: dict[PeerId, list[BranchChange]] = field(default_factory=dict)

    def meet(self, certificate: Certificate) -> None:
        """Note who signed it; copies of one certificate may hold other votes."""
        for voter in certificate.voters:
            known = self.newest.setdefault((certificate.fragment, voter), certificate)
            if _place(known) < _place(certificate):
                self.newest[certificate.fragment, voter] = certificate

    def leave(self, peer: PeerId, machine: FragmentMachine) -> None:
        """A peer changes lineage in one fragment; it may do so in others at the same moment."""
        change = BranchChange.between(self.chains[peer, machine.index], machine.chain)
        self.changes.setdefault(peer, []).append(change)
        for certificate in (*change.left, *change.taken):
            self.meet(certificate)

    def handled(self, peer: PeerId, machines: Sequence[FragmentMachine], hostile: Set[PeerId]) -> bool:
        """After an event of this peer: whether it has left what it must not. One fragment may decide for all."""
        changes = self.changes.pop(peer, [])
        self.changes.clear()  # of who died before it was through
        for machine in machines:
            self.chains[peer, machine.index] = machine.chain
        loses = any(2 * len(self._last_in(one.left, one.active) - hostile) > len(one.active) for one in changes)
        return loses and not any(2 * len(self._last_in(one.taken, one.active)) > len(one.active) for one in changes)

    def _last_in(self, branch: Sequence[Certificate], active: Set[PeerId]) -> Set[PeerId]:
        """Who of these signed something of a branch, and nothing later elsewhere."""
        digests = {one.digest for one in branch}
        signed = {(one.fragment, voter) for one in branch for voter in one.voters & active}
        return {voter for fragment, voter in signed if self.newest[fragment, voter].digest in digests}


def _place(certificate: Certificate) -> tuple[int, int]:
    return certificate.version, certificate.outcome.attempt

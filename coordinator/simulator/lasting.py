"""The invariant that the branch which most of a fork's active set signed last stays (docs/adr/0050).

The watcher checks it with its own arithmetic. A peer knows only the votes in its copies of certificates; the watcher
knows all votes that were ever sent. So it asks less of a peer than the peer's own rule does: that it never leaves a
branch which honest peers, most of the active set, signed last.
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
    """A change in one fragment's lineage: the certificates left after the fork, and those taken instead."""

    active: frozenset[PeerId]  # at the fork
    left: tuple[Certificate, ...]
    taken: tuple[Certificate, ...]

    @classmethod
    def between(cls, before: Chain, now: Chain) -> BranchChange:
        """Return the change from one chain to another; raises ValueError if both keep no common version."""
        fork = last_shared(before, now)
        if fork is None:
            raise ValueError("lineages without a version that both keep")
        active = now.truncated(fork).active_set()
        return cls(active, before.after(fork, before.version - fork), now.after(fork, now.version - fork))


@dataclass(slots=True)
class Lasting:
    """The newest certificate that each key signed, each peer's chains, and the branches it leaves in this event."""

    newest: dict[tuple[int, PeerId], Certificate] = field(default_factory=dict)  # by fragment and voter
    chains: dict[tuple[PeerId, int], Chain] = field(default_factory=dict)
    changes: dict[PeerId, list[BranchChange]] = field(default_factory=dict)

    def meet(self, certificate: Certificate) -> None:
        """Record the signers of a certificate; copies of one certificate may hold different votes."""
        for voter in certificate.voters:
            known = self.newest.setdefault((certificate.fragment, voter), certificate)
            if _place(known) < _place(certificate):
                self.newest[certificate.fragment, voter] = certificate

    def leave(self, peer: PeerId, machine: FragmentMachine) -> None:
        """Record that a peer changes lineage in one fragment; it may do so in others at the same moment."""
        change = BranchChange.between(self.chains[peer, machine.index], machine.chain)
        self.changes.setdefault(peer, []).append(change)
        for certificate in (*change.left, *change.taken):
            self.meet(certificate)

    def handled(self, peer: PeerId, machines: Sequence[FragmentMachine], hostile: Set[PeerId]) -> bool:
        """Return whether this peer left a branch in this event that it must not. One fragment may decide for all."""
        changes = self.changes.pop(peer, [])
        self.changes.clear()  # left over by peers that died within the event
        for machine in machines:
            self.chains[peer, machine.index] = machine.chain
        loses = any(2 * len(self._last_in(one.left, one.active) - hostile) > len(one.active) for one in changes)
        return loses and not any(2 * len(self._last_in(one.taken, one.active)) > len(one.active) for one in changes)

    def _last_in(self, branch: Sequence[Certificate], active: Set[PeerId]) -> Set[PeerId]:
        """Return the active peers that signed a version of a branch, and nothing later elsewhere."""
        digests = {one.digest for one in branch}
        signed = {(one.fragment, voter) for one in branch for voter in one.voters & active}
        return {voter for fragment, voter in signed if self.newest[fragment, voter].digest in digests}


def _place(certificate: Certificate) -> tuple[int, int]:
    return certificate.version, certificate.outcome.attempt

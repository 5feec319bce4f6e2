"""Hostile voters that withhold their votes, and show the certificate when nobody waits for it any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.ballot import Ballot
from coordinator.messages import CertificateNote, ChainNote, Message
from coordinator.virtual.collusion import mischief_of
from coordinator.virtual.peer import VirtualPeer
from coordinator.virtual.simulation import World
from dht.identity import PeerId
from dht.statement import Statement
from tests.sim.worlds import leader, machine, run_to_version, swarm, version

LATER = 8  # versions that the honest make meanwhile


class Withheld:
    """Seven peers, two of them hostile, which alone hold a full certificate that the honest voted for."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world: World = swarm(7, seed=seed)
        self.hostile, self.honest = self.world.peers[-2:], self.world.peers[:-2]
        self.ids = frozenset(peer.me for peer in self.hostile)
        self.world.watcher.hostile |= self.ids
        run_to_version(self.world, 2)
        while leader(self.world).me not in self.ids:
            run_to_version(self.world, self.top() + 1)
        self.fork, self.away = self.top(), False
        self._make_it_patient(monkeypatch)
        for peer in self.hostile:
            shut_out = replace(mischief_of(peer.signer, [], ()), shuts_out=True, victims=frozenset({self.honest[0].me}))
            peer.mischief = replace(shut_out, accomplices=self.ids - {peer.me})
        self.world.network.filter = self._passes
        end = self.world.clock.now + 200
        while not self.holders() and self.top() == self.fork and self.world.clock.now < end:
            self.world.clock.step(end)

    def top(self) -> int:
        return max(map(version, self.honest))

    def holders(self) -> list[VirtualPeer]:
        return [peer for peer in self.hostile if version(peer) > self.fork]

    def _make_it_patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hostile put the certificate together from all votes: which it has is not in its digest."""
        count, fork, ids = Ballot._count, self.fork, self.ids

        def patient(ballot: Ballot) -> object:
            key = ballot.group.key
            waits = key.version == fork and ballot.group.leader in ids and len(ballot.votes) < 6
            return None if waits else count(ballot)

        monkeypatch.setattr(Ballot, "_count", patient)

    def _passes(self, by: PeerId, to: PeerId, message: Message) -> bool:
        if (by in self.ids) == (to in self.ids):
            return True
        is_vote = isinstance(message, Statement) and message.context.kind == "vote"
        return not self.away and not (by in self.ids and (is_vote or isinstance(message, CertificateNote | ChainNote)))


@pytest.mark.parametrize("seed", [0, 1])
def test_what_was_made_after_locks_ran_out_stays_when_the_certificate_is_shown(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    withheld = Withheld(seed, monkeypatch)
    world, fork = withheld.world, withheld.fork
    (holder, *_) = withheld.holders()
    hidden = machine(holder).chain.certificates[-1]
    assert not hidden.outcome.minor
    assert len(hidden.voters - withheld.ids) == 4, "of the five honest"
    withheld.away = True
    for peer in withheld.hostile:
        assert peer.engine is not None
        peer.engine.withdraw(True)
        peer.mischief = None
    end = world.clock.now + 2000
    while min(map(version, withheld.honest)) < fork + LATER and world.clock.now < end:
        world.clock.step(end)
    made = machine(withheld.honest[0]).chain.digest_at(fork + LATER)
    assert made is not None
    withheld.away = False
    world.network.filter = None
    world.run(10.0)
    for peer in withheld.honest:
        assert machine(peer).chain.digest_at(fork + LATER) == made
    for peer in withheld.hostile:  # who shows it comes over
        assert machine(peer).chain.digest_at(fork + LATER) == made

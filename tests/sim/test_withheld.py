"""Hostile voters that withhold their votes, and show the certificate when no peer waits for it any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.adversary.collusion import mischief_of
from coordinator.chain.lineage import Branch
from coordinator.core.timeline import LOCK_DEADLINES
from coordinator.round.ballot import Ballot
from coordinator.simulator.invariants import InvariantError
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import World
from coordinator.wire.messages import CertificateNote, ChainNote, Message
from dht.identity import PeerId
from dht.statement import Statement
from tests.extra import extra
from tests.sim.test_swarm_attacks import branch, follows, show
from tests.sim.worlds import INTERVAL_SECONDS, PACE, leader, machine, run_to_version, swarm, version

LATER = 8  # versions that the honest peers make meanwhile


class Withheld:
    """Seven peers; only two hostile ones hold a full certificate for which the honest ones voted."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world: World = swarm(7, seed=seed)
        self.hostile, self.honest = self.world.peers[-2:], self.world.peers[:-2]
        self.ids = frozenset(peer.me for peer in self.hostile)
        self.world.watcher.hostile |= self.ids  # type: ignore[attr-defined]
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
        """Let groups of hostile leaders certify only with six votes; votes are not part of a certificate's digest."""
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

    def go_on_without(self) -> bytes:
        """Let the honest peers make LATER versions, then show them the certificate; return the last one's digest."""
        world, fork = self.world, self.fork
        self.away = True
        for peer in self.hostile:
            assert peer.engine is not None
            peer.engine.withdraw(True)
            peer.mischief = None
        end = world.clock.now + 2000
        while min(map(version, self.honest)) < fork + LATER and world.clock.now < end:
            world.clock.step(end)
        made = machine(self.honest[0]).chain.digest_at(fork + LATER)
        assert made is not None
        self.away = False
        world.network.filter = None
        world.run(10.0)
        return made


@pytest.mark.parametrize("seed", [0, *extra([1])])
def test_versions_made_after_locks_ran_out_stay_when_the_certificate_is_shown(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    withheld = Withheld(seed, monkeypatch)
    (holder, *_) = withheld.holders()
    hidden = machine(holder).chain.certificates[-1]
    assert not hidden.outcome.minor
    assert len(hidden.voters - withheld.ids) == 4, "of the five honest"
    made = withheld.go_on_without()
    for peer in withheld.honest:
        assert machine(peer).chain.digest_at(withheld.fork + LATER) == made
    for peer in withheld.hostile:  # the peers that show it change over, too
        assert machine(peer).chain.digest_at(withheld.fork + LATER) == made


def test_the_watcher_sees_that_what_most_signed_last_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    withheld = Withheld(0, monkeypatch)
    monkeypatch.setattr(Branch, "supersedes", lambda *_: False)
    with pytest.raises(InvariantError, match="leaves what most of the honest signed last"):
        withheld.go_on_without()


@pytest.mark.parametrize("seed", [0, *extra([1])])
def test_a_peer_bound_by_a_vote_that_never_counts_does_not_follow_few(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of three deadlines lasts longer than six intervals here, and peers wait longer for locked ones."""
    withheld = Withheld(seed, monkeypatch)
    world = withheld.world
    made = branch(machine(withheld.honest[0]).chain, [peer.signer for peer in withheld.hostile], 3)
    end = world.clock.now + 12 * PACE.round_seconds
    while min(map(version, withheld.honest)) == withheld.fork and world.clock.now < end:
        world.run(1.0)
        for peer in withheld.honest:
            show(peer, withheld.hostile[0].me, made)
            assert not follows(peer, made)
    assert min(map(version, withheld.honest)) > withheld.fork


def test_honest_peers_do_not_follow_few_when_the_longest_lock_ends_while_most_are_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Attempts with doubled deadlines bind for longer than peers wait after a first attempt."""
    withheld = Withheld(0, monkeypatch)
    world = withheld.world
    made = branch(machine(withheld.honest[0]).chain, [peer.signer for peer in withheld.hostile], 3)
    base = machine(withheld.honest[0]).chain.digest
    free_at = world.clock.now + LOCK_DEADLINES * 2 * PACE.round_seconds + 6 * INTERVAL_SECONDS
    for peer in withheld.honest:
        machine(peer).vote_locks.extend(base, 0, free_at)
    while min(map(version, withheld.honest)) == withheld.fork and world.clock.now < free_at + 2 * PACE.round_seconds:
        world.run(0.5)
        for peer in withheld.honest:
            show(peer, withheld.hostile[0].me, made)
            assert not follows(peer, made)
    assert world.clock.now > free_at
    run_to_version(world, withheld.fork + 1, 12 * PACE.round_seconds)
    assert not any(follows(peer, made) for peer in withheld.honest)


@pytest.mark.parametrize("intervals", [24, *extra([60])])
def test_a_version_that_no_peer_serves_is_left_alone_whatever_is_shown_behind_it(
    intervals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its voters restart, so only hostile peers have its bytes; nobody follows the versions after it."""
    withheld = Withheld(3, monkeypatch)
    world, (holder, *_) = withheld.world, withheld.holders()
    hidden = machine(holder).chain.certificates[-1]
    shown = [hidden, *branch(machine(holder).chain, [peer.signer for peer in withheld.hostile], 2)]
    for peer in withheld.honest:
        peer.checkpoint()
        world.crash(peer)
        peer.start()
    end = world.clock.now + intervals * INTERVAL_SECONDS
    while world.clock.now < end:
        for peer in withheld.hostile:
            peer.served = [{}]
        world.run(0.25)
        for peer in withheld.honest:
            show(peer, holder.me, shown)
            assert not follows(peer, shown[1:])
    for peer in withheld.honest:
        assert version(peer) > withheld.fork + 4
        assert machine(peer).chain.digest_at(hidden.version) != hidden.digest

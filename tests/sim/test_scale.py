"""More peers than a group takes: versions come, seats turn over; no peer's storage or traffic grows with the swarm."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from coordinator.engine.fork_choice import ASKED_AT_ONCE
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, PaceSpec
from coordinator.simulator.board import ACQUAINTANCES, PUTS_PER_LIFETIME, REPLICAS, Board, keepers
from coordinator.simulator.keys import virtual_peer_id
from coordinator.simulator.scale import EAGER_SECONDS, EAGER_SHARE, KNOWN_SHARE, ScaleRun
from coordinator.wire.messages import AskChainNote
from coordinator.wire.presence import HEAD_BYTES
from coordinator.wire.shards import RECORDS_PER_SHARD, ROOT, PresenceShards
from dht.identity import PeerId
from dht.table import ENTRIES_PER_KEY_MAX
from peer.net import presence_loop
from tests.extra import extra

PACE = PaceSpec(fragments=1, overlap=1, presence_seconds=15.0, presence_lifetime_seconds=45.0, round_seconds=20.0)


@pytest.mark.parametrize(("peers", "versions"), [(36, 2), *extra([(40, 3)])])
def test_a_swarm_over_32_certifies_full_versions_and_tells_everybody(peers: int, versions: int) -> None:
    crowd = ScaleRun(peers, seed=0, deaths_per_version=0.0, pace=PACE)
    crowd.run(versions)
    certified = list(crowd.meter.certified.values())
    assert len(certified) >= versions
    assert [one for one in certified if one.outcome.minor or len(one.outcome.roster) < PEERS_PER_GROUP_MAX] == []
    assert len({peer for one in certified for peer in one.outcome.roster}) > PEERS_PER_GROUP_MAX
    assert min(len(crowd.heard[one.version]) for one in certified) >= KNOWN_SHARE * peers
    report = crowd.report()
    assert report["versions"] == len(certified)
    assert sum(crowd.meter.busiest().values()) == max(crowd.meter.received_bytes.values())
    assert crowd.meter.checks.total() > 0
    assert crowd.meter.sent.total() == crowd.meter.received.total() == sum(crowd.meter.kinds.values())


def test_a_board_shows_each_reader_a_part_whatever_the_swarm() -> None:
    crowd = ScaleRun(1, seed=0, deaths_per_version=0.0, pace=PACE)
    crowd.peers[0].start()
    presence = crowd.board.records[crowd.peers[0].me][0]
    for size, depth in ((90, 0), (2000, 5)):
        board = Board(lifetime_seconds=45.0)
        names = [virtual_peer_id(number, 1) for number in range(size)]
        active, shards = frozenset(names[:5]), [PresenceShards(name, depth) for name in names]
        for name, own in zip(names, shards, strict=True):
            board.put(name, presence, own.written(active), 0.0)
        seen = []
        for own in shards[:50]:
            read = board.get(own.read((), 0), 1.0)
            seen.append({peer for peers in read.values() for peer in peers})
        assert all(active <= found for found in seen)
        assert max(map(len, seen)) < 4 * RECORDS_PER_SHARD
        assert board.get([ROOT], 50.0) == {ROOT: []}  # all have gone silent


def test_a_place_that_is_full_takes_nobody_new() -> None:
    crowd = ScaleRun(1, seed=0, deaths_per_version=0.0, pace=PACE)
    crowd.peers[0].start()
    presence = crowd.board.records[crowd.peers[0].me][0]
    board = Board(lifetime_seconds=45.0)
    for number in range(ENTRIES_PER_KEY_MAX + 50):
        board.put(virtual_peer_id(number, 1), presence, [ROOT], 0.0)
    assert len(board.get([ROOT], 1.0)[ROOT]) == ENTRIES_PER_KEY_MAX


@pytest.mark.parametrize("nodes", [10, 16, 1000])
def test_acquaintances_of_earlier_puts_still_hold_a_record(nodes: int) -> None:
    rng, draws = random.Random(0), 500
    others = nodes - 1 - REPLICAS  # the first of them invited the writer, and gets each put
    kept = 0
    for _ in range(draws):
        told = {0}.union(*(rng.sample(range(1, others), ACQUAINTANCES - 1) for _ in range(PUTS_PER_LIFETIME)))
        kept += 1 + REPLICAS + len(told)
    assert keepers(nodes) == pytest.approx(kept / draws, rel=0.01)
    assert keepers(9) == 9
    assert keepers(2) == 2


def test_late_comers_do_not_all_ask_the_same_few() -> None:
    """Once the peers whose keys sort first had to answer all others, and an attacker could mine such keys."""
    crowd = ScaleRun(60, seed=0, deaths_per_version=0.0, pace=PACE)
    ahead, late = crowd.peers[:40], crowd.peers[40:]
    for peer in ahead:
        peer.start()
        presence, _ = crowd.board.records[peer.me]
        news = presence.model_copy(update={"versions": (1,), "heads": (bytes(HEAD_BYTES),)})
        crowd.board.put(peer.me, news, [ROOT], crowd.clock.now)
    asked: Counter[PeerId] = Counter()
    crowd.network.filter = lambda _, to, message: asked.update([to] * isinstance(message, AskChainNote)) is None
    for peer in late:
        peer.start()
    assert asked.total() >= len(late) * ASKED_AT_ONCE
    assert max(asked.values()) < len(late) / 2


def test_a_starting_peer_looks_often_at_first_as_real_peers_do() -> None:
    """Else ten thousand peers that start together find each other minutes later, after every version in between."""
    assert (EAGER_SECONDS, EAGER_SHARE) == (presence_loop.EAGER_SECONDS, presence_loop.EAGER_SHARE)
    crowd = ScaleRun(1, seed=0, deaths_per_version=0.0, pace=PACE)
    crowd.peers[0].start()
    while crowd.clock.step(PACE.presence_seconds):
        pass
    early = crowd.peers[0].beats
    while crowd.clock.step(10 * PACE.presence_seconds):
        pass
    assert early >= 10
    assert crowd.peers[0].beats - early < 20

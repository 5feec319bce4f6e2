"""Newcomers to a run whose beginning nobody keeps: real peers, virtual time, memory transport (design §8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.chain.chain import Chain
from coordinator.chain.waypoint import heads_at
from dht.errors import NetworkError
from dht.identity import Identity
from dht.invite import Invite
from dht.statement import digest_of
from peer.net.frames import HeadsAnswer, HeadsAsk, TailAnswer, TailAsk
from peer.node.build import begin_at_invite
from peer.sync.introduction import (
    TAILS_ASKED_MAX,
    Introduction,
    answer_heads,
    answer_tail,
    empty_chains,
    fresh_invite,
    observer_rules,
    waypoint_of,
)
from tests.coordinator.builders import Club
from tests.peer.rounds.test_driver import Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual

KEPT = 10
CLUB = Club.of(4, pace=config_of(fragments=10).pace)
HOLDER, LIAR = CLUB.ids[1], CLUB.ids[2]
CHAINS = [CLUB.grow(CLUB.chain(fragment), *[(0, 1, 2)] * 9) for fragment in range(10)]
INVITE = fresh_invite(CLUB.manifest, (), CHAINS)


def introduction() -> Introduction:
    waypoint = waypoint_of(INVITE)
    assert waypoint is not None
    return Introduction(waypoint, empty_chains(CLUB.manifest, observer_rules(CLUB.manifest, CLUB.verifier)))


def answered(ask: HeadsAsk | TailAsk, chains: list[Chain] = CHAINS) -> HeadsAnswer | TailAnswer:
    return answer_heads(chains, ask) if isinstance(ask, HeadsAsk) else answer_tail(chains, ask)


# -- sans-IO


def test_first_the_heads_then_the_tails_a_few_at_a_time() -> None:
    newcomer = introduction()
    [heads] = newcomer.questions()
    assert isinstance(heads, HeadsAsk)
    assert newcomer.hear(HOLDER, answered(heads))
    asked = []
    while not newcomer.done:
        batch = newcomer.questions()
        assert len(batch) <= TAILS_ASKED_MAX
        news = [newcomer.hear(HOLDER, answered(ask)) for ask in batch]
        assert news == [False] * (len(batch) - 1) + [True], "asked again only once all answers are there"
        asked += batch
    assert len(asked) == 10
    assert newcomer.refused == set()
    assert [chain.digest for chain in newcomer.chains()] == list(heads_at(CHAINS, heads.version) or ())


def test_a_peer_that_does_not_know_or_lies_is_named_and_changes_nothing() -> None:
    newcomer = introduction()
    [heads] = newcomer.questions()
    other = [CLUB.grow(CLUB.chain(fragment), *[(0, 1, 2, 3)] * 9) for fragment in range(10)]
    lie = answered(heads, other)
    assert isinstance(lie, HeadsAnswer)
    assert lie.heads == ()
    newcomer.hear(CLUB.ids[3], lie)
    newcomer.hear(LIAR, lie.model_copy(update={"heads": heads_at(other, heads.version)}))
    assert newcomer.refused == {CLUB.ids[3], LIAR}
    newcomer.hear(HOLDER, answered(heads))
    [first, *_] = newcomer.questions()
    assert isinstance(first, TailAsk)
    tail = answered(first)
    assert isinstance(tail, TailAnswer)
    newcomer.hear(LIAR, tail.model_copy(update={"certificates": other[0].after(1, 4)}))
    newcomer.hear(LIAR, tail.model_copy(update={"fragment": 9}))
    assert first in newcomer.questions()
    assert not newcomer.done
    newcomer.hear(HOLDER, tail)
    assert first not in newcomer.questions()
    newcomer.hear(HOLDER, tail)  # hearing it twice is no fault
    assert HOLDER not in newcomer.refused


def test_questions_that_make_no_sense_are_answered_with_nothing() -> None:
    digest = digest_of(b"nobody's")
    assert answered(HeadsAsk(version=2**53, digest=digest)) == HeadsAnswer(digest=digest, heads=())
    for fragment, version in ((255, 1), (0, 2**53), (0, 0), (0, 3)):
        answer = answered(TailAsk(fragment=fragment, version=version, head=digest))
        assert answer == TailAnswer(fragment=fragment, head=digest, certificates=())


def test_an_invite_of_a_young_run_names_no_heads() -> None:
    young = fresh_invite(CLUB.manifest, (), [CLUB.chain(fragment) for fragment in range(10)])
    assert waypoint_of(young) is None
    assert (young.heads_digest, young.heads_version) == (None, None)
    assert waypoint_of(replace(INVITE, heads_version=None)) is None


# -- whole peers


async def long_run(folder: Path) -> Swarm:
    swarm = Swarm(config_of(), 2, folder, chain_kept=KEPT)
    await swarm.start()
    await swarm.train(64)
    assert all(chain.first_version > 0 for chain in swarm.peers[0].driver.engine.chains)
    return swarm


def invite_of(peer: Peer) -> Invite:
    machines = peer.driver.engine.machines
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{peer.identity.peer_id}"
    return fresh_invite(peer.driver.engine.core.manifest, (address,), [one.held_chain for one in machines])


async def newcomer_of(swarm: Swarm) -> Peer:
    manifest = swarm.peers[0].driver.engine.core.manifest
    return await swarm.add(Identity(digest_of(b"newcomer")), manifest)


async def begin(swarm: Swarm, newcomer: Peer, invite: Invite) -> None:
    """Start a newcomer as a node does: first get the heads of the invite, then everything else."""
    driver = newcomer.driver
    await begin_at_invite(driver.engine, invite, driver.transport)
    await driver.transport.start(driver.on_frame, driver.on_gone)
    swarm.peers.append(newcomer)


def in_swarm(main: Callable[[], Coroutine[None, None, None]]) -> None:
    run_virtual(main())


def test_a_newcomer_joins_a_run_whose_beginning_nobody_keeps(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = await long_run(tmp_path)
        newcomer = await newcomer_of(swarm)
        await begin(swarm, newcomer, invite_of(swarm.peers[1]))
        begun = min(newcomer.versions)
        assert begun > KEPT
        await swarm.train(40)
        heads = {peer.driver.engine.heads() for peer in swarm.peers}
        assert len(heads) == 1
        assert min(newcomer.versions) > begun + 4
        for machine in newcomer.driver.engine.machines:
            assert newcomer.identity.peer_id in machine.chain.active_set()
            assert newcomer.driver.anchors.digest(machine.index) == machine.chain.state
        # and its own invites work for others
        assert waypoint_of(invite_of(newcomer)) is not None
        await swarm.close()

    in_swarm(main)


def test_heads_that_nobody_keeps_are_refused_in_one_sentence_and_no_heads_lead_nowhere(tmp_path: Path) -> None:
    """A lineage without the invite's heads could have been forged with old keys."""

    async def main() -> None:
        swarm = await long_run(tmp_path)
        newcomer, invite = await newcomer_of(swarm), invite_of(swarm.peers[0])
        asked_at = asyncio.get_running_loop().time()
        with pytest.raises(NetworkError, match="gone on too far since this invite was made; ask for a fresh invite"):
            await begin(swarm, newcomer, replace(invite, heads_digest=digest_of(b"other")))
        assert asyncio.get_running_loop().time() < asked_at + 1.0, "whoever is named has answered, so there is no wait"
        assert newcomer.versions == [0, 0]
        await begin(swarm, newcomer, replace(invite, heads_digest=None, heads_version=None))
        await swarm.train(20)
        assert newcomer.versions == [0, 0]
        assert newcomer.driver.counters.events["out_of_reach"] == 2
        assert newcomer.driver.engine.fork_choice.out_of_reach({peer.identity.peer_id for peer in swarm.peers[:2]})
        await swarm.close()

    in_swarm(main)

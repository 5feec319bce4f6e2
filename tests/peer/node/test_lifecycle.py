"""The states that a peer announces, and the reasons it gives for doing nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from coordinator.core.events import PresenceSeen
from coordinator.engine.engine import Engine
from coordinator.views.snapshot import PeerSnapshot
from coordinator.wire.presence import State
from dht.statement import digest_of
from peer.learner.work_counters import LearnerProgress
from peer.machine.pause_policy import Conditions, Pause
from peer.net.presence_loop import PresenceLoop
from peer.node.lifecycle import (
    AGREEMENT_LIFETIMES,
    ALONE_SECONDS,
    BY_HAND,
    ROUNDS_OF_PRESENCE_MIN,
    STRANGERS_LIFETIMES,
    Lifecycle,
)
from peer.node.status import lack_of_company, lack_of_founders, note_of, peer_snapshot, swarm_loss
from peer.rounds.stale_work import StaleWork
from tests.coordinator.builders import PACE, Club
from tests.coordinator.builders import presence as presence_of
from tests.coordinator.rigs import PEERS, chain_of, core, grown, presence
from tests.peer.rounds.test_driver import Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual

LOOK_SECONDS = 0.2
ROUND_SECONDS = config_of().pace.round_seconds
LIFETIME_SECONDS = config_of().pace.presence_lifetime_seconds


def lifecycle_of(peer: Peer) -> Lifecycle:
    nobody: Any = None
    daemon: Any = SimpleNamespace(peer_id=peer.driver.engine.core.me)
    return Lifecycle(peer.driver, PresenceLoop(nobody, daemon, digest_of(b"run"), peer.presence, nobody), "training")


def a_learner() -> Any:
    return SimpleNamespace(pause=lambda: None, resume=lambda: None)


async def over(lifecycle: Lifecycle, peer: Peer) -> float:
    """Wait until the lifecycle's stage is over; return the seconds that it took."""
    since = peer.driver.now
    while not lifecycle.advance(peer.driver.now):  # noqa: ASYNC110 - as `peer.node.node` asks it
        await asyncio.sleep(LOOK_SECONDS)
    return peer.driver.now - since


def see(ours: Peer, other: Peer, state: State, beat: int = 0) -> None:
    """Let our peer receive the other's presence, with this state."""
    said = other.presence().model_copy(update={"state": state, "beat": beat})
    ours.driver.feed(PresenceSeen(other.identity.peer_id, said))


def test_every_pause_says_why() -> None:
    lifecycle = Lifecycle(None, None, "training")  # type: ignore[arg-type]
    assert lifecycle.reason == ""
    lifecycle.wanted_paused = True
    assert lifecycle.reason == "", "it is obeyed at the end of a step"
    lifecycle.state = "paused"
    assert lifecycle.reason == BY_HAND
    lifecycle._policy_pause = Pause("on battery", silent=False)
    assert lifecycle.reason == "on battery"


def test_a_start_says_what_it_waits_for() -> None:
    lifecycle = Lifecycle(None, None, "starting")  # type: ignore[arg-type]
    assert lifecycle.reason == "the learner starts"
    lifecycle.learner = a_learner()
    assert lifecycle.reason == "looks who else is there"


def starting_among(versions: Mapping[int, int], known: int, seconds: float) -> str:
    """Return the state of a peer, its own chains at version 0, after some seconds in which it hears others.

    `versions` are those of the others by number; the first `known` of them are founders.
    """
    club = Club.of(8, founders=known + 1)
    engine = Engine(club.core(0), [club.chain(0), club.chain(1)], [0, 0], 0.0)
    driver: Any = SimpleNamespace(engine=engine, local_work=StaleWork(2, 4), now=0.0)
    looks: Any = SimpleNamespace(rounds=ROUNDS_OF_PRESENCE_MIN, hurry=lambda: None)
    lifecycle = Lifecycle(driver, looks, "starting")
    lifecycle.learner = a_learner()
    now = 0.0
    while now <= seconds and lifecycle.state != "training":
        for number, version in versions.items():
            said = presence_of(number, beat=int(now), versions=(version, version))
            engine.handle(PresenceSeen(club.ids[number], said), now)
        lifecycle.advance(now)
        now += 1.0
    return lifecycle.state


SHORT, LONG = 2.0, 2 * STRANGERS_LIFETIMES * PACE.presence_lifetime_seconds


def test_a_starting_peer_waits_for_versions_of_which_enough_known_peers_speak() -> None:
    assert starting_among({1: 0, 2: 0, 3: 9, 4: 9}, known=4, seconds=LONG) == "catching up"
    assert starting_among({1: 9, 2: 9, 3: 0}, known=3, seconds=LONG) == "catching up"
    assert starting_among({1: 9}, known=1, seconds=LONG) == "catching up"
    assert starting_among({1: 1, 2: 1, 3: 1, 4: 1}, known=4, seconds=SHORT) == "training", (
        "one behind is what rounds are"
    )


def test_fewer_than_a_third_or_strangers_keep_no_peer_from_training() -> None:
    assert starting_among({1: 0, 2: 0, 3: 10**9}, known=3, seconds=SHORT) == "training", "one of four"
    assert starting_among({1: 10**9}, known=3, seconds=SHORT) == "training", "the only one of them that is here"
    assert starting_among({n: 10**9 if n > 4 else 0 for n in range(1, 7)}, known=6, seconds=SHORT) == "training"
    assert starting_among({1: 0, 5: 10**9, 6: 10**9, 7: 10**9}, known=4, seconds=SHORT) == "training"


def test_strangers_are_believed_for_a_while_where_nobody_known_is_there() -> None:
    assert starting_among({5: 9, 6: 9}, known=4, seconds=SHORT) == "catching up"
    assert starting_among({5: 10**9, 6: 10**9}, known=4, seconds=LONG) == "training"


def test_a_learner_that_is_alone_says_for_whom_it_waits() -> None:
    one = core()
    assert lack_of_company(one, 0.0) == "waits for others: 1 of at least 2 learners"
    one.presence.see(PEERS[1], presence(), 0.0)
    assert lack_of_company(one, 0.0) == ""
    assert lack_of_company(one, 1e6) != "", "that one is long gone"
    one.contributes = False
    assert lack_of_company(one, 1e6) == ""


def test_a_run_whose_founders_are_away_says_that_it_cannot_begin() -> None:
    one = core(me=1, founders=PEERS[:1])
    begun = grown(chain_of(one), 1, PEERS[:2])
    assert "waits for the run's host" in lack_of_founders(one, [begun, chain_of(one)], 0.0)
    assert lack_of_founders(one, [begun], 0.0) == "", "later versions need no founder"
    one.presence.see(PEERS[2], presence(), 0.0)
    assert "waits for the run's host" in lack_of_founders(one, [chain_of(one)], 0.0)
    one.presence.see(PEERS[0], presence(), 0.0)
    assert lack_of_founders(one, [chain_of(one)], 0.0) == ""
    assert lack_of_founders(core(me=0, founders=PEERS[:1]), [chain_of(one)], 0.0) == ""


def test_an_asker_is_told_for_whom_a_run_waits(tmp_path: Path) -> None:
    async def main() -> str:
        swarm = Swarm(config_of(), 2, tmp_path)
        await swarm.start()
        driver = swarm.peers[0].driver
        driver.engine.core.manifest = driver.engine.core.manifest.model_copy(update={"founders": (PEERS[9],)})
        note = note_of("", driver)
        await swarm.close()
        return note

    assert "waits for the run's host" in run_virtual(main())


def test_a_finished_peer_waits_for_no_other(tmp_path: Path) -> None:
    async def main() -> list[str]:
        swarm = Swarm(config_of(), 1, tmp_path)
        await swarm.start()
        driver, progress = swarm.peers[0].driver, LearnerProgress()
        driver.engine.core.manifest = driver.engine.core.manifest.model_copy(update={"founders": (PEERS[9],)})
        base = PeerSnapshot(peer_id="me", run_id="", name="", role="learner", state="training", pid=0, wall_seconds=0.0)
        states = (base, base.model_copy(update={"state": "finished"}))
        notes = [peer_snapshot(one, driver, progress, Conditions(), driver.now).note for one in states]
        await swarm.close()
        return notes

    training, finished = run_virtual(main())
    assert "waits for the run's host" in training
    assert finished == ""


def test_the_loss_of_the_swarm_is_the_median_of_what_learners_say() -> None:
    table = core().presence
    assert swarm_loss(table, None, 0.0) is None
    assert swarm_loss(table, 3.0, 0.0) == 3.0
    for peer, loss in zip(PEERS[1:4], (1.0, 2.0, None), strict=True):
        table.see(peer, presence().model_copy(update={"loss": loss}), 0.0)
    assert swarm_loss(table, 3.0, 0.0) == 2.0
    assert swarm_loss(table, None, 0.0) == 1.5


def test_a_peer_opens_no_round_once_the_run_has_all_its_versions(tmp_path: Path) -> None:
    """This holds at once, not only at the next look, because rounds in flight may still end then."""
    goal = 6

    async def main() -> list[int]:
        swarm = Swarm(config_of(versions=goal), 3, tmp_path)
        await swarm.start()
        for peer in swarm.peers:
            peer.driver.certified = lifecycle_of(peer).drain_at_goal
        await swarm.train(60)
        reached = [sum(peer.versions) for peer in swarm.peers]
        assert all(peer.driver.engine.core.draining for peer in swarm.peers)
        await swarm.close()
        return reached

    for versions in run_virtual(main()):
        assert goal <= versions <= goal + config_of().pace.overlap


def test_a_peer_that_leaves_a_run_that_goes_on_ends_with_its_rounds(tmp_path: Path) -> None:
    """It waits for no agreement, because the others continue."""

    async def main() -> None:
        swarm = Swarm(config_of(), 3, tmp_path)
        await swarm.start()
        ours, theirs = swarm.peers[0], swarm.peers[1]
        training = asyncio.get_running_loop().create_task(swarm.train(30))
        while not ours.driver.engine.in_flight:  # noqa: ASYNC110 - the pump tells nobody
            await asyncio.sleep(0.01)
        lifecycle = lifecycle_of(ours)
        lifecycle.leave()
        assert not lifecycle.advance(ours.driver.now), "a round is in flight"
        seconds = await over(lifecycle, ours)
        assert not ours.driver.engine.in_flight
        assert lifecycle.state == "draining"
        assert seconds < ROUND_SECONDS
        versions = sum(theirs.versions)
        await training
        assert sum(theirs.versions) > versions
        await swarm.close()

    run_virtual(main())


def test_where_all_leave_each_waits_for_the_others_to_hold_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        swarm = Swarm(config_of(), 2, tmp_path)
        await swarm.start()
        ours, other = swarm.peers
        lifecycle = lifecycle_of(ours)
        lifecycle.leave()
        ahead = other.presence().model_copy(update={"state": "draining", "versions": (1, 0), "beat": 1})
        ours.driver.feed(PresenceSeen(other.identity.peer_id, ahead))
        assert not lifecycle.advance(ours.driver.now)
        assert lifecycle.reason == "waits until the others hold the same versions"
        await asyncio.sleep(LOOK_SECONDS)
        see(ours, other, "draining", beat=2)
        assert lifecycle.advance(ours.driver.now)
        assert lifecycle.reason == "", "it waits for nothing any more"
        await swarm.close()

    run_virtual(main())


def test_a_leaving_peer_waits_for_a_rounds_deadline_at_most(tmp_path: Path) -> None:
    """It waits no longer for an agreement that does not come, nor for a round that does not end."""

    async def main() -> tuple[float, float]:
        swarm = Swarm(config_of(min_group=2, quorum=2, presence_lifetime_seconds=40.0), 2, tmp_path)
        await swarm.start()
        ours, other = swarm.peers
        apart = lifecycle_of(ours)
        ahead = other.presence().model_copy(update={"state": "draining", "versions": (1, 0), "beat": 1})
        ours.driver.feed(PresenceSeen(other.identity.peer_id, ahead))
        apart.leave()
        disagreed = await over(apart, ours)

        see(other, ours, "training")
        stuck = lifecycle_of(other)
        other.driver.engine.machines[0].rounds.joining.since = 1e9  # it does not give up
        stuck.leave()
        in_flight = await over(stuck, other)
        await swarm.close()
        return disagreed, in_flight

    for seconds in run_virtual(main()):
        assert ROUND_SECONDS <= seconds <= ROUND_SECONDS + 2 * LOOK_SECONDS


def test_a_peer_that_leaves_alone_waits_for_no_round(tmp_path: Path) -> None:
    """Before, a host waited for the deadlines of rounds that it had opened alone."""

    async def main() -> tuple[float, float, bool]:
        swarm = Swarm(config_of(min_group=2, quorum=2, presence_lifetime_seconds=40.0), 2, tmp_path)
        await swarm.start()
        ours, other = swarm.peers
        lifecycle = lifecycle_of(ours)
        see(ours, other, "training")
        ours.driver.engine.machines[0].rounds.joining.since = 1e9  # it does not give up
        lifecycle.leave()
        presence = ours.driver.engine.core.presence
        presence.lose(other.identity.peer_id)
        lifecycle.advance(ours.driver.now)
        presence.heard(other.identity.peer_id)  # it was lost for a moment only
        await asyncio.sleep(ALONE_SECONDS)
        waits = not lifecycle.advance(ours.driver.now)
        presence.lose(other.identity.peer_id)
        gone = await over(lifecycle, ours)

        resting = lifecycle_of(other)
        see(other, ours, "draining")  # a draining peer invites nobody into a round
        other.driver.engine.machines[0].rounds.joining.since = 1e9
        resting.leave()
        at_rest = await over(resting, other)
        await swarm.close()
        return gone, at_rest, waits

    *found, waits = run_virtual(main())
    assert waits
    for seconds in found:
        assert ALONE_SECONDS <= seconds <= ALONE_SECONDS + 2 * LOOK_SECONDS < ROUND_SECONDS / 2


def test_at_the_end_of_a_run_nobody_leaves_before_the_others_hold_it(tmp_path: Path) -> None:
    async def main() -> tuple[float, float]:
        swarm = Swarm(config_of(versions=2), 2, tmp_path)
        await swarm.start()
        await swarm.train(12)
        ours, other = swarm.peers
        assert sum(ours.versions) >= 2
        lifecycle = lifecycle_of(ours)
        lifecycle.advance(ours.driver.now)
        other.driver.engine.drain()
        await asyncio.sleep(ROUND_SECONDS)
        see(ours, other, "training", beat=1)
        assert not lifecycle.advance(ours.driver.now), "the other one does not say yet that it is over for it, too"
        see(ours, other, "draining", beat=2)
        assert lifecycle.advance(ours.driver.now)
        late = lifecycle_of(ours)
        silent = other.presence().model_copy(update={"state": "training", "beat": 3})

        async def say() -> None:
            for beat in range(3, 1000):
                ours.driver.feed(PresenceSeen(other.identity.peer_id, silent.model_copy(update={"beat": beat})))
                await asyncio.sleep(1.0)

        saying = asyncio.get_running_loop().create_task(say())
        await asyncio.sleep(LOOK_SECONDS)
        seconds = await over(late, ours)
        hasty = lifecycle_of(ours)
        hasty.leave()
        at_once = await over(hasty, ours)
        saying.cancel()
        await swarm.close()
        return seconds, at_once

    seconds, at_once = run_virtual(main())
    assert AGREEMENT_LIFETIMES * LIFETIME_SECONDS <= seconds <= AGREEMENT_LIFETIMES * LIFETIME_SECONDS + 1
    assert at_once == 0.0

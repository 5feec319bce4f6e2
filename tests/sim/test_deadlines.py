"""All members of a group wait equally long, however many void groups each of them has seen (design §6.2)."""

from __future__ import annotations

from collections import defaultdict

import pytest

from coordinator.core.actions import Action, Encode
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from tests.extra import extra
from tests.sim.worlds import LINKS, PACE, SLOW, Drop, machine, run_to_version, statement_of, swarm, version


@pytest.mark.parametrize("seed", [0, *extra(range(1, 12))])
@pytest.mark.parametrize("links", [LINKS, SLOW])
def test_members_with_other_counts_have_one_deadline(links: LinkFaults, seed: int) -> None:
    world = swarm(4, seed=seed, links=links)
    run_to_version(world, 2, 60.0)
    deadlines: dict[bytes, set[float]] = defaultdict(set)

    def note(peer: VirtualPeer, action: Action) -> None:
        if isinstance(action, Encode):
            attempt = machine(peer).rounds.find(action.key.roster_id)
            assert attempt is not None
            deadlines[action.key.roster_id].add(attempt.timeline.deadline_seconds)

    world.listener = note
    world.network.filter = Drop(lambda sender, to, message: statement_of(message, "commit"))
    world.run(6 * PACE.round_seconds)
    world.peers[3].checkpoint()
    world.crash(world.peers[3])
    world.peers[3].start()  # since this restart it has seen no void group
    counts = {machine(peer).rounds.joining.failures for peer in world.peers}
    assert len(counts) > 1, f"seed {seed}"
    world.network.filter = None
    run_to_version(world, version(world.peers[0]) + 4, 200.0)
    assert len(deadlines) >= 4
    assert all(len(found) == 1 for found in deadlines.values()), f"seed {seed}: {dict(deadlines)}"
    assert max(max(found) for found in deadlines.values()) > PACE.round_seconds, (
        f"seed {seed}: nobody had to wait longer"
    )
    world.settle(200.0)

"""Where a peer stands in its run: pure questions to the protocol core, asked by `peer.node` a few times a second."""

from __future__ import annotations

from coordinator.engine import Engine
from coordinator.presence import Presence


def live_presences(engine: Engine, now: float) -> list[Presence]:
    """What everybody live says of itself."""
    table = engine.core.presence
    return [table.sightings[peer].presence for peer in table.live(now)]


def lagging_fragments(engine: Engine, now: float) -> set[int]:
    """Fragments of which we hold less than others do; being one version behind is what rounds look like."""
    others = live_presences(engine, now)
    lagging = set()
    for machine in engine.machines:
        index = machine.index
        newest = max((other.versions[index] for other in others if index < len(other.versions)), default=0)
        if not machine.ready or newest > machine.chain.version + 1:
            lagging.add(index)
    return lagging


def in_round(engine: Engine) -> bool:
    """Whether a group that we belong to may still certify."""
    return any(machine.attempt is not None for machine in engine.machines)


def everyone_agrees(engine: Engine, now: float) -> bool:
    """Whether every live peer holds the versions that we hold and opens no more rounds."""
    heads = engine.heads()
    return all(machine.ready for machine in engine.machines) and all(
        (other.versions, other.heads) == heads and other.state in ("draining", "hosting")
        for other in live_presences(engine, now)
    )


def versions_certified(engine: Engine) -> int:
    """Versions over all fragments."""
    return sum(machine.chain.version for machine in engine.machines)

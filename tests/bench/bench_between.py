"""Times a peer's work besides arithmetic: `python tests/bench/bench_between.py`; prints one JSON object.

`event_microseconds` is the time of an event that changes nothing, at a peer with so many fragments, one of which is in
a round. `peer.rounds.driver` handles it, with the timer after it. `look` is one turn of presence: one peer of five
reads the others' records and writes its own. It counts calls of other peers, and milliseconds of CPU time in Python, on
both sides, and in the libp2p daemons. All are the least of several, and on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
import timeit
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.core.events import Progress
from coordinator.run.manifest import PaceSpec
from coordinator.views.round_traces import RoundTraces
from dht.daemon.config import DaemonConfig
from dht.identity import Identity, KeyVerifier
from dht.node import DhtNode
from dht.records import presence_key
from dht.validation import RecordRules
from peer.learner.ranks.first_rank import cpu_seconds_of
from peer.rounds.counters import RunCounters
from tests.sim.worlds import STEPS_PER_SECOND, run_until, swarm

FRAGMENTS = (1, 8, 32)
EVENTS, REPEATS = 300, 15
NODES, LOOKS, TURNS = 5, 4, 5
RUN_ID = bytes(32)
PAYLOAD_BYTES = 600


def event_microseconds(fragments: int) -> float:
    """Return the microseconds of an event at a learner, in a swarm of four learners and a host."""
    pace = PaceSpec(fragments=fragments, steps_per_version=24, overlap=2, quorum=3, min_group=2, round_seconds=8.0)
    world = swarm(5, pace, founders=range(4), witnesses=[4])
    peer = world.peers[0]
    engine = peer.engine
    assert engine is not None
    run_until(world, lambda: all(one.chain.version > 1 for one in engine.machines) and engine.in_flight == 1, 3600)
    counters, traces, now = RunCounters(fragments), RoundTraces(engine), world.clock.now
    steps = peer.tensors.learner.steps(now)

    def event() -> None:
        actions = engine.handle(Progress(steps, STEPS_PER_SECOND), now)
        traces.follow(actions, now)
        counters.follow(engine.machines)
        engine.next_deadline(now)

    return 1e6 * min(timeit.repeat(event, number=EVENTS, repeat=REPEATS)) / EVENTS


async def look() -> dict[str, float]:
    """Measure one turn of the presence loop, of each node in turn."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = await _nodes(Path(folder))
        calls = [0]
        for node in nodes:
            _count_calls(node, calls)
        await _all_look(nodes)
        turns = [await _turn(nodes, calls) for _ in range(TURNS)]
        for node in nodes:
            await node.close()
    return {name: min(turn[name] for turn in turns) for name in turns[0]}


async def _nodes(folder: Path) -> list[DhtNode]:
    nodes: list[DhtNode] = []
    for number in range(NODES):
        path = folder / str(number)
        Identity(os.urandom(32)).save(path)
        known = await nodes[0].daemon.visible_addresses() if nodes else ()
        config = DaemonConfig(path, initial_peers=known[:1], runtime_parent=folder)
        nodes.append(await DhtNode.start(config, RecordRules(RUN_ID, KeyVerifier()), time.time))
    return nodes


def _count_calls(node: DhtNode, calls: list[int]) -> None:
    protocol = node.store._protocol
    for name in ("call_find", "call_store"):
        call = getattr(protocol, name)

        async def counted(*args: object, call: object = call) -> object:
            calls[0] += 1
            return await call(*args)  # type: ignore[operator]

        setattr(protocol, name, counted)


async def _all_look(nodes: Sequence[DhtNode]) -> None:
    for node in nodes:
        await node.store.get(presence_key(RUN_ID))
        await node.daemon.hosts()
        await node.store.put(presence_key(RUN_ID), bytes(PAYLOAD_BYTES), 30)


async def _turn(nodes: Sequence[DhtNode], calls: list[int]) -> dict[str, float]:
    def now() -> tuple[float, float, float]:
        daemons = sum(cpu_seconds_of(node.daemon.pid) for node in nodes if node.daemon.pid is not None)
        return calls[0], 1e3 * time.process_time(), 1e3 * daemons

    before = now()
    for _ in range(LOOKS):
        await _all_look(nodes)
    found = [(after - began) / (LOOKS * NODES) for after, began in zip(now(), before, strict=True)]
    return dict(zip(("calls", "python_milliseconds", "daemons_milliseconds"), found, strict=True))


def main() -> None:
    events = {fragments: round(event_microseconds(fragments), 1) for fragments in FRAGMENTS}
    found = {name: round(value, 2) for name, value in asyncio.run(look()).items()}
    print(json.dumps({"event_microseconds": events, "look": found}))


if __name__ == "__main__":
    main()

"""`python -m tests.real.light.house PARENT FOLDER FOUNDER,… NAME…`: runs light peers, each a node, in one process.

The peer named `host` is the run's host and prints its invite; others read the invite from standard input. They pause
until the next line there. Events are printed as JSON lines. The process ends with the run, when all peers have left on
SIGTERM, or with PARENT.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Adopt, Included, IncludedUnseen
from coordinator.run.manifest import RunConfig
from dht.errors import MusterError
from dht.identity import PeerId
from peer.learner.process import die_with_parent
from peer.learner.spawn import LearnerSpawn
from peer.machine import log
from peer.machine.limits import Limits
from peer.node.node import Node
from peer.node.options import NodeOptions
from peer.rounds.tape_recorder import TapeRecorder
from peer.service.descriptors import allow_more_descriptors
from peer.service.retry import retry_join
from tests.real.light.stand_in import StandInEnd
from tests.real.light.town import HOST, log_folder

STEP_SECONDS = 1.0
LOOK_SECONDS = 0.05
LIMITS = Limits(pause_on_battery=False, pause_for_gpu_programs=False)


def say(event: str, **details: object) -> None:
    """Print one event as a line, at once."""
    sys.stdout.write(json.dumps({"event": event, **details}) + "\n")
    sys.stdout.flush()


class Witness(TapeRecorder):
    """Prints the contents of every version that its peer adopts."""

    def __init__(self, name: str) -> None:
        super().__init__(PeerId(name))
        self._adopted: dict[int, int] = {}  # newest version by fragment

    def version(self, certificate: Certificate) -> None:
        outcome = certificate.outcome
        included = outcome.included()
        say(
            "version",
            name=self._peer,
            fragment=certificate.fragment,
            version=certificate.version,
            digest=certificate.digest.hex(),
            minor=outcome.minor,
            roster=outcome.roster,
            heads=[one.peer for one in included if one.cell is not None],
            steps=sum(one.steps for one in included),
        )

    def adoption(self, action: Adopt, step: int, dropped: bool) -> None:
        ours, fragment, version = action.ours, action.certificate.fragment, action.certificate.version
        before = self._adopted.get(fragment, 0)
        self._adopted[fragment] = version
        worked = isinstance(ours, IncludedUnseen) or (isinstance(ours, Included) and any(ours.counted))
        # a peer that adopts several versions at once does not tell which of them has the work
        say("adopted", name=self._peer, fragment=fragment, version=version, worked=worked and version == before + 1)


class House:
    """One process and its peers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, Node] = {}
        self._led: set[tuple[str, int, int]] = set()

    async def open(self, names: list[str], founders: tuple[str, ...]) -> None:
        """Start the peers one after the other; raises MusterError."""
        invite = ""
        for name in names:
            options = NodeOptions(self.folder / name, name=name, step_seconds=STEP_SECONDS, limits=LIMITS)
            if name == HOST:
                config = RunConfig.from_toml(self.folder / "run.toml")
                self._take(name, await Node.host(config, replace(options, founders=founders)))
                invite = self.nodes[name].invite()
                say("invite", invite=invite)
                continue
            invite = invite or (await asyncio.to_thread(sys.stdin.readline)).strip()
            self._take(name, await joined(invite, options))
            await self.nodes[name].pause()
            say("joined", name=name, peer=self.nodes[name].identity.peer_id)

    def _take(self, name: str, node: Node) -> None:
        node._parts.driver.tape = Witness(name)
        self.nodes[name] = node

    def leave(self) -> None:
        """Let all peers take part in no further rounds, as a peer does on a signal."""
        for node in self.nodes.values():
            node.drain()

    async def live(self) -> None:
        """Run the peers until the run is over for all, or they are told to leave."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave)
        looking = asyncio.create_task(self._look())
        if HOST not in self.nodes:
            await asyncio.to_thread(sys.stdin.readline)
        for node in self.nodes.values():
            await node.resume()
        await asyncio.gather(*(node.wait() for node in self.nodes.values()))
        looking.cancel()
        await asyncio.gather(*(node.save_last() for node in self.nodes.values()))
        for name, node in self.nodes.items():
            last = await node.final_snapshot()
            say(
                "end",
                name=name,
                versions=[one.held_version for one in last.fragments],
                digests=last.digests_from_tensors,
                events=last.events,
                sent=last.bytes_sent,
                answered=node._parts.joined.network.dht.store.answered_bytes,
                received=last.bytes_received,
            )

    async def _look(self) -> None:
        """Print an event when one of our peers begins to lead a cell."""
        while True:
            for name, node in self.nodes.items():
                for machine in node._parts.driver.engine.machines:
                    cell, place = machine.cells.leading, (name, machine.index, machine.chain.version)
                    if cell is not None and not cell.over and place not in self._led:
                        self._led.add(place)
                        say(
                            "leads", name=name, fragment=place[1], version=place[2] + 1, members=len(cell.group.members)
                        )
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))


async def joined(invite: str, options: NodeOptions) -> Node:
    """Join as `muster join` does, again if no peer answers in time; raises MusterError."""

    async def join() -> Node:
        learner = StandInEnd.begin()
        try:  # any process or thread at the other end of that socket will do
            return await Node.join(invite, replace(options, spawned=cast(LearnerSpawn, learner)))
        except BaseException:
            learner.kill()
            raise

    return await retry_join(join, lambda words: say("waits", name=options.name, words=words))


async def main(folder: Path, names: list[str], founders: tuple[str, ...]) -> None:
    house = House(folder)
    try:
        await house.open(names, founders)
        await house.live()
    finally:
        await house.close()


def arguments() -> dict[str, Any]:
    parent, folder, founders, *names = sys.argv[1:]
    die_with_parent(int(parent))
    return {"folder": Path(folder), "names": names, "founders": tuple(filter(None, founders.split(",")))}


if __name__ == "__main__":
    given = arguments()
    allow_more_descriptors()
    log.configure(log_folder(given["folder"], given["names"][0]))
    try:
        asyncio.run(main(**given))
    except MusterError as error:
        sys.exit(str(error))

"""The host and peers of a docker-compose swarm, with faults for the containers and their network.

Chaos runs beside them, in the engine's own network, where the other ends of their cables are (docker-compose.yml).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dht.errors import LocalError, UsageError
from peer.chaos.engine import ContainerEngine
from peer.chaos.executor import LinkFault
from peer.chaos.plan import HOST, Event, name_of
from peer.chaos.user_link import UserLink

NETWORK = "public"  # of the project, shared by all containers
DATA = "/data/muster"  # in each container; a peer has a link there, to a folder of the shared volume
LABEL = "com.docker.compose"


@dataclass(frozen=True, slots=True)
class Container:
    """A container of the swarm; `service` is its name in the file, by which others find it."""

    id: str
    service: str


class Containers:
    """A `FaultInjector` whose targets are names of processes: `host`, `peer-1` …, numbered as docker-compose does."""

    def __init__(self, engine: ContainerEngine, beside: str) -> None:
        """`beside` is any container of the swarm; raises UsageError if there is no such swarm."""
        self._engine = engine
        labels = engine.get(f"/containers/{beside}/json")["Config"]["Labels"]
        if f"{LABEL}.project" not in labels:
            raise UsageError(f"the container {beside} belongs to no docker-compose project")
        self.project: str = labels[f"{LABEL}.project"]
        self._of = self._find()
        if HOST not in self._of or len(self._of) == 1:
            raise UsageError(f"the docker-compose project {self.project} has no host and peers that run")
        self._down: set[str] = set()  # containers paused or killed by this run, and not brought back yet
        self._islands: dict[str, str] = {}  # networks of this run's partitions, by name
        self._side_of: dict[str, str] = {}
        self._links: dict[str, tuple[LinkFault, UserLink]] = {}
        self._data: dict[str, Path] = {}

    @property
    def peers(self) -> int:
        """Number of peers, without the host."""
        return len(self._of) - 1

    def _find(self) -> dict[str, Container]:
        found = {}
        own = [f"{LABEL}.project={self.project}", f"{LABEL}.container-number"]  # images add labels as well
        for one in self._engine.get("/containers/json", filters={"label": own}):
            labels = one["Labels"]
            service, number = labels[f"{LABEL}.service"], int(labels[f"{LABEL}.container-number"])
            if service in (HOST, "peer"):
                found[HOST if service == HOST else name_of(number)] = Container(one["Id"], service)
        return found

    # -- states of containers

    def exit_code(self, name: str) -> int | None:
        """Return the exit code, None while the container runs."""
        state = self._state(name)
        return None if state["Running"] else int(state["ExitCode"])

    def data_directory(self, name: str) -> Path:
        """Return the folder of its control socket, which may differ after a restart."""
        if name not in self._data:
            self._data[name] = Path(self._engine.run(self._of[name].id, "readlink", "-e", DATA))
        return self._data[name]

    def restart(self, name: str) -> None:
        """Start the container again, with its bad link if it has one: each life has another cable."""
        self._data.pop(name, None)
        shaped, _ = self._links.get(name, (LinkFault(), None))
        self.shape(name, LinkFault())
        self._engine.post(f"/containers/{self._of[name].id}/start")
        self._down.discard(name)
        self.shape(name, shaped)

    def close(self) -> None:
        """Undo all changes, even if some of that fails; raises LocalError with every failure."""
        down = sorted(self._down)
        undoing: list[Callable[[], None]] = [
            *(partial(self.shape, name, LinkFault()) for name in self._links),
            *(partial(self._wake, name) for name in down),
            *(partial(self._move, name, self._home) for name in self._of),
            self._remove_islands,
            *(partial(self._revive, name) for name in down),
        ]
        failures = [failure for undo in undoing if (failure := _failure(undo))]
        if failures:
            raise LocalError(f"not everything is as it was before: {'; '.join(failures)}")

    def _wake(self, name: str) -> None:
        if self._state(name)["Paused"]:
            self.resume(name)

    def _revive(self, name: str) -> None:
        if not self._state(name)["Running"]:
            self.restart(name)

    def _state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = self._engine.get(f"/containers/{self._of[name].id}/json")["State"]
        return state

    # -- faults

    def refusal(self, event: Event) -> str | None:
        if event.do in ("attacker", "honest"):
            return "nobody becomes hostile on the way; start such peers with --profile attackers"
        if event.do in ("clock_skew", "clock_right"):
            return "containers share the clock of their machine"
        if event.do in ("disk_full", "disk_free"):
            return "containers share a disk that nobody may fill"
        if event.at_point is not None:
            return "no container was started with a fault point; give at_seconds"
        return None

    def kill(self, peer: str) -> None:
        self._down.add(peer)
        self._engine.post(f"/containers/{self._of[peer].id}/kill")

    def stop(self, peer: str) -> None:
        self._down.add(peer)
        self._engine.post(f"/containers/{self._of[peer].id}/pause")

    def resume(self, peer: str) -> None:
        self._engine.post(f"/containers/{self._of[peer].id}/unpause")
        self._down.discard(peer)

    def limit_disk(self, peer: str, full: bool) -> None:
        raise LocalError("containers share a disk that nobody may fill")

    def set_clock(self, peer: str, skew_seconds: float) -> None:
        raise LocalError("containers share the clock of their machine")

    def is_waiting(self, peer: str) -> bool:
        return False  # no container was started with a fault point

    def release(self, peer: str) -> None:
        raise LocalError(f"{peer} stands at no point")

    def partition(self, sides: Sequence[Collection[str]]) -> None:
        """Leave the first side where it is, and move each other side to a network of its own."""
        for name in self._of:
            side = next((index for index, side in enumerate(sides) if name in side), 0)
            self._move(name, self._island(side) if side else self._home)
        if not sides:
            self._remove_islands()

    def shape(self, name: str, link: LinkFault) -> None:
        """Shape the link with a process that passes on every frame of the container; a good link needs none."""
        _, process = self._links.pop(name, (None, None))
        if link == LinkFault():
            if process is not None:
                process.end()
            return
        if process is None:
            cable = self._cable(name)
            process = UserLink.start((sys.executable, "-m", "peer.chaos.link", cable, f"bad-{cable}"))
        process.shape(link)
        self._links[name] = link, process

    # -- the network

    @property
    def _home(self) -> str:
        return f"{self.project}_{NETWORK}"

    def _island(self, side: int) -> str:
        name = f"{self.project}_side{side}"
        if name not in self._islands:
            self._islands[name] = self._engine.post("/networks/create", {"Name": name})["Id"]
        return name

    def _remove_islands(self) -> None:
        for name, island in list(self._islands.items()):
            self._engine.delete(f"/networks/{island}")
            del self._islands[name]

    def _move(self, name: str, network: str) -> None:
        before = self._side_of.get(name, self._home)
        if before == network:
            return
        container = self._of[name]
        shaped, _ = self._links.get(name, (LinkFault(), None))
        self.shape(name, LinkFault())  # its cable goes away
        own_names = {"Container": container.id, "EndpointConfig": {"Aliases": [container.service]}}
        self._engine.post(f"/networks/{network}/connect", own_names)
        self._engine.post(f"/networks/{before}/disconnect", {"Container": container.id, "Force": True})
        self._side_of[name] = network
        self.shape(name, shaped)

    def _cable(self, name: str) -> str:
        """Return the interface number of the engine's end of the container's cable."""
        return self._engine.run(self._of[name].id, "sh", "-c", "cat /sys/class/net/eth*/iflink")


def _failure(undo: Callable[[], None]) -> str | None:
    """Return what went wrong; None if the change is undone."""
    try:
        undo()
    except LocalError as error:
        return str(error)
    return None

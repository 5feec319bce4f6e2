"""The requests of chaos to a container engine, over a real socket, and their order. tests/compose has a real engine."""

from __future__ import annotations

import asyncio
import json
import signal
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from coordinator.run.manifest import RunConfig
from dht.errors import LocalError, UsageError
from peer.chaos.container_swarm import ContainerOptions, ContainerSwarm
from peer.chaos.containers import Containers
from peer.chaos.engine import ContainerEngine
from peer.chaos.executor import LinkFault, refused
from peer.chaos.plan import Plan
from tests.impatient import Impatient
from tests.peer.chaos.builders import some

LABEL = "com.docker.compose"


class Engine:
    """A fake engine with one project. It records the changes that it is asked for, and refuses those in `refuses`."""

    def __init__(self, **services: int) -> None:
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self.down, self.paused = {"peer2"}, set[str]()
        self.refuses = set[str]()
        self.containers = [
            {
                "Id": f"{service}{number}",
                "Labels": {
                    f"{LABEL}.project": "ours",
                    f"{LABEL}.service": service,
                    f"{LABEL}.container-number": str(number),
                },
            }
            for service, count in services.items()
            for number in range(1, count + 1)
        ]

    def answer(self, method: str, place: str, body: dict[str, Any]) -> tuple[int, Any]:
        if place.startswith("/containers/json"):
            return 200, self.containers
        if place.startswith("/containers/") and place.endswith("/json"):
            name = place.split("/")[2]
            labels = next((one["Labels"] for one in self.containers if one["Id"] == name), {})
            state = {"Running": name not in self.down, "Paused": name in self.paused, "ExitCode": 137}
            return 200, {"Config": {"Labels": labels}, "State": state}
        if place.endswith("/exec"):
            return 409, {"message": "nothing runs in there"}
        if place in self.refuses:
            return 500, {"message": "no"}
        if place == "/networks/create":
            return 201, {"Id": f"id-{body['Name']}"}
        if place.startswith("/networks/nowhere"):
            return 404, {"message": "network nowhere not found"}
        self.changes.append((f"{method} {place}", body))
        self.note(*place.split("/")[-2:])
        return 204, None

    def note(self, name: str, change: str) -> None:
        where = {"kill": self.down, "start": self.down, "pause": self.paused, "unpause": self.paused}
        if change in where:
            (where[change].add if change in ("kill", "pause") else where[change].discard)(name)


@contextmanager
def served(engine: Engine, path: Path) -> Iterator[ContainerEngine]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = engine.answer(self.command, self.path, json.loads(body or b"{}"))
            self.send_response(status)
            self.end_headers()
            if answer is not None:
                self.wfile.write(json.dumps(answer).encode())

        do_POST = do_DELETE = do_GET

        def address_string(self) -> str:
            return "a socket without a name"

        def log_message(self, *_: Any) -> None: ...

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield ContainerEngine(path)
        finally:
            server.shutdown()
            thread.join()


def test_host_and_peers_are_found_by_their_labels(tmp_path: Path) -> None:
    engine = Engine(host=1, peer=3, dashboard=1)
    with served(engine, tmp_path / "socket") as client:
        place = Containers(client, "host1")
        assert (place.project, place.peers) == ("ours", 3)
        assert place.exit_code("peer-1") is None
        assert place.exit_code("peer-2") == 137
        place.kill("peer-3")
        place.stop("host")
        place.resume("host")
        place.restart("peer-3")
    asked = [place for place, _ in engine.changes]
    assert asked == [
        "POST /containers/peer3/kill",
        "POST /containers/host1/pause",
        "POST /containers/host1/unpause",
        "POST /containers/peer3/start",
    ]


def test_a_partition_moves_whoever_is_not_on_the_first_side_and_healing_moves_them_back(tmp_path: Path) -> None:
    engine = Engine(host=1, peer=3)
    with served(engine, tmp_path / "socket") as client:
        place = Containers(client, "peer1")
        place.partition([{"host", "peer-1"}, {"peer-2"}, {"peer-3"}])
        moves = [(asked, body["Container"]) for asked, body in engine.changes]
        assert moves == [
            ("POST /networks/ours_side1/connect", "peer2"),
            ("POST /networks/ours_public/disconnect", "peer2"),
            ("POST /networks/ours_side2/connect", "peer3"),
            ("POST /networks/ours_public/disconnect", "peer3"),
        ]
        engine.changes.clear()
        place.partition([{"peer-1"}, {"host", "peer-2"}])
        assert engine.changes[0] == (
            "POST /networks/ours_side1/connect",
            {"Container": "host1", "EndpointConfig": {"Aliases": ["host"]}},
        )
        assert [asked for asked, _ in engine.changes[2:]] == [
            "POST /networks/ours_public/connect",
            "POST /networks/ours_side2/disconnect",
        ]
        engine.changes.clear()
        place.close()
    assert [asked for asked, _ in engine.changes[-2:]] == [
        "DELETE /networks/id-ours_side1",
        "DELETE /networks/id-ours_side2",
    ]
    assert [body["Container"] for asked, body in engine.changes if asked.endswith("public/connect")] == [
        "host1",
        "peer2",
    ]


def test_the_end_brings_back_whoever_the_plan_still_holds(tmp_path: Path) -> None:
    engine = Engine(host=1, peer=5)
    with served(engine, tmp_path / "socket") as client:
        place = Containers(client, "host1")
        place.stop("peer-1")
        place.stop("peer-3")
        place.kill("peer-4")
        place.kill("peer-5")
        place.resume("peer-3")
        place.restart("peer-5")
        engine.paused.add("peer3")  # paused by another program
        engine.changes.clear()
        place.close()
        place.close()
    assert [asked for asked, _ in engine.changes] == [
        "POST /containers/peer1/unpause",
        "POST /containers/peer4/start",  # and not peer2, which was not ended here
    ]


def test_a_fault_that_cannot_be_undone_is_named_and_hinders_no_other(tmp_path: Path) -> None:
    engine = Engine(host=1, peer=4)
    with served(engine, tmp_path / "socket") as client:
        place = Containers(client, "host1")
        place.stop("peer-1")
        place.kill("peer-3")
        place.partition([{"host"}, {"peer-1", "peer-4"}])
        engine.changes.clear()
        engine.refuses = {"/containers/peer1/unpause", "/networks/ours_public/connect"}
        with pytest.raises(LocalError, match="not everything is as it was before") as failure:
            place.close()
    assert all(f"{one}: no" in str(failure.value) for one in engine.refuses)
    assert "POST /containers/peer3/start" in [asked for asked, _ in engine.changes]


@pytest.mark.parametrize(
    "numbers", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)]
)
def test_stopping_chaos_leaves_a_whole_swarm(numbers: tuple[signal.Signals, ...], tmp_path: Path) -> None:
    engine = Engine(host=1, peer=3)
    with served(engine, tmp_path / "socket") as client:
        place = Containers(client, "host1")
        place.stop("host")
        place.kill("peer-3")
        options = ContainerOptions(RunConfig(), 0.0, Plan.of(3, 60.0, ()))
        swarm = ContainerSwarm(options, place, Impatient(*numbers))
        with pytest.raises(LocalError, match="stopped, so there is no report"):
            asyncio.run(swarm.measure())
    assert (engine.paused, engine.down) == (set(), {"peer2"})


def test_peers_in_containers_come_to_no_point_and_that_is_said_before(tmp_path: Path) -> None:
    with served(Engine(host=1, peer=2), tmp_path / "socket") as client:
        place = Containers(client, "host1")
    events = [some("kill", at_point="vote"), some("heal", at_point="vote", at_peer=1), some("kill")]
    said = refused([*events, some("clock_skew", at_point="vote")], place)
    assert said.splitlines() == [
        "2 of this plan's 4 events (heal, kill) will not happen: no container was started with a fault point; "
        "give at_seconds",
        "1 of this plan's 4 events (clock_skew) will not happen: containers share the clock of their machine",
    ]


def test_containers_without_a_swarm_are_refused_in_words(tmp_path: Path) -> None:
    with served(Engine(host=1, peer=1), tmp_path / "one") as client, pytest.raises(UsageError, match="no docker-comp"):
        Containers(client, "stranger")
    with served(Engine(host=1), tmp_path / "two") as client, pytest.raises(UsageError, match="no host and peers"):
        Containers(client, "host1")
    with pytest.raises(LocalError, match="no container engine answers"):
        ContainerEngine(tmp_path / "nothing").get("/version")


def test_refusals_of_the_engine_are_told_in_its_words(tmp_path: Path) -> None:
    with served(Engine(host=1, peer=1), tmp_path / "socket") as client:
        with pytest.raises(LocalError, match="network nowhere not found"):
            client.post("/networks/nowhere/connect")
        place = Containers(client, "host1")
    assert "--profile attackers" in str(place.refusal(some("attacker")))
    assert "--profile attackers" in str(place.refusal(some("honest")))
    assert place.refusal(some("disk_full")) is not None
    assert "clock" in str(place.refusal(some("clock_skew")))
    assert place.refusal(some("partition")) is None
    place.shape("peer-1", LinkFault())  # was a good one all the time

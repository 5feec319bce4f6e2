"""What chaos asks of a container engine: over a real socket, and in which order. tests/compose has a real engine."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from dht.errors import LocalError, UsageError
from peer.chaos.containers import Containers
from peer.chaos.engine import ContainerEngine
from peer.chaos.executor import Link

LABEL = "com.docker.compose"


class Engine:
    """Answers as an engine with one project; remembers what it was told to change."""

    def __init__(self, **services: int) -> None:
        self.changes: list[tuple[str, dict[str, Any]]] = []
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
            return 200, {"Config": {"Labels": labels}, "State": {"Running": name != "peer2", "ExitCode": 137}}
        if place == "/networks/create":
            return 201, {"Id": f"id-{body['Name']}"}
        if place.startswith("/networks/nowhere"):
            return 404, {"message": "network nowhere not found"}
        self.changes.append((f"{method} {place}", body))
        return 204, None


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


def test_who_is_no_swarm_is_told_so(tmp_path: Path) -> None:
    with served(Engine(host=1, peer=1), tmp_path / "one") as client, pytest.raises(UsageError, match="no docker-comp"):
        Containers(client, "stranger")
    with served(Engine(host=1), tmp_path / "two") as client, pytest.raises(UsageError, match="no host and peers"):
        Containers(client, "host1")
    with pytest.raises(LocalError, match="no container engine answers"):
        ContainerEngine(tmp_path / "nothing").get("/version")


def test_what_the_engine_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    with served(Engine(host=1, peer=1), tmp_path / "socket") as client:
        with pytest.raises(LocalError, match="network nowhere not found"):
            client.post("/networks/nowhere/connect")
        place = Containers(client, "host1")
    assert "--profile attackers" in str(place.refusal("attacker"))
    assert place.refusal("disk_full") is not None
    assert "clock" in str(place.refusal("clock_skew"))
    assert place.refusal("partition") is None
    place.shape("peer-1", Link())  # was a good one all the time

"""A Prometheus endpoint on this machine, which takes a new snapshot of the peer at every scrape.

`docs/grafana/muster.json` is a dashboard of these metrics.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from socketserver import BaseRequestHandler
from statistics import quantiles
from typing import cast

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.views.snapshot import PeerSnapshot
from dht.addresses import tcp_endpoint
from dht.daemon.ports import check_ports_free
from dht.errors import UsageError

ADDRESS = "127.0.0.1"
SNAPSHOT_SECONDS_MAX = 5.0
REQUEST_SECONDS_MAX = 10.0  # a silent scraper holds a thread for so long
STATES = ("starting", "training", "catching up", "paused", "draining", "hosting", "finished")

Look = Callable[[], PeerSnapshot]


def check_free(port: int, address: str) -> None:
    """Raise UsageError if this address cannot be listened on. Called before anything is started or shown."""
    try:
        check_ports_free((tcp_endpoint(address, port),))
    except UsageError as error:
        raise UsageError(f"metrics cannot be served at {address}:{port}: {error}") from None


@asynccontextmanager
async def serve_metrics(port: int, look: Look, address: str = ADDRESS) -> AsyncIterator[None]:
    """Answer scrapes at http://ADDRESS:PORT/metrics; raises UsageError if the address cannot be listened on."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(asyncio.get_running_loop(), look))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise UsageError(f"metrics cannot be served at {address}:{port}: {error.strerror}; choose another") from None
    patient = cast(type, server.RequestHandlerClass)
    server.RequestHandlerClass = type("Handler", (_Impatient, patient), {})
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        await asyncio.to_thread(thread.join)


class _Impatient(BaseRequestHandler):
    """A request handler that drops a silent scraper, such as one whose machine has vanished."""

    def setup(self) -> None:
        self.request.settimeout(REQUEST_SECONDS_MAX)
        super().setup()

    def handle(self) -> None:
        with suppress(OSError):  # includes TimeoutError
            super().handle()


class SnapshotCollector(Collector):
    """Takes a snapshot in the peer's event loop at every scrape, which comes in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Look) -> None:
        self._loop = loop
        self._look = look
        self._most: dict[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        async def look() -> PeerSnapshot:
            return self._look()

        snapshot = asyncio.run_coroutine_threadsafe(look(), self._loop).result(SNAPSHOT_SECONDS_MAX)
        yield from metrics_of(snapshot, self._most)


def metrics_of(snapshot: PeerSnapshot, most: dict[str, float]) -> Iterator[Metric]:
    """Yield every number in a snapshot as a metric. `most` holds the highest value that each counter has shown.

    Certified sums shrink when a branch is left. Prometheus takes a shrinking counter for one that restarted, and would
    count all of it again. So a counter stands still until its value is higher.
    """
    yield InfoMetricFamily(
        "muster_peer",
        "Who this is",
        {"peer_id": snapshot.peer_id, "name": snapshot.name, "role": snapshot.role, "run_id": snapshot.run_id},
    )
    states = GaugeMetricFamily("muster_state", "1 for the state that the peer is in", labels=["state"])
    for state in STATES:
        states.add_metric([state], float(snapshot.state == state))
    yield states
    versions = GaugeMetricFamily("muster_fragment_version", "Newest certified version known", labels=["fragment"])
    held = GaugeMetricFamily("muster_fragment_held_version", "Newest version whose state is here", labels=["fragment"])
    for index, fragment in enumerate(snapshot.fragments):
        versions.add_metric([str(index)], fragment.version)
        held.add_metric([str(index)], fragment.held_version)
    yield versions
    yield held
    for name, text, value in _counters(snapshot):
        most[name] = max(value, most.get(name, 0.0))
        yield CounterMetricFamily(name, text, value=most[name])
    yield from (GaugeMetricFamily(name, text, value=value) for name, text, value in _gauges(snapshot))
    delays = GaugeMetricFamily(
        "muster_adoption_delay_steps", "Inner steps from a snapshot to its adoption", labels=["quantile"]
    )
    if len(snapshot.adoption_delays_steps) > 1:
        cuts = quantiles(snapshot.adoption_delays_steps, n=20, method="inclusive")
        delays.add_metric(["0.5"], cuts[9])
        delays.add_metric(["0.95"], cuts[18])
    yield delays


def _counters(snapshot: PeerSnapshot) -> Iterator[tuple[str, str, float]]:
    yield "muster_steps", "Inner steps of the learner", snapshot.steps
    yield "muster_tokens", "Tokens trained by the learner", snapshot.tokens
    yield "muster_versions_certified", "Versions that this peer has seen certified", snapshot.certified.versions
    yield "muster_versions_minor", "Minor ones of them", snapshot.certified.minor
    yield "muster_tokens_certified", "Tokens certified, of everybody, each counted once", snapshot.certified.tokens
    yield "muster_tokens_credited", "Tokens certified, of this peer", snapshot.own_tokens
    yield "muster_rounds_void", "Rounds of this peer that came to nothing", snapshot.events.get("round_void", 0)
    yield "muster_bytes_sent", "Bytes sent to peers", snapshot.bytes_sent
    yield "muster_bytes_received", "Bytes received from peers", snapshot.bytes_received
    yield "muster_learner_cpu_seconds", "CPU time of the learner", snapshot.learner_cpu_seconds
    yield "muster_peer_cpu_seconds", "CPU time of the peer without its learner", snapshot.peer_cpu_seconds


def _gauges(snapshot: PeerSnapshot) -> Iterator[tuple[str, str, float]]:
    yield "muster_steps_per_second", "Inner steps per second lately", snapshot.steps_per_second
    yield "muster_peers_live", "Other peers that are there", snapshot.peers_live
    yield "muster_rounds_in_flight", "Rounds that this peer is in now", snapshot.rounds_in_flight
    yield "muster_wall_seconds", "Seconds since this peer started", snapshot.wall_seconds
    if snapshot.loss is not None:
        yield "muster_training_loss", "Training loss, nats per token", snapshot.loss
    if snapshot.evaluations:
        yield (
            "muster_held_out_loss",
            "Held-out loss of certified anchors, nats per token",
            snapshot.evaluations[-1].loss,
        )

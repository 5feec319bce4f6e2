"""Metrics of a peer: real scrapes over HTTP, and a dashboard that queries only these metrics."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator.views.evaluation import Evaluation
from coordinator.views.snapshot import CertifiedWork, FragmentStatus, PeerSnapshot
from dht.errors import UsageError
from peer.service.metrics import STATES, metrics_of, serve_metrics
from tests.checkout import ROOT

DASHBOARD = ROOT / "docs/grafana/muster.json"


def snapshot(**changes: Any) -> PeerSnapshot:
    """Return a learner's snapshot with something in every field."""
    values: dict[str, Any] = {
        "peer_id": "12D3KooWme",
        "run_id": "ab" * 32,
        "name": 'a "name"\nof two lines \\',
        "role": "learner",
        "state": "catching up",
        "pid": 1,
        "wall_seconds": 12.5,
        "steps": 480,
        "steps_per_second": 3.5,
        "tokens": 491520,
        "loss": 2.25,
        "bytes_sent": 2**40,
        "peers_live": 3,
        "fragments": tuple(
            FragmentStatus(version=version, held_version=version - 1, head="", state="", phase="idle")
            for version in (7, 6)
        ),
        "certified": CertifiedWork(versions=13, minor=1, tokens=1000),
        "credited_tokens": {"12D3KooWme": 400, "another": 600},
        "adoption_delays_steps": tuple(range(101)),
        "evaluations": (Evaluation(versions=1, tokens_certified=9, wall_seconds=1.0, loss=3.25),),
        "events": {"round_void": 2, "certified": 13},
    }
    return PeerSnapshot(**{**values, **changes})


def scrape(port: int, path: str = "metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_scrape_shows_the_peer_as_it_is_now() -> None:
    shown = [snapshot(steps=480), snapshot(steps=481)]

    async def main() -> list[str]:
        port = free_port()
        async with serve_metrics(port, lambda: shown.pop(0)):
            return [await asyncio.to_thread(scrape, port) for _ in range(2)]

    first, second = asyncio.run(main())
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(first)
        for sample in family.samples
    }
    assert samples["muster_steps_total",] == 480
    assert samples["muster_tokens_total",] == 491520
    assert samples["muster_training_loss",] == 2.25
    assert samples["muster_held_out_loss",] == 3.25
    assert samples["muster_fragment_version", "0"] == 7
    assert samples["muster_fragment_held_version", "1"] == 5
    assert samples["muster_rounds_void_total",] == 2
    assert samples["muster_versions_certified_total",] == 13
    assert samples["muster_tokens_credited_total",] == 400
    assert samples["muster_bytes_sent_total",] == 2**40
    assert samples["muster_peers_live",] == 3
    assert samples["muster_adoption_delay_steps", "0.5"] == 50
    assert samples["muster_adoption_delay_steps", "0.95"] == 95
    assert {state: samples["muster_state", state] for state in STATES} == {
        state: float(state == "catching up") for state in STATES
    }
    assert "\nmuster_steps_total 481.0\n" in second


def test_a_counter_stands_still_where_a_branch_was_left() -> None:
    most: dict[str, float] = {}
    shown = [
        {sample.name: sample.value for one in metrics_of(snapshot(certified=work), most) for sample in one.samples}
        for work in (CertifiedWork(tokens=1000), CertifiedWork(tokens=700), CertifiedWork(tokens=1100))
    ]
    assert [one["muster_tokens_certified_total"] for one in shown] == [1000, 1000, 1100]


def test_a_scraper_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.service.metrics.REQUEST_SECONDS_MAX", 0.1)

    async def main() -> tuple[bytes, str]:
        port = free_port()
        async with serve_metrics(port, snapshot):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(20):
                said = await reader.read()
            writer.close()
            return said, await asyncio.to_thread(scrape, port)

    said, scraped = asyncio.run(main())
    assert said == b""
    assert "muster_steps_total" in scraped


def test_after_the_peer_nobody_answers() -> None:
    async def main() -> int:
        port = free_port()
        async with serve_metrics(port, snapshot):
            pass
        return port

    with pytest.raises(urllib.error.URLError):
        scrape(asyncio.run(main()))


def test_a_taken_port_is_told_in_a_sentence() -> None:
    async def main(port: int) -> None:
        async with serve_metrics(port, snapshot):
            pass

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="choose another"):
            asyncio.run(main(taken.getsockname()[1]))


def test_unknown_metrics_are_left_out() -> None:
    names = {metric.name for metric in metrics_of(snapshot(loss=None, evaluations=(), adoption_delays_steps=(3,)), {})}
    assert names.isdisjoint({"muster_training_loss", "muster_held_out_loss"})


def test_the_grafana_dashboard_shows_every_metric_and_asks_for_no_other() -> None:
    exported = {sample.name for metric in metrics_of(snapshot(), {}) for sample in metric.samples}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {name for panel in panels for one in panel["targets"] for name in re.findall(r"muster_\w+", one["expr"])}
    assert asked == exported
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["targets"] and panel["title"] for panel in panels)

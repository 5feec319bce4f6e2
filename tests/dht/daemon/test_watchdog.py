from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dht.daemon.watchdog import Action, WatchdogConfig, WatchdogCore, watch
from dht.errors import LocalError, NetworkError

CONFIG = WatchdogConfig(probe_seconds=15, failures_max=3, retry_seconds=2, retry_seconds_max=10)


def test_a_healthy_node_is_probed_at_its_interval_and_left_alone() -> None:
    core = WatchdogCore(CONFIG, 100.0)
    assert core.decide(114.9, daemon_alive=True) == (Action.WAIT, "healthy")
    assert core.decide(115.0, daemon_alive=True)[0] is Action.PROBE
    core.probe_succeeded(115.5)
    assert core.decide(130.4, daemon_alive=True)[0] is Action.WAIT
    assert core.decide(130.5, daemon_alive=True)[0] is Action.PROBE


def test_only_failures_in_a_row_lead_to_a_rebuild() -> None:
    core = WatchdogCore(CONFIG, 0.0)
    core.probe_failed(15.0, "silence")
    core.probe_failed(17.0, "silence")
    assert core.decide(18.0, daemon_alive=True) == (Action.WAIT, "no answer 2 times: silence")
    assert core.decide(19.0, daemon_alive=True)[0] is Action.PROBE
    core.probe_succeeded(19.0)
    core.probe_failed(34.0, "silence")
    core.probe_failed(36.0, "silence")
    assert core.decide(38.0, daemon_alive=True)[0] is Action.PROBE
    core.probe_failed(38.0, "silence")
    assert core.decide(38.0, daemon_alive=True) == (Action.REBUILD, "no answer 3 times in a row: silence")


def test_a_dead_daemon_is_rebuilt_at_once() -> None:
    core = WatchdogCore(CONFIG, 0.0)
    assert core.decide(0.0, daemon_alive=False) == (Action.REBUILD, "the libp2p daemon has died")


def test_failed_rebuilds_wait_longer_and_longer_up_to_a_limit() -> None:
    core = WatchdogCore(CONFIG, 0.0)
    now, waits = 0.0, []
    for _ in range(100):
        assert core.decide(now, daemon_alive=False)[0] is Action.REBUILD
        core.rebuild_failed(now, "no network")
        start = now
        while core.decide(now, daemon_alive=False) == (Action.WAIT, "rebuilding failed: no network"):
            now += 0.5
        waits.append(now - start)
    assert waits[:5] == [2, 4, 8, 10, 10]
    assert waits[-1] == 10
    core.rebuild_succeeded(now)
    assert core.decide(now, daemon_alive=True) == (Action.WAIT, "healthy")
    assert core.decide(now, daemon_alive=False)[0] is Action.REBUILD


class ScriptedNode:
    """A node whose probes and rebuilds end as told; time passes only when the watchdog sleeps."""

    def __init__(self, probes: Iterator[bool], rebuilds: Iterator[bool]) -> None:
        self.alive = True
        self.now = 0.0
        self.history: list[tuple[float, str]] = []
        self._probes, self._rebuilds = probes, rebuilds

    async def probe(self) -> None:
        self.history.append((self.now, "probe"))
        if not next(self._probes):
            raise NetworkError("silence")

    async def rebuild(self) -> None:
        self.history.append((self.now, "rebuild"))
        if not next(self._rebuilds):
            raise LocalError("no room")
        self.alive = True

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 70:
            raise asyncio.CancelledError
        if self.now == 50:
            self.alive = False


def test_the_shell_does_what_the_core_decides() -> None:
    node = ScriptedNode(iter([True, False, False, False, True, True]), iter([False, True, True]))
    core = WatchdogCore(CONFIG, 0.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch(core, node, lambda: node.now, node.sleep))
    assert node.history == [
        (15, "probe"),
        (30, "probe"),
        (32, "probe"),
        (34, "probe"),
        (34, "rebuild"),
        (36, "rebuild"),
        (50, "rebuild"),
        (65, "probe"),
    ]

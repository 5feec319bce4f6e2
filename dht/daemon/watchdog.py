"""Detects that this peer has silently dropped out of the network, and rebuilds its node (design §8).

The libp2p daemon can die, or live on without reaching any peer, while hivemind reports that all is well. So the
watchdog makes a real round trip at regular intervals and counts the failures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import structlog

from dht.errors import MusterError

POLL_SECONDS = 1.0  # how soon a dead daemon is noticed
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WatchdogConfig:
    """The probe interval, the number of failures to tolerate, and the waits between retries."""

    probe_seconds: float = 15.0
    failures_max: int = 3
    retry_seconds: float = 2.0
    retry_seconds_max: float = 60.0


class Action(Enum):
    """The watchdog's next step."""

    WAIT = "wait"
    PROBE = "probe"
    REBUILD = "rebuild"


class WatchdogCore:
    """The watchdog's decisions, made from the events it is told of. Sans-IO. `now_seconds` never runs back."""

    def __init__(self, config: WatchdogConfig, now_seconds: float) -> None:
        self._config = config
        self._probe_due_seconds = now_seconds + config.probe_seconds
        self._rebuild_due_seconds = now_seconds
        self._rebuild_failures = 0
        self._failures = 0
        self._reason = ""

    def decide(self, now_seconds: float, daemon_alive: bool) -> tuple[Action, str]:
        """Return the action that is due and its reason; REBUILD beats PROBE beats WAIT."""
        broken = self._broken(daemon_alive)
        if broken:
            if now_seconds < self._rebuild_due_seconds:
                return Action.WAIT, f"rebuilding failed: {self._reason}"
            return Action.REBUILD, broken
        if now_seconds >= self._probe_due_seconds:
            return Action.PROBE, "a round trip is due"
        return Action.WAIT, "healthy" if self._failures == 0 else f"no answer {self._failures} times: {self._reason}"

    def probe_succeeded(self, now_seconds: float) -> None:
        """Record that a round trip came back."""
        self._failures = 0
        self._probe_due_seconds = now_seconds + self._config.probe_seconds

    def probe_failed(self, now_seconds: float, reason: str) -> None:
        """Record that a round trip did not come back."""
        self._failures += 1
        self._reason = reason
        self._probe_due_seconds = now_seconds + min(self._config.retry_seconds, self._config.probe_seconds)

    def rebuild_succeeded(self, now_seconds: float) -> None:
        """Record that the node was rebuilt, and start all counts anew."""
        self._rebuild_failures = 0
        self._rebuild_due_seconds = now_seconds
        self.probe_succeeded(now_seconds)

    def rebuild_failed(self, now_seconds: float, reason: str) -> None:
        """Record that a rebuild failed; the next attempt waits twice as long, up to a limit."""
        config = self._config
        self._failures = max(self._failures, config.failures_max)
        self._reason = reason
        doublings = min(self._rebuild_failures, 32)
        self._rebuild_due_seconds = now_seconds + min(config.retry_seconds * 2**doublings, config.retry_seconds_max)
        self._rebuild_failures += 1

    def _broken(self, daemon_alive: bool) -> str:
        if not daemon_alive:
            return "the libp2p daemon has died"
        if self._failures >= self._config.failures_max:
            return f"no answer {self._failures} times in a row: {self._reason}"
        return ""


class Watched(Protocol):
    """The node that the watchdog looks after (`dht.node.DhtNode`)."""

    @property
    def alive(self) -> bool:
        """False once the daemon process is gone."""
        ...

    async def probe(self) -> None:
        """Make one real remote round trip under its own deadline; raises MusterError if it fails."""
        ...

    async def rebuild(self) -> None:
        """Restart everything; raises MusterError if that fails."""
        ...


async def watch(
    core: WatchdogCore, node: Watched, clock: Callable[[], float], sleep: Callable[[float], Awaitable[None]]
) -> None:
    """Look after `node` until cancelled."""
    while True:
        action, reason = core.decide(clock(), node.alive)
        if action is Action.WAIT:
            await sleep(POLL_SECONDS)
        elif action is Action.PROBE:
            await _probe(core, node, clock)
        else:
            _log.warning("node_rebuild", reason=reason)
            await _rebuild(core, node, clock)


async def _probe(core: WatchdogCore, node: Watched, clock: Callable[[], float]) -> None:
    try:
        await node.probe()
    except MusterError as error:
        core.probe_failed(clock(), str(error))
    else:
        core.probe_succeeded(clock())


async def _rebuild(core: WatchdogCore, node: Watched, clock: Callable[[], float]) -> None:
    try:
        await node.rebuild()
    except MusterError as error:
        core.rebuild_failed(clock(), str(error))
    else:
        core.rebuild_succeeded(clock())

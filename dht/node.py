"""One peer in the network: its daemon and its part of the DHT, started, rebuilt and closed together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dht.daemon.process import Daemon, DaemonConfig
from dht.hivemind_store import Clock, HivemindStore
from dht.identity import Identity
from dht.validation import RecordRules

Rebuilt = Callable[[], Awaitable[None]]


class DhtNode:
    """A daemon and its record store, for the watchdog to look after. Both stay the same objects in every rebuild."""

    def __init__(self, daemon: Daemon, store: HivemindStore) -> None:
        self.daemon = daemon
        self.store = store
        self._rebuilt: list[Rebuilt] = []

    @classmethod
    async def start(cls, config: DaemonConfig, rules: RecordRules, clock: Clock) -> DhtNode:
        """Start the daemon and join the DHT; raises what `Daemon.start` and `HivemindStore.start` raise."""
        daemon = await Daemon.start(config)
        try:
            store = await HivemindStore.start(daemon, Identity.load(config.identity_path), rules, clock)
        except BaseException:
            await daemon.close()
            raise
        return cls(daemon, store)

    def after_rebuild(self, callback: Rebuilt) -> None:
        """Run `callback` after each rebuild, when handlers registered with the old `daemon.p2p` are gone."""
        self._rebuilt.append(callback)

    @property
    def alive(self) -> bool:
        return self.daemon.alive

    async def probe(self) -> None:
        """Make one real round trip; raises NetworkError if it fails."""
        await self.store.probe()

    async def rebuild(self) -> None:
        """Restart the daemon at the old ports and rejoin, keeping the stored records; raises MusterError on failure."""
        await self.daemon.restart()
        try:
            await self.store.rebuild()
        finally:
            for callback in self._rebuilt:
                await callback()

    async def close(self) -> None:
        """Leave the DHT and stop the daemon; safe to call twice."""
        await self.store.close()
        await self.daemon.close()

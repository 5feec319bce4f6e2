"""Measures what hostile keys near a record key can hide: `python tests/bench/bench_eclipse.py [--hostile 20 40 100]`.

There are twelve honest nodes of hivemind's DHT on loopback, and ever more hostile ones, whose keys were mined to be
nearest to the key of presence. Each node has its own libp2p daemon (70 MiB, so 8 GiB for a hundred). All honest ones
were invited by the first, and remember the peers whose presence they have read. Like peers, they write presence and
read that of others every three seconds, with a lifetime of nine, by a clock that is moved by hand. Then a newcomer
joins, which was invited by the last of them. Prints the share of the others that an honest peer finds at one look and
within a lifetime, the share that the newcomer finds, and how many of the twelve find it. "Replicas alone" asks only the
five nodes that are responsible, as hivemind does, and as peers did before docs/adr/0048.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dht import hivemind_store
from dht.address_book import AddressBook
from dht.addresses import PeerAddress
from dht.errors import NetworkError
from dht.hivemind_storage import TableStorage
from dht.hivemind_store import ACQUAINTANCES, HivemindStore
from dht.identity import Identity, KeyVerifier, PeerId
from dht.records import presence_key
from dht.statement import digest_of
from dht.store import StoredRecord
from dht.validation import RecordRules
from tests.dht.eclipse import Clock, Nodes, Stale, Swallowing, address_of, behave, delay, keys, lies_nearest, mined_keys

KEY = presence_key(digest_of(b"eclipse"))
INTERVAL_SECONDS = 3.0
LIFETIME_SECONDS = 9.0
LOOKS = 3  # in a lifetime
NOTHING, OLD, FRIENDS, CROWD = (
    "nothing",
    "of each peer the first record that they got",
    "nothing, and only each other as neighbours",
    "their own presence, and nobody else's",
)
LATE = "nothing, 2.5 s late"
LATE_SECONDS = 2.5


class Pretending(Swallowing):
    """A hostile table that keeps only the records of hostile peers."""

    def __init__(self, clock: Clock, friends: Collection[PeerId]) -> None:
        super().__init__(clock)
        self._friends = friends

    def store_subkey(self, key: Any, subkey: object, value: bytes, expiration_time: float) -> bool:
        if subkey in self._friends:
            TableStorage.store_subkey(self, key, subkey, value, expiration_time)
        return True


class Eclipse:
    """The honest and hostile nodes, and what they find of each other."""

    def __init__(self, nodes: Nodes, clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._addresses: dict[PeerId, PeerAddress] = {}
        self.honest: list[HivemindStore] = []
        self.hostile: list[HivemindStore] = []
        self.crowd: list[HivemindStore] = []  # the hostile nodes that write presence

    async def enter(self, identity: Identity, *invited_by: HivemindStore) -> HivemindStore:
        store = await self._nodes.start(identity, *[self._addresses[one._peer_id] for one in invited_by])
        self._addresses[identity.peer_id] = await address_of(store)
        return store

    async def surround(self, mined: Sequence[Identity]) -> None:
        """Start hostile nodes with these keys, besides those that are there."""
        victims = [self._addresses[store._peer_id] for store in self.honest]
        self.hostile += await self._nodes.start_hostile(mined[len(self.hostile) :], victims)
        for store in self.hostile:
            self._addresses[store._peer_id] = await address_of(store)

    def attack(self, how: str) -> None:
        """Let all hostile nodes answer in this way from now on; the honest nodes have met before."""
        friends = [store._peer_id for store in self.hostile]
        made: dict[str, Callable[[Clock], TableStorage]] = {OLD: Stale, CROWD: lambda clock: Pretending(clock, friends)}
        for store in self.hostile:
            behave(store, made.get(how, Swallowing)(self._clock), friends if how == FRIENDS else ())
            if how == LATE:  # for good, so this comes last
                delay(store, LATE_SECONDS)
        self.crowd = self.hostile if how == CROWD else []
        for store in self.honest:
            store._daemon._book = AddressBook()
            store._daemon.remember(self._addresses[one._peer_id] for one in self.honest)

    async def look(self, stores: Sequence[HivemindStore], looks: int = LOOKS) -> list[list[set[PeerId]]]:
        """Let these nodes write presence and read so many times; returns the peers that each found each time."""
        found = []
        for _ in range(looks):
            self._clock.offset_seconds += INTERVAL_SECONDS
            await asyncio.gather(*map(_say, [*stores, *self.crowd]))
            found.append(list(await asyncio.gather(*map(self._read, stores))))
        return found

    async def _read(self, store: HivemindStore) -> set[PeerId]:
        records: list[StoredRecord] = []
        with suppress(NetworkError):
            records = await store.get(KEY)
        senders = {record.sender for record in records} - {store._peer_id}
        store._daemon.remember(self._addresses[sender] for sender in sorted(senders))
        return senders

    async def row(self, how: str, acquaintances: int, identity: Identity) -> list[str]:
        """Measure one attack; returns its row of the table."""
        hivemind_store.ACQUAINTANCES = acquaintances
        everybody = {store._peer_id for store in self.honest}
        self.attack(how)
        await self.look(self.honest, LOOKS + 1)  # until everything from before has expired
        looks = await self.look(self.honest)
        others = len(everybody) - 1
        once = [len(found & everybody) / others for look in looks for found in look]
        lifetime = [len(set().union(*found) & everybody) / others for found in zip(*looks, strict=True)]
        newcomer = await self.enter(identity, self.honest[-1])
        looks = await self.look([newcomer, *self.honest])
        first, whole = looks[0][0], set().union(*(look[0] for look in looks))
        by = sum(any(identity.peer_id in look[1 + number] for look in looks) for number in range(len(everybody)))
        await newcomer.close()
        await newcomer._daemon.close()
        shares = (_mean(once), _mean(lifetime), *(len(seen & everybody) / len(everybody) for seen in (first, whole)))
        return [*(f"{share:.0%}" for share in shares), f"{by} of {len(everybody)}"]


async def _say(store: HivemindStore) -> None:
    with suppress(NetworkError):
        await store.put(KEY, b"here", LIFETIME_SECONDS)


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    clock = Clock()
    nodes = Nodes(folder, RecordRules(KEY.run_id, KeyVerifier()), clock)
    eclipse = Eclipse(nodes, clock)
    honest = keys("honest", options.honest)
    newcomers = (one for one in keys("newcomer", 100) if not lies_nearest(one, KEY, honest))
    try:
        for identity in honest:
            eclipse.honest.append(await eclipse.enter(identity, *eclipse.honest[:1]))
        for count in (0, *sorted(options.hostile)):
            mined, made = mined_keys(count, KEY, honest)
            await eclipse.surround(mined)
            last = count == max(options.hostile)
            for how in (NOTHING, OLD, FRIENDS, CROWD, *[LATE] * options.late) if last else (NOTHING,):
                for asked in (0, ACQUAINTANCES):
                    who = f"and {asked} acquaintances" if asked else "replicas alone"
                    cells = await eclipse.row(how, asked, next(newcomers))
                    hostile = [f"{count} of {made} made", how] if count else ["none", ""]
                    print(f"| {' | '.join([*hostile, who, *cells])} |", flush=True)
    finally:
        await nodes.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--honest", type=int, default=12)
    parser.add_argument("--hostile", type=int, nargs="+", default=[20])
    parser.add_argument("--late", action="store_true", help="have them answer late as well: five minutes more")
    options = parser.parse_args()
    head = "hostile keys | they answer with | asked | found at a look | in a lifetime"
    print(f"| {head} | newcomer: at its first look | in a lifetime | found by |\n{'| --- ' * 8}|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()

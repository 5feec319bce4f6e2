"""Measures how fast bytes travel between two daemons on loopback, directly and relayed by a third peer.

Run `python tests/bench/bench_relay.py`; prints one JSON object. One Python process serves all three daemons.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from multiaddr import Multiaddr

from dht.daemon import calls
from dht.daemon.process import Daemon, DaemonConfig
from dht.identity import Identity

PROTOCOL = "muster/bench/relay"
SECONDS_MAX = 30.0
SLICE_BYTES = 256 << 10


async def start(folder: Path, name: str, client_only: bool) -> Daemon:
    key = folder / name
    Identity.load_or_create(key)
    return await Daemon.start(DaemonConfig(key, client_only=client_only, runtime_parent=folder))


async def megabytes_per_second(one: Daemon, other: Daemon, megabytes: int) -> float:
    """Send so many megabytes between two connected daemons, and return the rate."""
    ended = asyncio.Event()

    async def take(_: Any, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        while await reader.read(SLICE_BYTES):
            pass
        ended.set()

    await calls.add_handler(other.p2p, PROTOCOL, take, SECONDS_MAX)
    _, writer = await calls.open_stream(one.p2p, other.peer_id, PROTOCOL, SECONDS_MAX)
    began, payload = time.perf_counter(), bytes(SLICE_BYTES)
    for _ in range((megabytes << 20) // SLICE_BYTES):
        writer.write(payload)
        await writer.drain()
    writer.write_eof()
    await ended.wait()
    seconds = time.perf_counter() - began
    writer.transport.abort()
    await calls.remove_handler(other.p2p, PROTOCOL, SECONDS_MAX)
    return round((megabytes << 20) / 1e6 / seconds, 1)


async def measure(folder: Path, megabytes: int, repeats: int) -> dict[str, list[float]]:
    host, one, other = [await start(folder, name, name != "host") for name in ("host", "one", "other")]
    host.relay_limits.admits = lambda _: True
    try:
        (at,) = await host.visible_addresses()
        for peer in (one, other):
            await peer.dial(at)
        through = Multiaddr(f"/p2p/{host.peer_id}/p2p-circuit").to_bytes()
        await calls.connect(one.p2p, other.peer_id, [through], SECONDS_MAX)
        found: dict[str, list[float]] = {"straight": [], "relayed": []}
        for _ in range(1 + repeats):  # the first one opens libp2p's windows
            found["straight"].append(await megabytes_per_second(one, host, megabytes))
            found["relayed"].append(await megabytes_per_second(one, other, megabytes))
        return {name: figures[1:] for name, figures in found.items()}
    finally:
        for daemon in (one, other, host):
            await daemon.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), arguments.megabytes, arguments.repeats))))


if __name__ == "__main__":
    main()

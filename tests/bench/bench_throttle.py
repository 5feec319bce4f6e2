"""Measures the wire under a limit of 2 Mbit/s: two peers and their libp2p daemons on loopback, for a minute.

One peer sends the other more bulk than the limit allows, and a small message twenty times a second. Prints the rate
that our streams count, the payload rate of the daemon's TCP connection as the kernel counts it, and the time that small
messages take.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import tempfile
from pathlib import Path

from peer.machine.limits import Limits
from peer.machine.throttle import Throttle
from peer.net.hivemind_transport import HivemindTransport
from tests.bench.bench_transport import start

RUN_ID = bytes(32)
SECONDS = 60.0
PAYLOAD_BYTES = 400_000


def tcp_bytes_sent(port: int) -> int:
    """Return the payload bytes that the kernel has sent on connections to this port, acknowledged or not."""
    listed = subprocess.run(["ss", "-tinH", f"dport = :{port}"], capture_output=True, text=True, check=True).stdout
    return sum(int(count) for count in re.findall(r"bytes_sent:(\d+)", listed))


async def measure(mbit: float, seconds: float) -> None:
    limits = Limits(upload_mbit=mbit)
    with tempfile.TemporaryDirectory() as folder:
        sender, receiver = await start(Path(folder) / "a"), await start(Path(folder) / "b")
        (address,) = await receiver.get_visible_maddrs()
        throttle = Throttle(limits.upload_bytes_per_second)
        loop = asyncio.get_running_loop()
        delays: list[float] = []

        def on_frame(_: object, header: bytes, payload: bytes) -> None:
            if not payload:
                delays.append(loop.time() - float(header))

        ours = HivemindTransport(sender, RUN_ID, lambda _: [str(address)], throttle=throttle)
        theirs = HivemindTransport(receiver, RUN_ID, lambda _: [])
        await ours.start(lambda *_: None, lambda _: None)
        await theirs.start(on_frame, lambda _: None)
        port = int(str(address).split("/tcp/")[1].split("/")[0])
        ours.post(theirs.peer_id, b"0.0")
        await asyncio.sleep(1.0)
        delays.clear()
        began, counted, wired = loop.time(), ours.traffic.bytes_sent, tcp_bytes_sent(port)
        posted = 0
        while loop.time() < began + seconds:
            while posted < ours.traffic.bytes_sent + 2 * PAYLOAD_BYTES:
                ours.post(theirs.peer_id, b"bulk", bytes(PAYLOAD_BYTES))
                posted += PAYLOAD_BYTES
            ours.post(theirs.peer_id, repr(loop.time()).encode())
            await asyncio.sleep(0.05)
        took = loop.time() - began
        rates = [8e-6 * count / took for count in (ours.traffic.bytes_sent - counted, tcp_bytes_sent(port) - wired)]
        delays.sort()
        print(f"limit {mbit:g} Mbit/s over {took:.0f} s: {rates[0]:.3f} counted, {rates[1]:.3f} in TCP payload")
        print(f"small messages: median {delays[len(delays) // 2] * 1e3:.1f} ms, worst {delays[-1] * 1e3:.0f} ms")
        await ours.close()
        await theirs.close()
        await sender.shutdown()
        await receiver.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", default=SECONDS)
    asyncio.run(measure(2.0, parser.parse_args().seconds))

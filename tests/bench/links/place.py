"""Machines on links of one speed, and measurements of those links."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from peer.chaos.executor import LinkFault
from peer.chaos.namespaces import UPLINK, Namespaces

PORT = 7500
PINGS = 10
CHUNK = bytes(1 << 18)
SEND_BUFFERS = "net.ipv4.tcp_wmem=4096 65536 67108864"  # enough for the fastest link
HOPS = 4  # a round trip passes two links twice


class ShapedNamespaces(Namespaces):
    """Machines that have a link of this speed and round trip from the start."""

    def __init__(self, bits_per_second: float, round_trip_seconds: float) -> None:
        super().__init__()
        self.link = LinkFault(delay_seconds=round_trip_seconds / HOPS, bits_per_second=bits_per_second)

    def open(self, names: Sequence[str]) -> None:
        super().open(names)
        for name in names:
            subprocess.run(self.inside(name, "sysctl", "-qw", SEND_BUFFERS), check=True)
            self.shape(name, self.link)

    def sent_bytes(self, name: str) -> int:
        """Return the bytes that this machine has sent so far, with headers and acknowledgements."""
        shown = subprocess.run(
            self.inside(name, "cat", f"/sys/class/net/{UPLINK}/statistics/tx_bytes"), capture_output=True, check=True
        )
        return int(shown.stdout)


def ring_speed(place: ShapedNamespaces, names: Sequence[str], seconds: float) -> tuple[float, float]:
    """Send a TCP stream from each machine to the next, all at once.

    Returns the bit/s of the slowest, and the longest round trip in seconds.
    """
    script = [sys.executable, "-m", "tests.bench.links.place"]
    receivers = [
        subprocess.Popen(place.inside(name, *script, "receive", str(seconds)), stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    senders = [
        subprocess.Popen(
            place.inside(name, *script, "send", str(seconds), place.address(after)), stdout=subprocess.PIPE, text=True
        )
        for name, after in zip(names, [*names[1:], names[0]], strict=True)
    ]
    round_trips = [float(sender.communicate()[0]) for sender in senders]
    return min(float(receiver.communicate()[0]) for receiver in receivers), max(round_trips)


def receive(seconds: float) -> None:
    """Print the bit/s of the second half, when the stream has reached its speed."""
    with socket.create_server(("", PORT)) as server:
        stream, _ = server.accept()
    half, end, counted = time.monotonic() + seconds / 2, time.monotonic() + seconds, 0
    while (now := time.monotonic()) < end and (got := len(stream.recv(1 << 20))):
        counted += got if now >= half else 0
    print(counted * 8 / (seconds / 2))


def send(seconds: float, address: str) -> None:
    """Print the seconds of a round trip, then send for a while."""
    print(min(round_trip(address) for _ in range(PINGS)))
    while True:
        try:
            stream = socket.create_connection((address, PORT))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    end = time.monotonic() + seconds
    with suppress(ConnectionError):  # the receiver has seen enough
        while time.monotonic() < end:
            stream.sendall(CHUNK)


def round_trip(address: str) -> float:
    """Return the seconds until a connection is refused, at a port without a listener."""
    began = time.monotonic()
    with suppress(ConnectionRefusedError):
        socket.create_connection((address, PORT + 1))
    return time.monotonic() - began


if __name__ == "__main__":
    {"receive": receive, "send": send}[sys.argv[1]](float(sys.argv[2]), *sys.argv[3:])

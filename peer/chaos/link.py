"""A narrow, long and lossy link for one machine on a bridge, in user space, because many kernels lack netem.

`python link.py INTERFACE TAP`, as root, where the bridge is; INTERFACE is a name or a number. The bridge's end of the
machine's cable is unplugged, a tap takes its place, and every frame between the two passes through here. Each line on
standard input sets the link, `BITS_PER_SECOND DELAY_SECONDS LOSS_SHARE` each way (0 bits: no limit), and is answered
with `ready`. At the end of input everything is restored. The sender's kernel may hand over up to 64 KB at once, which
then is one frame, delayed or lost as a whole. Only the standard library is used, so that it starts quickly.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

SEED = 1
QUEUE_SECONDS = 0.2  # how long a frame may wait for the line
FRAME_BYTES_MAX = 10 + 65536 + 64  # sending kernels cut large segments last; the header says where
FRAMES_AT_ONCE = 16  # from one side before the other side's turn
BUFFER_BYTES = 1 << 25
LINE_BYTES_MAX = 200
NICENESS = -10  # a network card does not wait for other processes either
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x2, 0x1000, 0x4000
LARGE_SEGMENTS = 0x1 | 0x2 | 0x4  # TUN_F_CSUM, _TSO4, _TSO6
SIOCBRADDIF, SIOCBRDELIF, SIOCSIFFLAGS, IFF_UP = 0x89A2, 0x89A3, 0x8914, 0x1  # linux/sockios.h
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, ETH_P_ALL = 263, 15, 23, 3  # linux/if_packet.h
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33  # asm-generic/socket.h


@dataclass(slots=True)
class LinkDirection:
    """One direction: frames leave one after the other at its speed, and arrive a delay later."""

    draw: random.Random
    bytes_per_second: float = 0.0
    delay_seconds: float = 0.0
    loss_share: float = 0.0
    _free_at: float = 0.0
    _count: int = 0
    _under_way: list[tuple[float, int, bytes]] = field(default_factory=list)  # due, tie-breaker, frame

    def take(self, frame: bytes, now: float) -> None:
        """Accept a frame; drop it if it would wait too long, or by chance."""
        sent_at = max(now, self._free_at)
        if self.bytes_per_second:
            sent_at += len(frame) / self.bytes_per_second
        if sent_at > now + QUEUE_SECONDS or self.draw.random() < self.loss_share:
            return
        self._free_at = sent_at
        self._count += 1
        heapq.heappush(self._under_way, (sent_at + self.delay_seconds, self._count, frame))

    def next_due(self) -> float | None:
        """Return when the next frame arrives; None if none is on its way."""
        return self._under_way[0][0] if self._under_way else None

    def arrived(self, now: float) -> list[bytes]:
        """Return the frames that have arrived since the last call."""
        frames = []
        while self._under_way and self._under_way[0][0] <= now:
            frames.append(heapq.heappop(self._under_way)[2])
        return frames


def main(interface: str, tap_name: str) -> None:
    """Run the link until the end of standard input."""
    if interface.isdecimal():
        interface = socket.if_indextoname(int(interface))
    with suppress(PermissionError):
        os.nice(NICENESS)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", tap_name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETOFFLOAD, LARGE_SEGMENTS)
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", tap_name.encode(), IFF_UP))
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    cable.setblocking(False)
    for buffer in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
        cable.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
    cable.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    cable.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    cable.bind((interface, ETH_P_ALL))
    _replug(control, interface, tap_name)
    try:
        _pass_frames(cable.fileno(), tap)
    finally:
        _replug(control, tap_name, interface)
        os.close(tap)


def _replug(control: socket.socket, old: str, new: str) -> None:
    """Put one interface in the other's place on its present bridge."""
    bridge = os.path.basename(os.readlink(f"/sys/class/net/{old}/master"))
    for request, name in ((SIOCBRDELIF, old), (SIOCBRADDIF, new)):
        fcntl.ioctl(control, request, struct.pack("16si20x", bridge.encode(), socket.if_nametoindex(name)))


def _pass_frames(cable: int, tap: int) -> None:
    draw = random.Random(SEED)
    ways = ((cable, tap, LinkDirection(draw)), (tap, cable, LinkDirection(draw)))
    orders = sys.stdin.fileno()
    while True:
        due = [at for _, _, line in ways if (at := line.next_due()) is not None]
        patience = max(0.0, min(due) - time.monotonic()) if due else None
        ready, _, _ = select.select([cable, tap, orders], [], [], patience)
        if orders in ready and not _obey(os.read(orders, LINE_BYTES_MAX), [line for _, _, line in ways]):
            return
        for source, sink, line in ways:
            if source in ready:
                _take_in(source, line)
            for frame in line.arrived(time.monotonic()):
                with suppress(OSError):  # a full queue, or a cable being pulled: the frame is lost
                    os.write(sink, frame)


def _take_in(source: int, line: LinkDirection) -> None:
    with suppress(BlockingIOError):
        for _ in range(FRAMES_AT_ONCE):
            frame = os.read(source, FRAME_BYTES_MAX)
            line.take(frame, time.monotonic())


def _obey(order: bytes, lines: list[LinkDirection]) -> bool:
    """Change the link as ordered; returns False at the end of all orders."""
    if not order:
        return False
    bits, delay, loss = map(float, order.split())
    for line in lines:
        line.bytes_per_second, line.delay_seconds, line.loss_share = bits / 8, delay, loss
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])

"""A slow, long and lossy link for one container, in user space: netem is a part that many kernels lack.

`python3 link.py INTERFACE_INDEX MEGABITS_PER_SECOND DELAY_SECONDS LOSS_SHARE` as root, where the engine's bridges are.
The bridge's end of the container's cable is unplugged, a tap takes its place, and every frame between the two passes
here. SIGTERM puts everything back. Nothing but the standard library: it runs in a container of the image under test.
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

TAP = "muster-link"
SEED = 1
QUEUE_SECONDS = 0.2  # how long a frame may wait for the line
FRAME_BYTES_MAX = 10 + 65536 + 64  # sending kernels cut large segments last; the header says where
TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x2, 0x1000, 0x4000
SIOCBRADDIF, SIOCBRDELIF, SIOCSIFFLAGS, IFF_UP = 0x89A2, 0x89A3, 0x8914, 0x1  # linux/sockios.h
SOL_PACKET, PACKET_VNET_HDR, ETH_P_ALL = 263, 15, 3  # linux/if_packet.h


def main(interface: str, megabits_per_second: float, delay_seconds: float, loss_share: float) -> None:
    """Be the link until SIGTERM."""
    bridge = os.path.basename(os.readlink(f"/sys/class/net/{interface}/master"))
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", TAP.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sH22x", TAP.encode(), IFF_UP))
    cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    cable.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    cable.bind((interface, ETH_P_ALL))
    _port(control, bridge, SIOCBRDELIF, interface)
    try:
        _port(control, bridge, SIOCBRADDIF, TAP)
        print("ready", flush=True)
        _pass_frames(cable, tap, megabits_per_second * 1e6 / 8, delay_seconds, loss_share)
    finally:
        os.close(tap)
        _port(control, bridge, SIOCBRADDIF, interface)


def _port(control: socket.socket, bridge: str, request: int, interface: str) -> None:
    fcntl.ioctl(control, request, struct.pack("16si20x", bridge.encode(), socket.if_nametoindex(interface)))


def _pass_frames(
    cable: socket.socket, tap: int, bytes_per_second: float, delay_seconds: float, loss_share: float
) -> None:
    """Each direction is a line of this speed, with a queue before it."""
    draw = random.Random(SEED)
    line_free_at = {True: 0.0, False: 0.0}
    under_way: list[tuple[float, int, bool, bytes]] = []  # due, tie-breaker, whether from the container, frame
    count = 0
    while True:
        patience = None if not under_way else max(0.0, under_way[0][0] - time.monotonic())
        ready, _, _ = select.select([cable, tap], [], [], patience)
        now = time.monotonic()
        for source in ready:
            outward = source is cable
            frame = _received(cable) if outward else os.read(tap, FRAME_BYTES_MAX)
            sent_at = max(now, line_free_at[outward]) + len(frame) / bytes_per_second
            if not frame or sent_at > now + QUEUE_SECONDS or draw.random() < loss_share:
                continue
            line_free_at[outward] = sent_at
            count += 1
            heapq.heappush(under_way, (sent_at + delay_seconds, count, outward, frame))
        while under_way and under_way[0][0] <= now:
            _, _, outward, frame = heapq.heappop(under_way)
            with suppress(OSError):  # a full queue, or a cable that is being pulled: the frame is lost
                os.write(tap, frame) if outward else cable.send(frame)


def _received(cable: socket.socket) -> bytes:
    """A frame of the container; empty if it is one of ours on its way to it."""
    frame, address = cable.recvfrom(FRAME_BYTES_MAX)
    return b"" if address[2] == socket.PACKET_OUTGOING else frame


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        main(socket.if_indextoname(int(sys.argv[1])), *map(float, sys.argv[2:5]))

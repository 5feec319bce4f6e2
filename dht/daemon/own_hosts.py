"""Tells which IP addresses are this machine's own."""

from __future__ import annotations

import socket
from contextlib import suppress

from dht.addresses import ip_of

LOOPBACK = "127.0.0.1"


def is_own(host: str) -> bool:
    """Whether this machine has that IP address now: the kernel lets a socket bind to own addresses only."""
    address = ip_of(host)
    if address is None or address.is_unspecified:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def outward_hosts() -> frozenset[str]:
    """Return the IP addresses from which this machine calls beyond its own networks; finds out without sending."""
    found = set()
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # nobody's
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            found.add(str(probe.getsockname()[0]))
    return frozenset(found)


def hosts_behind(host: str) -> frozenset[str]:
    """Return where a peer may listen if a connection with it comes from or leads to this IP address.

    A peer on this machine may connect from the machine's network address, and yet listen on loopback only.
    """
    return frozenset({host, LOOPBACK} if is_own(host) else {host})

"""Ports to listen on: checked to be free before a start, and kept across restarts and for the next process."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

from dht.addresses import PeerAddress, endpoint_at, host_of, port_of
from dht.errors import UsageError
from dht.files import write_whole


def port_taken(port: int) -> UsageError:
    """Return the error for a port that something else listens on."""
    return UsageError(f"port {port} is already in use; stop what listens there or choose another port")


def check_ports_free(listen: tuple[str, ...]) -> None:
    """Raise UsageError for a port that anything else listens on, or an address that cannot be listened on.

    libp2p would share the port (SO_REUSEPORT) with another daemon, or quietly listen on its other addresses only.
    """
    for endpoint in listen:
        address, port = host_of(endpoint), port_of(endpoint)
        try:
            version = ipaddress.ip_address(address).version
        except ValueError:
            raise UsageError(f"{endpoint} cannot be listened on: give an IP address, not a name") from None
        with socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise port_taken(port) from None
                if error.errno == errno.EADDRNOTAVAIL:
                    raise UsageError(
                        f"this machine has no address {address} to listen on; name one of its own, or 0.0.0.0 for all"
                    ) from None
                raise UsageError(f"cannot listen on {endpoint}: {error.strerror}") from None


def with_last_ports(listen: tuple[str, ...], file: Path) -> tuple[str, ...]:
    """Replace each port 0 by the one that `keep_ports` saved, unless something else listens there by now."""
    try:
        ports = [int(line) for line in file.read_text(encoding="ascii").split()]
        last = tuple(
            endpoint_at(endpoint, port) if port_of(endpoint) == 0 else endpoint
            for endpoint, port in zip(listen, ports, strict=True)
        )
        check_ports_free(last)
    except (OSError, ValueError, UsageError):
        return listen
    return last


def keep_ports(listen: tuple[str, ...], file: Path) -> None:
    """Save the ports that we listen on. If the write fails, the next process just gets other ports."""
    with suppress(OSError):
        write_whole(file, "".join(f"{port_of(endpoint)}\n" for endpoint in listen).encode())


def with_chosen_ports(listen: tuple[str, ...], visible: tuple[PeerAddress, ...]) -> tuple[str, ...]:
    """Replace each port 0 by the one that the system chose, so that a restart listens where others look for us."""
    chosen = next((address.port for address in visible if not address.relayed), 0)
    return tuple(endpoint_at(endpoint, chosen) if port_of(endpoint) == 0 else endpoint for endpoint in listen)

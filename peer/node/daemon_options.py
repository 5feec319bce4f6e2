"""Translates a peer's options into those of its libp2p daemon."""

from __future__ import annotations

from pathlib import Path

from dht.addresses import PeerAddress, tcp_endpoint
from dht.daemon.config import DaemonConfig
from dht.door import Door
from dht.errors import UsageError
from peer.machine.paths import runtime_directory
from peer.node.options import NodeOptions

PORT_FILE = "port"  # in the data folder


def daemon_config(
    options: NodeOptions,
    initial_peers: tuple[PeerAddress, ...],
    address_book: Path | None = None,
    door: Door | None = None,
) -> DaemonConfig:
    """Return a configuration that listens on one TCP port; raises UsageError for an invalid port or address."""
    if options.port is not None and not 0 < options.port < 65536:
        raise UsageError(f"{options.port} is no port; choose one from 1 to 65535")
    return DaemonConfig(
        options.identity_path,
        listen=(tcp_endpoint(options.listen_host, options.port or 0),),
        announce=options.announce,
        initial_peers=initial_peers,
        address_book=address_book,
        door=door or Door(),
        runtime_parent=runtime_directory(),
        port_file=options.data_directory / PORT_FILE if options.port is None else None,
    )

"""Settings of the libp2p daemon, and the command line made from them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from dht.addresses import PeerAddress, check_endpoint, port_of
from dht.door import Door
from dht.errors import UsageError

GRACE_SECONDS = 20  # before a new connection may be closed as surplus; libp2p's default is 120
IDLE_SECONDS = 30  # the daemon exits if we never connect to it
MESSAGE_BYTES_MAX = 4 << 20  # one unary message; hivemind's own default, on both sides of the socket


@dataclass(frozen=True, slots=True)
class DaemonConfig:
    """Settings of a daemon. Addresses in `listen` and `announce` carry no peer id; port 0 lets the system choose."""

    identity_path: Path
    listen: tuple[str, ...] = ("/ip4/127.0.0.1/tcp/0",)
    announce: tuple[str, ...] = ()
    initial_peers: tuple[PeerAddress, ...] = ()
    client_only: bool = False
    runtime_parent: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    address_book: Path | None = None  # the file that keeps peers' addresses across restarts
    door: Door = field(default_factory=Door)  # shows our pass to others, and decides who is let in
    fresh_key: bool = False  # made just now, so it cannot be in use elsewhere
    port_file: Path | None = None  # keeps the ports that the system chose: others look for us there

    def __post_init__(self) -> None:
        for endpoint in self.listen:
            check_endpoint(endpoint)
        for endpoint in self.announce:
            if port_of(check_endpoint(endpoint)) == 0:
                raise UsageError(f"{endpoint} cannot be announced: name the port that others can reach")


def control_socket(directory: Path) -> Path:
    """Return the path of the socket at which the daemon takes our requests."""
    return directory / "p2pd.sock"


def control_address(directory: Path) -> str:
    """Return the control socket as a libp2p multiaddress."""
    return f"/unix{control_socket(directory)}"


def arguments(config: DaemonConfig, directory: Path) -> list[str]:
    """Return p2pd's command line; every switch that matters is given, none left to its default."""
    flags: dict[str, object] = {
        "listen": control_address(directory),
        "id": config.identity_path.absolute(),
        "idleTimeout": f"{IDLE_SECONDS}s",
        "persistentConnMaxMsgSize": MESSAGE_BYTES_MAX,
        "tls": 1,
        "noise": 0,
        "connManager": 1,
        "connGrace": f"{GRACE_SECONDS}s",
        "natPortMap": 0,
        "dhtClient" if config.client_only else "dhtServer": 1,
        "autonat": 0,
        "relay": 1,  # to call and be called through relays; our own relay is `dht.daemon.relay`
        "relayService": 0,
        "b": 0,  # bootstrapping would delay the start until every vanished peer had timed out
    }
    if config.client_only:
        flags["noListenAddrs"] = 1
    else:
        flags["hostAddrs"] = ",".join(config.listen)
    if config.announce:
        flags["announceAddrs"] = ",".join(config.announce)
    return [f"-{name}={value}" for name, value in flags.items()]


def caller_arguments(directory: Path) -> list[str]:
    """Return the command line of a daemon that only asks other peers a question and stops."""
    return [
        f"-listen={control_address(directory)}",
        *("-b=0", "-dhtClient=1", "-noListenAddrs=1", "-tls=1", "-noise=0", f"-idleTimeout={IDLE_SECONDS}s"),
        *("-relay=1", "-relayService=0"),
    ]

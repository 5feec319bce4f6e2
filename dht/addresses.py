"""Addresses of peers: libp2p multiaddresses, checked once when they are parsed, with readable errors.

hivemind has a multiaddress class of its own; addresses are handed to it as text.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from multiaddr import Multiaddr

from dht.errors import PeerError, UsageError
from dht.identity import PeerId, public_key_of

PARSED_KEPT = 2048
ADDRESS_CHARACTERS_MAX = 384  # a relayed address with a long DNS name still fits
_HOST_PROTOCOLS = ("ip4", "ip6", "dns", "dns4", "dns6")
_PORT_PROTOCOLS = ("tcp", "udp")
_EXAMPLE = "/ip4/203.0.113.7/tcp/7331"

PRIVATE_PREFIX_4 = 16  # bits; addresses that share them count as one household's or office's network
PRIVATE_PREFIX_6 = 48

Part = tuple[str, str | None]
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Reach(Enum):
    """From where an address can be dialled."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A multiaddress that ends in `/p2p/<peer id>`; make one with `parse`."""

    text: str
    peer_id: PeerId

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> PeerAddress:
        """Check and normalise `text`; raises UsageError with one sentence that says what is wrong."""
        parts = _parts_of(text)
        if not parts or parts[-1][0] != "p2p":
            raise UsageError(f"{text!r} does not end in /p2p/ and a peer id; ask for the full address")
        peer_id = PeerId(parts[-1][1] or "")
        try:
            public_key_of(peer_id)
        except PeerError as error:
            raise UsageError(f"{text!r} names no Muster peer: {error}") from None
        _check_endpoint(text, parts)
        return cls(_join(parts), peer_id)

    @property
    def host(self) -> str:
        """IP address or DNS name; that of the relay if the address is relayed."""
        return self._parts()[0][1] or ""

    @property
    def port(self) -> int:
        """TCP or UDP port at `host`."""
        return int(self._parts()[1][1] or 0)

    @property
    def over_tcp(self) -> bool:
        """Whether it is dialled over TCP, which is how Muster listens."""
        return self._parts()[1][0] == "tcp"

    @property
    def called(self) -> str:
        """Id of the peer that answers at `host` and `port`: the peer itself or its relay."""
        return next((value or "" for name, value in self._parts() if name == "p2p"), "")

    @property
    def relayed(self) -> bool:
        """True if the peer is reached through another one."""
        return is_relayed(self.text)

    @property
    def reach(self) -> Reach:
        """From where it can be dialled; a DNS name counts as public unless it is local by convention."""
        if self._parts()[0][0].startswith("dns"):
            return _reach_of_name(self.host)
        address = ipaddress.ip_address(self.host)
        if address.is_loopback:
            return Reach.LOOPBACK
        return Reach.PUBLIC if address.is_global else Reach.PRIVATE

    @property
    def public_name(self) -> str:
        """The DNS name to dial, if anybody can resolve it; else empty, as for a relayed address."""
        is_name = ip_of(self.host) is None and not self.relayed
        return self.host if is_name and self.reach is Reach.PUBLIC else ""

    def at(self, hosts: Iterable[str]) -> list[PeerAddress]:
        """Replace the DNS name by each of these IP addresses; `dns4` and `dns6` take one version of IP only."""
        (protocol, _), *rest = self._parts()
        addresses = [address for host in hosts if (address := ip_of(host)) is not None]
        parts = [(f"ip{one.version}", str(one)) for one in addresses if protocol in ("dns", f"dns{one.version}")]
        return [PeerAddress(_join([first, *rest]), self.peer_id) for first in parts]

    def _parts(self) -> tuple[Part, ...]:
        return _parts_of(self.text)


def is_relayed(text: str) -> bool:
    """Whether an address leads through another peer."""
    return "/p2p-circuit" in text


def tcp_endpoint(host: str, port: int) -> str:
    """Return the unchecked text of a TCP address to listen at; port 0 lets the system choose."""
    return f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}"


def check_endpoint(text: str) -> str:
    """Check and normalise a TCP address without peer id, as used to listen or announce; raises UsageError."""
    parts = _parts_of(text)
    if any(name == "p2p" for name, _ in parts):
        raise UsageError(f"{text!r} names a peer, but only a place such as {_EXAMPLE} fits here")
    _check_endpoint(text, parts)
    if parts[1][0] != "tcp":
        raise UsageError(f"{text!r} is not over TCP, but peers listen on nothing else; write it as in {_EXAMPLE}")
    return _join(parts)


def host_of(endpoint: str) -> str:
    """Return the IP address or DNS name of an address that `check_endpoint` has passed."""
    return _parts_of(endpoint)[0][1] or ""


def port_of(endpoint: str) -> int:
    """Return the port of an address that `check_endpoint` has passed."""
    return int(_parts_of(endpoint)[1][1] or 0)


def network_of(host: str) -> bytes | None:
    """Return the packed IPv4 /24 or IPv6 /48 of a public IP address, else None.

    One owner often holds a whole block of that size.
    """
    address = ip_of(host)
    if address is None or not address.is_global:
        return None
    return address.packed[: 3 if address.version == 4 else 6]


def is_of_private_network(host: str) -> bool:
    """Whether an IP address is in a private network, such as a home's.

    Loopback does not count, since every machine has it.
    """
    address = ip_of(host)
    return address is not None and address.is_private and not address.is_loopback


def could_be_of(address: PeerAddress, hosts: Iterable[str]) -> bool:
    """Whether the address that a stranger claims is plausible, given the IP addresses it is connected from or to.

    Any peer may have a public IP address. A loopback or private one is plausible only if one of `hosts` is in the same
    network. A DNS name never is: only its resolver knows where it leads (`dht.daemon.dns_names`). Nor is a UDP address:
    no peer listens on UDP, and the daemon's QUIC has many known security holes (docs/adr/0057).
    """
    if not address.over_tcp:
        return False
    claimed = ip_of(address.host)
    if claimed is None or claimed.is_unspecified or claimed.is_multicast:
        return False
    if claimed.is_global:
        return True
    return any(_is_near(claimed, host) for host in hosts)


def _is_near(claimed: IpAddress, host: str) -> bool:
    near = ip_of(host)
    if near is None:
        return False
    if claimed.is_loopback or near.is_loopback:
        return claimed.is_loopback and near.is_loopback
    if claimed.version != near.version:
        return False
    bits = claimed.max_prefixlen - (PRIVATE_PREFIX_4 if claimed.version == 4 else PRIVATE_PREFIX_6)
    return int(claimed) >> bits == int(near) >> bits


def ip_of(host: str) -> IpAddress | None:
    """Parse an IP address, turning an IPv4-mapped IPv6 address into IPv4; returns None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def endpoint_at(endpoint: str, port: int) -> str:
    """Return an address that `check_endpoint` has passed, with another port; raises UsageError."""
    first, _, *rest = _parts_of(endpoint)
    return check_endpoint(_join([first, ("tcp", str(port)), *rest]))


@lru_cache(maxsize=PARSED_KEPT)  # the same presence records are read again and again
def _parts_of(text: str) -> tuple[Part, ...]:
    if len(text) > ADDRESS_CHARACTERS_MAX:
        raise UsageError(f"an address of {len(text)} characters is too long; the limit is {ADDRESS_CHARACTERS_MAX}")
    if not text.isascii():  # it cannot be dialled, and multiaddr mishandles some of these
        raise UsageError(f"{text!r} is not an address; write its name as DNS does, as in xn--mnchen-3ya.example")
    try:
        return tuple((protocol.name, value) for protocol, value in Multiaddr(text).items())
    except ValueError:  # the base of all parse errors of multiaddr, whose messages repeat the whole address
        raise UsageError(f"{text!r} is not an address; one looks like {_EXAMPLE}/p2p/12D3Koo…") from None


def _check_endpoint(text: str, parts: Sequence[Part]) -> None:
    names = [name for name, _ in parts]
    if not names or names[0] not in _HOST_PROTOCOLS:
        raise UsageError(f"{text!r} must begin with a host, as in {_EXAMPLE}")
    if len(names) < 2 or names[1] not in _PORT_PROTOCOLS:
        raise UsageError(f"{text!r} has no port; write the host and then the port, as in {_EXAMPLE}")


def _join(parts: Iterable[Part]) -> str:
    return "".join(f"/{name}" if value is None else f"/{name}/{value}" for name, value in parts)


def _reach_of_name(name: str) -> Reach:
    if name == "localhost" or name.endswith(".localhost"):
        return Reach.LOOPBACK
    if "." not in name or name.endswith((".local", ".internal", ".lan")):
        return Reach.PRIVATE
    return Reach.PUBLIC

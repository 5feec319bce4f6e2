"""The hosts from which peers call, as the protocol core is told."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.core.events import OriginsSeen
from dht.addresses import PeerAddress, network_of
from dht.identity import Identity
from peer.net.origins import OriginsLoop, own_networks

ONE, OTHER = (Identity(bytes([number]) * 32).peer_id for number in (1, 2))


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("8.8.4.4", b"\x08\x08\x04"),
        ("8.8.4.250", b"\x08\x08\x04"),
        ("::ffff:8.8.4.4", b"\x08\x08\x04"),
        ("2a00:1450:4001:82a::200e", b"\x2a\x00\x14\x50\x40\x01"),
        ("127.0.0.1", None),
        ("192.168.1.7", None),
        ("10.0.0.1", None),
        ("fd00::1", None),
        ("example.org", None),
        ("", None),
    ],
)
def test_only_public_addresses_have_a_network(host: str, network: bytes | None) -> None:
    assert network_of(host) == network


def test_our_networks_are_those_of_our_own_public_addresses() -> None:
    texts = ("/ip4/8.8.4.4/tcp/7", "/ip4/8.8.4.5/tcp/8", "/ip4/127.0.0.1/tcp/7", "/ip6/2a00:1450:4001::1/tcp/7")
    addresses = [PeerAddress.parse(f"{text}/p2p/{ONE}") for text in texts]
    addresses.append(PeerAddress.parse(f"/ip4/9.9.9.9/tcp/7/p2p/{OTHER}/p2p-circuit/p2p/{ONE}"))
    assert own_networks(addresses) == (b"\x08\x08\x04", b"\x2a\x00\x14\x50\x40\x01")


def test_the_core_is_told_when_something_has_changed() -> None:
    hosts, told = {ONE: "8.8.4.4", OTHER: "192.168.1.7"}, list[OriginsSeen]()

    async def look() -> dict[str, str]:
        return dict(hosts)

    async def main() -> None:
        loop = OriginsLoop(look, told.append)  # type: ignore[arg-type]
        await loop.look()
        await loop.look()
        hosts[OTHER] = "9.9.9.9"
        await loop.look()
        hosts.clear()
        await loop.look()

    asyncio.run(main())
    here = network_of("8.8.4.4")
    assert [one.networks for one in told] == [{ONE: here}, {ONE: here, OTHER: network_of("9.9.9.9")}, {}]

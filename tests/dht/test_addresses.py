from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.addresses import (
    PeerAddress,
    Reach,
    check_endpoint,
    endpoint_at,
    host_of,
    is_of_private_network,
    port_of,
    tcp_endpoint,
)
from dht.errors import UsageError
from tests.dht.conftest import ALICE, BOB

A, B = ALICE.peer_id, BOB.peer_id


@given(st.ip_addresses(), st.sampled_from(["tcp/{}", "udp/{}/quic-v1"]), st.integers(0, 65535))
def test_round_trip(host: ipaddress.IPv4Address | ipaddress.IPv6Address, transport: str, port: int) -> None:
    version = f"ip{host.version}"
    address = PeerAddress.parse(f"/{version}/{host}/{transport.format(port)}/p2p/{A}")
    assert PeerAddress.parse(str(address)) == address
    assert (ipaddress.ip_address(address.host), address.port, address.peer_id) == (host, port, A)


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["ip4", "1.2.3.4", "tcp", "5", "p2p", A, "", "unix"])).map("/".join)
)
def test_arbitrary_text_raises_only_usage_error(text: str) -> None:
    try:
        address = PeerAddress.parse(text)
    except UsageError:
        return
    assert address.peer_id == A


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "not an address"),
        ("", "does not end in /p2p/"),
        ("/ip4/300.1.1.1/tcp/1", "not an address"),
        ("/ip4/1.2.3.4/tcp/99999", "not an address"),
        ("/ip4/1.2.3.4/tcp/5", "does not end in /p2p/"),
        (f"/p2p/{A}", "must begin with a host"),
        (f"/ip4/1.2.3.4/p2p/{A}", "has no port"),
        ("/ip4/1.2.3.4/tcp/5/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "names no Muster peer"),
        (f"/dns4/{'x' * 400}/tcp/1/p2p/{A}", "too long"),
        (f"/dns4/münchen.example/tcp/1/p2p/{A}", "as DNS does"),
        ("/ip6zone/١٢٣", "as DNS does"),
    ],
)
def test_errors_are_in_words(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        PeerAddress.parse(text)


@pytest.mark.parametrize(
    ("place", "reach"),
    [
        ("/ip4/127.0.0.1", Reach.LOOPBACK),
        ("/ip6/::1", Reach.LOOPBACK),
        ("/dns/localhost", Reach.LOOPBACK),
        ("/ip4/192.168.1.4", Reach.PRIVATE),
        ("/ip4/10.0.0.1", Reach.PRIVATE),
        ("/ip4/169.254.3.3", Reach.PRIVATE),
        ("/ip6/fe80::1", Reach.PRIVATE),
        ("/dns4/printer.local", Reach.PRIVATE),
        ("/dns4/learner-3", Reach.PRIVATE),
        ("/ip4/8.8.8.8", Reach.PUBLIC),
        ("/ip6/2606:4700::1", Reach.PUBLIC),
        ("/dns4/example.org", Reach.PUBLIC),
    ],
)
def test_reach(place: str, reach: Reach) -> None:
    assert PeerAddress.parse(f"{place}/tcp/7331/p2p/{A}").reach is reach


def test_a_relayed_address_belongs_to_the_peer_behind_the_relay() -> None:
    address = PeerAddress.parse(f"/ip4/8.8.8.8/tcp/1/p2p/{A}/p2p-circuit/p2p/{B}")
    assert address.relayed
    assert address.peer_id == B
    assert not PeerAddress.parse(f"/ip4/8.8.8.8/tcp/1/p2p/{A}").relayed


def test_endpoints_name_no_peer() -> None:
    assert check_endpoint(tcp_endpoint("0.0.0.0", 0)) == "/ip4/0.0.0.0/tcp/0"
    assert check_endpoint(tcp_endpoint("::", 7331)) == "/ip6/::/tcp/7331"
    assert check_endpoint("/ip4/0.0.0.0/tcp/7331") == "/ip4/0.0.0.0/tcp/7331"
    assert (host_of("/ip4/0.0.0.0/tcp/7331"), port_of("/ip4/0.0.0.0/tcp/7331")) == ("0.0.0.0", 7331)
    assert endpoint_at("/ip4/0.0.0.0/tcp/0", 5) == "/ip4/0.0.0.0/tcp/5"
    with pytest.raises(UsageError, match="names a peer"):
        check_endpoint(f"/ip4/0.0.0.0/tcp/7331/p2p/{A}")
    with pytest.raises(UsageError, match="no port"):
        check_endpoint("/ip4/0.0.0.0")
    with pytest.raises(UsageError, match="not over TCP"):
        check_endpoint("/ip4/0.0.0.0/udp/7331/quic-v1")


@pytest.mark.parametrize(
    ("host", "is_private"),
    [
        ("192.168.1.4", True),
        ("10.0.0.1", True),
        ("fd00::1", True),
        ("::ffff:192.168.1.4", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("93.184.216.34", False),
        ("router.example", False),
        ("", False),
    ],
)
def test_homes_have_private_networks(host: str, is_private: bool) -> None:
    assert is_of_private_network(host) == is_private

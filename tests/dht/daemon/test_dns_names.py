"""What names lead to that strangers give: asked seldom, and believed only where it is a public address."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import dns.asyncresolver
import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from dht.addresses import PeerAddress
from dht.daemon.dns_names import HOSTS_PER_NAME, KEPT_SECONDS, LOOKUP_SECONDS_MAX, LOOKUPS_AT_ONCE, Names, look_up
from dht.identity import Identity
from tests.peer.virtual_loop import run_virtual

PEER = Identity(bytes(32)).peer_id
HOME = "home.example"


class Resolver:
    """Answers with these addresses after that time, and counts."""

    def __init__(self, hosts: Sequence[str], seconds: float = 0.0) -> None:
        self.hosts, self.seconds = hosts, seconds
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        await asyncio.sleep(self.seconds)
        return self.hosts


def test_a_name_leads_to_public_addresses_only() -> None:
    """Whoever gives it chooses where it leads: to a router, a printer, or whatever listens on loopback."""
    inside = ["192.168.1.1", "127.0.0.1", "::1", "fd00::1", "169.254.169.254", "::ffff:10.0.0.1", "0.0.0.0"]
    names = Names(Resolver([*inside, "93.184.216.34", "2600::7"]))
    assert run_virtual(names.hosts([HOME])) == {HOME: ("93.184.216.34", "2600::7")}
    assert run_virtual(Names(Resolver(inside)).hosts([HOME])) == {HOME: ()}
    assert len(run_virtual(Names(Resolver([f"9.9.9.{one}" for one in range(9)])).hosts([HOME]))[HOME]) == HOSTS_PER_NAME


def test_a_name_is_looked_up_once_a_minute() -> None:
    resolver = Resolver(["93.184.216.34"])
    names = Names(resolver)

    async def main() -> None:
        await names.hosts([HOME])
        resolver.hosts = ["93.184.216.35"]
        await asyncio.sleep(KEPT_SECONDS - 1)
        assert await names.hosts([HOME]) == {HOME: ("93.184.216.34",)}
        await asyncio.sleep(2)
        assert await names.hosts([HOME]) == {HOME: ("93.184.216.35",)}

    run_virtual(main())
    assert resolver.asked == [HOME, HOME]


def test_many_names_of_a_stranger_are_looked_up_a_few_at_a_time_and_keep_nobody_waiting() -> None:
    many = [f"{one}.example" for one in range(3 * LOOKUPS_AT_ONCE)]

    async def main() -> float:
        names, loop = Names(resolver), asyncio.get_running_loop()
        await names.hosts([*many, *many])
        first = loop.time()
        assert len(resolver.asked) == LOOKUPS_AT_ONCE
        await names.hosts(many)
        await names.hosts(many)
        assert sorted(resolver.asked) == sorted(many), "a name that leads nowhere was looked up again at once"
        return first

    resolver = Resolver(["93.184.216.34"], seconds=3600.0)
    assert run_virtual(main()) == LOOKUP_SECONDS_MAX


class NameServer(asyncio.DatagramProtocol):
    """Knows one name, of both versions of IP."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = dns.message.make_response(dns.message.from_wire(data))
        (question,) = answer.question
        if str(question.name) == f"{HOME}.":
            kind, host = ("A", "93.184.216.34") if question.rdtype == 1 else ("AAAA", "2600::7")
            answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", kind, host))
        else:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self.transport.sendto(answer.to_wire(), addr)


def test_the_resolver_of_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[list[str], list[str]]:
        server, _ = await asyncio.get_running_loop().create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
        resolver = dns.asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], server.get_extra_info("sockname")[1]
        monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
        try:
            return await look_up(HOME), await look_up("nobody.example")
        finally:
            server.close()

    known, unknown = asyncio.run(main())
    assert sorted(known) == ["2600::7", "93.184.216.34"]
    assert unknown == []


def test_a_machine_with_a_wrong_resolver_finds_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own resolver skips what is no address; dnspython raises a ValueError."""
    wrong = tmp_path / "resolv.conf"
    wrong.write_text("nameserver 127.0.0.1#5353\n")
    monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: dns.resolver.BaseResolver(str(wrong)))
    assert asyncio.run(look_up(HOME)) == []


@pytest.mark.parametrize("name", ["a..example", "x" * 64 + ".example", "-"])
def test_a_text_that_is_no_name_leads_nowhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = dns.asyncresolver.Resolver(configure=False)
    monkeypatch.setattr(dns.asyncresolver, "Resolver", lambda: resolver)
    assert asyncio.run(look_up(name)) == []


@pytest.mark.parametrize(
    ("place", "name", "led"),
    [
        ("/dns/home.example/tcp/1", HOME, ["/ip4/9.9.9.9/tcp/1", "/ip6/2600::7/tcp/1"]),
        ("/dns4/home.example/tcp/1", HOME, ["/ip4/9.9.9.9/tcp/1"]),
        ("/dns6/home.example/tcp/1", HOME, ["/ip6/2600::7/tcp/1"]),
        ("/dns4/localhost/tcp/1", "", None),
        ("/dns4/printer.local/tcp/1", "", None),
        ("/dns4/host/tcp/1", "", None),
        ("/ip4/9.9.9.9/tcp/1", "", None),
        (f"/dns4/home.example/tcp/1/p2p/{PEER}/p2p-circuit", "", None),
    ],
)
def test_an_address_says_which_name_to_look_up(place: str, name: str, led: list[str] | None) -> None:
    address = PeerAddress.parse(f"{place}/p2p/{PEER}")
    assert address.public_name == name
    if led is not None:
        assert address.at(["9.9.9.9", "2600::7"]) == [PeerAddress.parse(f"{one}/p2p/{PEER}") for one in led]

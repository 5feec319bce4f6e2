"""From where an invite can work, told by its addresses alone."""

from __future__ import annotations

import pytest

from dht.addresses import PeerAddress, Reach
from dht.identity import Identity
from dht.invite_reach import limits_of, no_answer_message, widest

PEER = Identity(bytes(32)).peer_id
LOCAL, HOME, OUT, NAMED = (
    "/ip4/127.0.0.1/tcp/7400",
    "/ip4/192.168.1.5/tcp/7400",
    "/ip6/2600::7/tcp/1",
    "/dns4/a.example/tcp/1",
)


def at(*places: str) -> list[PeerAddress]:
    return [PeerAddress.parse(f"{place}/p2p/{PEER}") for place in places]


@pytest.mark.parametrize(
    ("places", "reach", "said"),
    [
        ((LOCAL,), Reach.LOOPBACK, "the host's own machine only; for others, connect the host to a network and"),
        ((LOCAL, HOME), Reach.PRIVATE, "the host's own network only"),
        ((LOCAL, HOME, OUT), Reach.PUBLIC, None),
        ((NAMED,), Reach.PUBLIC, None),
    ],
)
def test_the_best_address_says_from_where(places: tuple[str, ...], reach: Reach, said: str | None) -> None:
    assert widest(at(*places)) is reach
    assert bool(limits_of(at(*places))) == (said is not None)
    assert (said or "") in limits_of(at(*places))


@pytest.mark.parametrize(("listens_at", "start"), [("", True), ("127.0.0.1", True), ("0.0.0.0", False), ("::", False)])
def test_a_host_that_listens_everywhere_is_not_told_to_do_so(listens_at: str, start: bool) -> None:
    said = limits_of(at(LOCAL), listens_at)
    assert "connect the host to a network" in said
    assert ("--listen 0.0.0.0" in said) is start


def test_a_caller_without_an_answer_is_told_where_it_called_and_what_to_do() -> None:
    said = no_answer_message(at(LOCAL))
    assert said.startswith("nobody answers at 127.0.0.1:7400; check that the host is running, that its run is not over")
    assert "; this invite works on the host's own machine" in said
    five = no_answer_message(at(LOCAL, HOME, OUT, NAMED, "/ip4/8.8.8.8/tcp/1"))
    assert "127.0.0.1:7400, 192.168.1.5:7400, [2600::7]:1 and at 2 more places; check that the host is running" in five

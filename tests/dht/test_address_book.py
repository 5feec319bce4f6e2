"""Addresses of others outlive the process, within bounds, whatever the file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.address_book import ADDRESSES_PER_PEER, NOTES_KEPT, PEERS_KEPT, AddressBook
from dht.addresses import PeerAddress
from dht.identity import Identity
from tests.dht.conftest import ALICE, BOB

PEERS = [Identity(bytes([number + 1]) * 32).peer_id for number in range(PEERS_KEPT + 1)]


def address(peer: str, port: int = 7331) -> PeerAddress:
    return PeerAddress.parse(f"/ip4/203.0.113.7/tcp/{port}/p2p/{peer}")


def test_the_newest_addresses_of_a_peer_replace_its_old_ones(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "addresses")
    book.note([address(BOB.peer_id, 1), address(ALICE.peer_id)])
    book.note([address(BOB.peer_id, port) for port in range(2, 9)])
    newest = [address(BOB.peer_id, port) for port in range(2, 2 + ADDRESSES_PER_PEER)]
    assert book.addresses == (*newest, address(ALICE.peer_id))
    assert AddressBook(tmp_path / "addresses").addresses == book.addresses


def test_a_full_book_forgets_nobody_who_was_there_not_long_ago(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "addresses")
    book.note(map(address, PEERS[:PEERS_KEPT]))
    newcomer = address(PEERS[-1])
    for _ in range(NOTES_KEPT - 1):
        book.note([*map(address, PEERS[1:PEERS_KEPT]), newcomer])
        assert address(PEERS[0]) in book.addresses
    book.note([newcomer])
    assert newcomer in book.addresses
    assert address(PEERS[0]) not in book.addresses
    assert len(AddressBook(tmp_path / "addresses").addresses) == PEERS_KEPT


@pytest.mark.parametrize("content", [b"", b"nonsense\n", b"\xff\xfe", b"/ip4/203.0.113.7/tcp/1\n" * 9999])
def test_a_damaged_book_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "addresses").write_bytes(content)
    book = AddressBook(tmp_path / "addresses")
    assert book.addresses == ()
    book.note([address(ALICE.peer_id)])
    assert AddressBook(tmp_path / "addresses").addresses == (address(ALICE.peer_id),)


def test_a_folder_that_takes_nothing_is_no_reason_to_fail(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "missing" / "addresses")
    book.note([address(BOB.peer_id)])
    assert book.addresses == (address(BOB.peer_id),)

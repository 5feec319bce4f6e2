"""A file with the addresses at which other peers were last seen (design §8).

With it, a peer that restarts or was cut off finds the others even if every peer that its invite names is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dht.addresses import ADDRESS_CHARACTERS_MAX, PeerAddress
from dht.errors import UsageError
from dht.identity import PeerId

PEERS_KEPT = 32
ADDRESSES_PER_PEER = 2
NOTES_KEPT = 200  # a peer missing from this many notes in a row makes room for a new one
_FILE_CHARACTERS_MAX = PEERS_KEPT * ADDRESSES_PER_PEER * (ADDRESS_CHARACTERS_MAX + 1)


class AddressBook:
    """The last known addresses of at most `PEERS_KEPT` peers; without a path they last as long as this process.

    It forgets slowly: after a partition it still has peers of the other side, however many peers are on ours.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._notes = 0
        self._seen_at: dict[PeerId, int] = {}  # number of the note that last had the peer, longest ago first
        self._addresses: dict[PeerId, tuple[PeerAddress, ...]] = {}
        self._enter(() if path is None else _read(path))

    @property
    def addresses(self) -> tuple[PeerAddress, ...]:
        """All kept addresses, those of the most recently seen peer first."""
        return tuple(address for peer in reversed(self._seen_at) for address in self._addresses[peer])

    def note(self, addresses: Iterable[PeerAddress]) -> None:
        """Record that these peers are there and save the book. A failed write leaves only the file out of date."""
        before = dict(self._addresses)
        self._notes += 1
        self._enter(addresses)
        if self._path is not None and self._addresses != before:
            temporary = self._path.with_name(self._path.name + ".new")
            lines = (f"{address}\n" for peer in self._seen_at for address in self._addresses[peer])
            with suppress(OSError):
                temporary.write_text("".join(lines), encoding="ascii")
                temporary.replace(self._path)

    def _enter(self, addresses: Iterable[PeerAddress]) -> None:
        by_peer: dict[PeerId, tuple[PeerAddress, ...]] = {}
        for address in addresses:
            by_peer[address.peer_id] = (*by_peer.get(address.peer_id, ()), address)[:ADDRESSES_PER_PEER]
        for peer, found in by_peer.items():
            if peer in self._seen_at or self._has_room():
                self._seen_at.pop(peer, None)
                self._seen_at[peer], self._addresses[peer] = self._notes, found

    def _has_room(self) -> bool:
        if len(self._seen_at) < PEERS_KEPT:
            return True
        oldest = next(iter(self._seen_at))
        if self._seen_at[oldest] > self._notes - NOTES_KEPT:
            return False
        del self._seen_at[oldest], self._addresses[oldest]
        return True


def _read(path: Path) -> list[PeerAddress]:
    """Return the addresses in a file, longest unseen first; empty if it cannot be read."""
    found = []
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="ascii") as file:
        for line in file.read(_FILE_CHARACTERS_MAX).splitlines():
            with suppress(UsageError):
                found.append(PeerAddress.parse(line))
    return found

"""Where other peers were last seen, in a file: a peer that starts anew, or was cut off, finds the others even if
everybody that its invite names is gone (design §8)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dht.addresses import ADDRESS_CHARACTERS_MAX, PeerAddress
from dht.errors import UsageError
from dht.identity import PeerId

PEERS_KEPT = 32
ADDRESSES_PER_PEER = 2
NOTES_KEPT = 200  # a peer that was in none of so many notes makes room for a new one
_FILE_CHARACTERS_MAX = PEERS_KEPT * ADDRESSES_PER_PEER * (ADDRESS_CHARACTERS_MAX + 1)


class AddressBook:
    """Bounded, and slow to forget: after a partition it still has peers of the other side, however many are on ours.

    Without a path it lasts as long as this process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._notes = 0
        self._seen_at: dict[PeerId, int] = {}  # the note, longest ago first
        self._addresses: dict[PeerId, tuple[PeerAddress, ...]] = {}
        self._enter(() if path is None else _read(path))

    @property
    def addresses(self) -> tuple[PeerAddress, ...]:
        """Those of the peer seen last come first."""
        return tuple(address for peer in reversed(self._seen_at) for address in self._addresses[peer])

    def note(self, addresses: Iterable[PeerAddress]) -> None:
        """These peers are there. A disk that does not take it costs the memory of them, nothing else."""
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
    """What a file holds of addresses, longest unseen first; nothing if it cannot be read."""
    found = []
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="ascii") as file:
        for line in file.read(_FILE_CHARACTERS_MAX).splitlines():
            with suppress(UsageError):
                found.append(PeerAddress.parse(line))
    return found

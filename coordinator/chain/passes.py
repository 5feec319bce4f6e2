"""Deals windows of text to peers in a run that reads in passes, `data.order = "passes"` (docs/how-to/data.md). Pure.

A text is cut into windows that do not overlap, and every pass puts all of them in an order of its own. The places in
that order are dealt out by what peers agree on anyway. A version of fragment 0 has a block of places, and each
contributor to that version has a lane of the block. So two peers have different lanes of one block, or different
blocks. At the end of its lane a peer goes on with the same lane of a further pass. A guest, whose work is in no version
yet, reads the few places that no version has. Its key and the version draw where it starts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from coordinator.chain.certificate import Certificate
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, RunConfig
from dht.errors import UsageError
from dht.identity import PeerId
from dht.statement import digest_of

GUESTS_SHARE = 64  # one in so many windows of a pass is for guests
WINDOWS_MIN = GUESTS_SHARE  # a block then has a place for each of PEERS_PER_GROUP_MAX members, too
MIXING_ROUNDS = 4

# fields of a window's number, at most 53 bits as on the wire: version, member or guest, rank, lanes - 1, index in lane
VERSIONS, RANKS, INDICES = 1 << 20, PEERS_PER_GROUP_MAX, 1 << 22


@dataclass(frozen=True, slots=True)
class ReadingLane:
    """The part of a version's block that one of `lanes` members reads; with 0 lanes, what a guest reads."""

    version: int
    rank: int = 0
    lanes: int = 0

    @classmethod
    def of(cls, window: int) -> Self:
        """Return the lane of a window. Numbers just below a lane's first count as its own: no other lane has them."""
        fields = (window + INDICES // 2) // INDICES
        fields, lanes = divmod(fields, RANKS)
        fields, rank = divmod(fields, RANKS)
        version, is_member = divmod(fields, 2)
        return cls(version % VERSIONS, rank, lanes + 1) if is_member else cls(version % VERSIONS)

    @property
    def first(self) -> int:
        """The number of its first window; the others follow."""
        rank, lanes = (RANKS + self.rank, self.lanes - 1) if self.lanes else (0, 0)
        return ((self.version % VERSIONS * 2 * RANKS + rank) * RANKS + lanes) * INDICES


def lane_of(newest: Certificate | None, founders: Iterable[PeerId], me: PeerId) -> ReadingLane:
    """Return the lane of a peer that holds this version of fragment 0; None is version 0, dealt to the founders."""
    version, readers = 0, sorted(founders)
    if newest is not None:
        version, readers = newest.version, sorted(PeerId(one.peer) for one in newest.outcome.contributors)
    return ReadingLane(version, readers.index(me), len(readers)) if me in readers else ReadingLane(version)


def next_window(window: int, first: int) -> int:
    """Return the window that a peer reads next: `window`, or `first` of the lane that it is offered.

    A peer that already reads that lane goes on. So does a member whose work is not in the newest version: no other peer
    has its lane of an older one.
    """
    held, offered = ReadingLane.of(window), ReadingLane.of(first)
    return window if held == offered or (held.lanes and not offered.lanes) else first


def check_windows(windows: int, context_tokens: int) -> None:
    """Raise UsageError if a text of so many windows is too small to be dealt out."""
    if windows < WINDOWS_MIN:
        raise UsageError(
            f"the training text holds {windows} sequences of {context_tokens} tokens, and a run that reads in passes "
            f'(data.order = "passes") needs {WINDOWS_MIN}; bring more text'
        )


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The plan by which a text of `windows` is dealt: to `blocks` versions per pass, `block` windows to each."""

    windows: int
    blocks: int
    block: int
    sequences_per_step: int
    run_key: bytes
    peer_id: str

    @classmethod
    def of(cls, windows: int, config: RunConfig, run_key: bytes, peer_id: str) -> Self:
        """Plan for a text of so many windows. One pass is the whole run, unless blocks would be too small for a group.

        Raises UsageError if there are too few windows for any pass.
        """
        check_windows(windows, config.data.context_tokens)
        dealt = windows - windows // GUESTS_SHARE
        versions = 1 + -(-config.versions // config.pace.fragments)  # of fragment 0, and version 0
        blocks = min(versions, dealt // PEERS_PER_GROUP_MAX)
        return cls(windows, blocks, dealt // blocks, config.data.sequences_per_step, run_key, peer_id)

    def sequence(self, window: int, sequence: int) -> tuple[tuple[int, int], int]:
        """Return the pass, and the text's window in [0, windows), of one sequence of the step at `window`."""
        lane = ReadingLane.of(window)
        at = (window - lane.first) * self.sequences_per_step + sequence
        of_pass, place = self._place(lane, at)
        key = digest_of(b"muster-pass", self.run_key, *(one.to_bytes(8, "big", signed=True) for one in of_pass))
        return of_pass, permuted(place, self.windows, key)

    def _place(self, lane: ReadingLane, at: int) -> tuple[tuple[int, int], int]:
        """Return the pass, and the place in its order, of the `at`-th sequence that a peer reads in a lane."""
        turn, block = divmod(lane.version, self.blocks)
        if lane.lanes:
            own = range(lane.rank, self.block, lane.lanes)  # of the block; ranks are below PEERS_PER_GROUP_MAX
            lap, step = divmod(at, len(own))
            return (turn, lap), block * self.block + own[step]
        first = self.blocks * self.block
        seed = digest_of(b"muster-guest", self.run_key, self.peer_id.encode(), lane.version.to_bytes(8, "big"))
        lap, step = divmod(int.from_bytes(seed[:8], "big") % (self.windows - first) + at, self.windows - first)
        return (turn, lap), first + step


def permuted(place: int, count: int, key: bytes) -> int:
    """Permute `place` by a permutation of range(count) that `key` draws, without a table.

    A Feistel network over a rectangle of at least `count` numbers (Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains"). A result beyond `count` is permuted again, which is rare in a rectangle this tight.
    """
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    while True:
        row, column = divmod(place, columns)
        for number in range(MIXING_ROUNDS):
            if number % 2:
                column = (column + _mixed(number, row, key)) % columns
            else:
                row = (row + _mixed(number, column, key)) % rows
        place = row * columns + column
        if place < count:
            return place


def _mixed(number: int, half: int, key: bytes) -> int:
    data = bytes([number]) + half.to_bytes(8, "big")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=key).digest(), "big")

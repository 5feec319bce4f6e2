"""Whose window is whose where a run reads its text in passes, `data.order = "passes"` (docs/how-to/data.md). Pure.

A text is cut into windows that do not overlap, and every pass puts all of them in an order of its own. Places in that
order are dealt out by what peers agree on anyway: a version of fragment 0 has a block of them, and everybody whose work
is in that version has a lane of the block. So two peers have different lanes of one block, or different blocks. Who
comes to the end of its lane goes on with the same lane of a further pass. Who is in no version yet, a guest, reads a
few places that no version has, from one on that its key and the version draw.
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

GUESTS_SHARE = 64  # of so many windows of a pass one at least is for guests
WINDOWS_MIN = GUESTS_SHARE  # then a block has a place for each of PEERS_PER_GROUP_MAX members, too
MIXING_ROUNDS = 4

# a window's number, at most 53 bits as on the wire: version, member or guest, rank, lanes - 1, and which of the lane's
VERSIONS, RANKS, INDICES = 1 << 20, PEERS_PER_GROUP_MAX, 1 << 22


@dataclass(frozen=True, slots=True)
class ReadingLane:
    """The part of a version's block that one of `lanes` members reads; no lanes: what a guest reads at that version."""

    version: int
    rank: int = 0
    lanes: int = 0

    @classmethod
    def of(cls, window: int) -> Self:
        """Whose window that is. Numbers just below a lane's first are that lane's, too: nobody's windows before it."""
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
    """Where a peer reads that holds this version of fragment 0; None: version 0, which is the founders'."""
    version, readers = 0, sorted(founders)
    if newest is not None:
        version, readers = newest.version, sorted(PeerId(one.peer) for one in newest.outcome.contributors)
    return ReadingLane(version, readers.index(me), len(readers)) if me in readers else ReadingLane(version)


def next_window(window: int, first: int) -> int:
    """What a peer that may read a lane from `first` on reads next instead of `window`.

    Who reads that lane already goes on, and so does a member whose work is not in the newest version: its lane of an
    older one is nobody else's.
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
    """Which window of a text is which: `windows` of them, dealt to `blocks` versions a pass, `block` to each."""

    windows: int
    blocks: int
    block: int
    sequences_per_step: int
    run_key: bytes
    peer_id: str

    @classmethod
    def of(cls, windows: int, config: RunConfig, run_key: bytes, peer_id: str) -> Self:
        """For a text of so many windows. One pass is the whole run, unless blocks would get too small for a group.

        Raises UsageError if there are too few windows for any pass.
        """
        check_windows(windows, config.data.context_tokens)
        dealt = windows - windows // GUESTS_SHARE
        versions = 1 + -(-config.versions // config.pace.fragments)  # of fragment 0, and version 0
        blocks = min(versions, dealt // PEERS_PER_GROUP_MAX)
        return cls(windows, blocks, dealt // blocks, config.data.sequences_per_step, run_key, peer_id)

    def sequence(self, window: int, sequence: int) -> tuple[tuple[int, int], int]:
        """The pass, and the window of the text in [0, windows), of one sequence of the step with this number."""
        lane = ReadingLane.of(window)
        at = (window - lane.first) * self.sequences_per_step + sequence
        of_pass, place = self._place(lane, at)
        key = digest_of(b"muster-pass", self.run_key, *(one.to_bytes(8, "big", signed=True) for one in of_pass))
        return of_pass, permuted(place, self.windows, key)

    def _place(self, lane: ReadingLane, at: int) -> tuple[tuple[int, int], int]:
        """The pass, and the place in its order, of what somebody reads as its `at`-th sequence in a lane."""
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
    """Where a permutation of range(count), drawn by `key`, takes `place`, without a table.

    A Feistel network over a rectangle of at least `count` numbers (Black and Rogaway 2002, "Ciphers with arbitrary
    finite domains"), walked on from whatever is beyond `count`; in a rectangle this tight that is next to nothing.
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

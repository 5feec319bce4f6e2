"""Opened leaves: how a voter checks a reducer's work, and how it proves that the reducer cheated (design §6.2 step 8).

A voter that holds a signed result asks its reducer to open a few leaves. The reducer sends, for every included input,
the leaves from which it made the result's leaf, with a Merkle proof to the part root that their owner committed. The
voter recomputes combination and encoding of that leaf and compares bytes. A seed that no other peer can know before the
result is signed draws the leaves (`seed_of`). If a reducer does not open them, the contributors open their own.

Four things prove a false leaf, without a witness:

1. the leader's signed *bundle*: it holds every contributor's signed commitment, and so the part roots;
2. the reducer's signed *result* statement over that input set: its root, the inputs included, their coefficients;
3. a `Refutation`: the leaf's index, for each included input, in order, its leaves and their proof (`OpenedInput`),
   and the result's own leaf with its proof, which all fit together as `is_opened` checks;
4. the recomputation of that leaf from 3 with the coefficients of 2 and the norms and weights of 1. Any peer with the
   run's layout can repeat it bit for bit (`peer.rounds.spot_checks`), and it gives other bytes than the result's leaf.

Layout and codecs determine how many leaves a tree has, and which leaves of an input a leaf of the result covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from coordinator.chain.certificate import MemberIndex
from coordinator.chain.weights import most_hostile
from coordinator.run.manifest import PEERS_PER_GROUP_MAX
from coordinator.wire.merkle import SHORT_LEAF_BYTES_MAX, leaf_digest, node_digest
from dht.statement import Digest, digest_of
from dht.wire import Wire

PARTITIONS_MAX = PEERS_PER_GROUP_MAX
LEAF_BYTES_MAX = SHORT_LEAF_BYTES_MAX
OPENED_PIECES_MAX = 1 << 10
SIBLINGS_MAX = 1 << 13

Partition = Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]
Turn = Annotated[int, Field(ge=0, le=1)]
Piece = Annotated[bytes, Field(max_length=LEAF_BYTES_MAX)]
LeafIndex = Annotated[int, Field(ge=0, lt=1 << 40)]

Place = tuple[int, int]
"""A node of a tree: its level, 0 for leaves, and its index there."""


class OpenNote(Wire):
    """Asks a reducer to open the leaves that `seed` draws; with `own`, asks a contributor for its input alone."""

    group: Digest  # the roster
    partition: Partition
    turn: Turn
    seed: Digest
    own: bool


class OpenedInput(Wire):
    """Leaves of one contribution in ascending order, and the siblings that prove all of them together."""

    member: MemberIndex
    pieces: tuple[Piece, ...] = Field(max_length=OPENED_PIECES_MAX)
    siblings: tuple[Digest, ...] = Field(max_length=SIBLINGS_MAX)


class OpeningNote(Wire):
    """Answers OpenNote with the included inputs except the asker's own, which it has itself."""

    group: Digest
    partition: Partition
    turn: Turn
    seed: Digest
    inputs: tuple[OpenedInput, ...] = Field(max_length=PEERS_PER_GROUP_MAX)


class Refutation(Wire):
    """Shows that leaf `leaf` of a result does not follow from its inputs, all of which are opened, in order."""

    partition: Partition
    turn: Turn
    result: Digest  # of the reducer's statement
    leaf: LeafIndex
    inputs: tuple[OpenedInput, ...] = Field(min_length=1, max_length=PEERS_PER_GROUP_MAX)
    piece: Piece  # the result's leaf
    siblings: tuple[Digest, ...] = Field(max_length=SIBLINGS_MAX)


def seed_of(nonce: bytes, partition: int, turn: int) -> bytes:
    """Return the seed that draws a voter's leaves of one partition; other peers know it once they know the nonce."""
    return digest_of(b"muster-openings", nonce, bytes([partition, turn]))


def drawn_leaves(seed: bytes, leaves: int, count: int) -> tuple[int, ...]:
    """Draw `count` different leaves of `leaves` (all of them if there are no more), in ascending order.

    It is Floyd's sampling without replacement (Bentley and Floyd 1987), with SHA-256 of seed and step as its numbers.
    """
    drawn: set[int] = set()
    for last in range(max(leaves - count, 0), leaves):
        number = int.from_bytes(hashlib.sha256(seed + last.to_bytes(8, "big")).digest()[:16], "big") % (last + 1)
        drawn.add(last if number in drawn else number)
    return tuple(sorted(drawn))


def sibling_places(indices: Sequence[int], leaves: int) -> list[Place]:
    """Return the nodes that prove leaves `indices` of `leaves` together, level by level, none of them derivable."""
    places: list[Place] = []
    known, level, count = sorted(set(indices)), 0, leaves
    while count > 1:
        have = set(known)
        places += [(level, index ^ 1) for index in known if index ^ 1 < count and index ^ 1 not in have]
        known, level, count = sorted({index // 2 for index in known}), level + 1, (count + 1) // 2
    return places


def known_nodes(
    pieces: Sequence[bytes], indices: Sequence[int], leaves: int, siblings: Sequence[bytes]
) -> dict[Place, bytes] | None:
    """Return all nodes that these leaves and siblings determine, root last; None if they do not fit. Never raises."""
    ordered = list(indices) == sorted(set(indices)) and all(0 <= index < leaves for index in indices)
    if not ordered or not indices or len(pieces) != len(indices):
        return None
    places = sibling_places(indices, leaves)
    if len(places) != len(siblings):
        return None
    nodes: dict[Place, bytes] = dict(zip(places, siblings, strict=True))
    nodes.update({(0, index): leaf_digest(piece) for index, piece in zip(indices, pieces, strict=True)})
    known, level, count = list(indices), 0, leaves
    while count > 1:
        known = sorted({index // 2 for index in known})
        for index in known:
            left = nodes[level, 2 * index]
            nodes[level + 1, index] = node_digest(left, nodes[level, 2 * index + 1]) if 2 * index + 1 < count else left
        level, count = level + 1, (count + 1) // 2
    return nodes


def is_opened(
    root: bytes, pieces: Sequence[bytes], indices: Sequence[int], leaves: int, siblings: Sequence[bytes]
) -> bool:
    """Whether `pieces` are leaves `indices` (ascending) of the `leaves` under `root`; never raises on hostile input."""
    nodes = known_nodes(pieces, indices, leaves, siblings)
    return nodes is not None and nodes[depth_of(leaves), 0] == root


def depth_of(leaves: int) -> int:
    """Return the level of the root in a tree of so many leaves."""
    return max(leaves - 1, 0).bit_length()


def siblings_from(nodes: Mapping[Place, bytes], indices: Sequence[int], leaves: int) -> tuple[bytes, ...]:
    """Return the proof of leaves `indices`, taken from the `known_nodes` of more leaves."""
    return tuple(nodes[place] for place in sibling_places(indices, leaves))


LOOKS_WANTED = 92  # 0.95^92 < 1 %: a reducer that alters one leaf in twenty is found in 99 rounds of 100
OPENING_BYTES_MAX = 512 << 10  # of one answer
INPUT_BYTES_MIN = 64 << 10  # always allowed for one opened input, whatever the limit on an answer allows
CHECK_BYTES_MIN = 1 << 20  # a voter may always ask for this much in one round, however small the fragment is
CHECK_SHARE_MAX = 0.14  # of the bytes of a plain butterfly: with all small messages, checks stay within 15 %


def leaves_per_voter(voters: int, members: int, partitions: int, bytes_each: int, butterfly_bytes: int) -> int:
    """Return how many leaves a voter opens in each partition, at least one (design §6.2 step 8).

    Together the honest voters open `LOOKS_WANTED`, even if as many as are tolerated are the reducer and its
    accomplices; fewer if that exceeds a share of the traffic. `bytes_each` is the size of one opened leaf of one input,
    with its proof. The inputs of all `members` but one are opened, even if only one of them votes, as in a cell.
    """
    lookers = max(voters - max(1, most_hostile(voters)), 1)
    per_leaf = max(members - 1, 1) * bytes_each
    of_round = max(CHECK_BYTES_MIN, int(CHECK_SHARE_MAX * butterfly_bytes)) // (max(partitions - 1, 1) * per_leaf)
    return max(1, min(-(-LOOKS_WANTED // lookers), of_round, OPENING_BYTES_MAX // per_leaf))


def is_long(opened: OpenedInput, members: int) -> bool:
    """Whether an opened input is longer than any honest one: twice its part of an answer, as proofs share little."""
    size = sum(map(len, opened.pieces)) + sum(map(len, opened.siblings))
    return size > max(INPUT_BYTES_MIN, 2 * OPENING_BYTES_MAX // max(members - 1, 1))

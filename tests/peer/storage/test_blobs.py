"""The store for bytes of rounds in flight: it is bounded, and no sender's flood evicts what others sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.wire.merkle import merkle_tree
from dht.identity import PeerId
from peer.storage.blobs import ENTRY_BYTES, NODE_BYTES, BlobStore

A, B, FLOOD = PeerId("a"), PeerId("b"), PeerId("flood")
LEAF_BYTES = 64


def taken(size: int) -> int:
    """Return the bytes that a blob of this size counts for: itself, its tree and its entry."""
    return size + ENTRY_BYTES + NODE_BYTES * merkle_tree(bytes(size), LEAF_BYTES).nodes


def room(*sizes: int) -> int:
    """Return the bound within which blobs of these sizes just fit."""
    return sum(map(taken, sizes))


def data(number: int, size: int = 10) -> bytes:
    return number.to_bytes(4, "big") + bytes(size - 4)


def test_added_bytes_are_found_by_their_root() -> None:
    store = BlobStore(room(10))
    root = store.add(data(1), LEAF_BYTES, A)
    assert root == merkle_tree(data(1), LEAF_BYTES).root
    assert store.get(root) == data(1)
    assert store.get(bytes(32)) is None


def test_the_oldest_goes_first_while_everybody_keeps_to_a_share() -> None:
    store = BlobStore(room(*[10] * 5))
    roots = [store.add(data(number), LEAF_BYTES, sender) for number, sender in enumerate([A, B, A, None, B, None])]
    assert store.get(roots[0] or b"") is None
    assert all(root and store.get(root) for root in roots[1:])


def test_a_flood_drives_out_only_itself() -> None:
    store = BlobStore(room(*[10] * 10))
    kept = [store.add(data(number), LEAF_BYTES, sender) for number, sender in enumerate([None, A, B, None, A, B])]
    floods = [store.add(data(100 + number), LEAF_BYTES, FLOOD) for number in range(50)]
    assert all(store.get(root) for root in kept)
    assert [store.get(root) is not None for root in floods] == [False] * 46 + [True] * 4


def test_one_sender_can_not_use_more_than_all_of_it() -> None:
    store = BlobStore(room(10, 90))
    own = store.add(data(1), LEAF_BYTES)
    assert store.add(data(2, 91), LEAF_BYTES, FLOOD) is None, "it had to go at once"
    assert len(store) == 1
    assert store.get(own) == data(1)


def test_bytes_that_a_round_needs_stay_whichever_peer_sent_them() -> None:
    """This includes what the flooding peer sent first: it must not vanish once others rely on it."""
    store = BlobStore(room(*[10] * 8))
    roots = [store.add(data(number), LEAF_BYTES, sender) for number, sender in enumerate([None, FLOOD, A])]
    store.needed = frozenset(root for root in roots if root)
    for number in range(30):
        store.add(data(100 + number), LEAF_BYTES, FLOOD)
    for number in range(30):
        store.add(data(200 + number), LEAF_BYTES)
    assert all(root and store.get(root) for root in roots)


@given(
    st.lists(st.tuples(st.sampled_from([None, A, B, FLOOD]), st.integers(0, 30), st.integers(4, 40)), max_size=60),
    st.integers(430, 3000),
)
def test_the_bound_holds_and_the_books_are_right(puts: list[tuple[PeerId | None, int, int]], bytes_max: int) -> None:
    store = BlobStore(bytes_max)
    for sender, number, size in puts:
        store.add(data(number, size), LEAF_BYTES, sender)
        assert room(*map(len, store._blobs.values())) == store._bytes <= bytes_max
        assert store._trees.keys() == store._blobs.keys()
        assert {root: by for by, roots in store._of.items() for root in roots} == store._senders
        for one in (A, B, FLOOD):
            sent = room(*(len(store._blobs[root]) for root, by in store._senders.items() if by == one))
            assert store._sent_bytes[one] == sent

"""Removed and readmitted peers: a function of the set of orders, and of nothing else."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.trust import orders as orders_module
from coordinator.trust.orders import (
    ORDERS_EACH_MAX,
    Issued,
    Order,
    Orders,
    delegate,
    merged,
    read_order,
    sign_order,
)
from dht.admission import Delegation, place
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement, make_statement
from tests.coordinator.builders import Club, digest

CLUB = Club.of(5, real_keys=True)
ORGANISER, DEPUTY, SECOND, ANN, BOB = CLUB.signers
RULES = CLUB.rules
RUN_ID = RULES.run_id


def issued(issuer: object, subject: object, revoked: bool, serial: int) -> Issued:
    order = Order(subject=subject.peer_id, revoked=revoked, serial=serial)  # type: ignore[attr-defined]
    return Issued(order, issuer.peer_id, issuer is ORGANISER)  # type: ignore[attr-defined]


ANY = st.builds(
    issued,
    st.sampled_from((ORGANISER, DEPUTY, SECOND)),
    st.sampled_from((DEPUTY, SECOND, ANN, BOB)),
    st.booleans(),
    st.integers(0, 4),
)


def book(orders: list[Issued]) -> Orders:
    made = Orders()
    for one in orders:
        made.add(one)
    return made


@given(st.lists(ANY, max_size=6), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_matters(orders: list[Issued], random: object) -> None:
    shuffled = [*orders, *orders[:3]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert book(orders).latest == book(shuffled).latest
    assert book(orders).revoked() == book(shuffled).revoked()


@given(st.lists(ANY, max_size=5), st.lists(ANY, max_size=5))
def test_two_sides_that_meet_come_to_the_same(left: list[Issued], right: list[Issued]) -> None:
    """There is a revocation on each side of a network partition, or two organisers disagree."""
    sides = [book(left), book(right)]
    assert merged(sides).latest == merged(sides[::-1]).latest == book([*left, *right]).latest


@given(st.lists(ANY, max_size=6), st.sampled_from((DEPUTY, SECOND, ANN, BOB)), st.booleans())
def test_the_organiser_has_the_last_word(orders: list[Issued], subject: object, revoked: bool) -> None:
    last = issued(ORGANISER, subject, revoked, 5)
    assert book([*orders, last]).is_revoked(last.subject) == revoked


def test_of_co_organisers_the_later_one_is_heard() -> None:
    out, back = issued(DEPUTY, ANN, True, 1), issued(SECOND, ANN, False, 2)
    for orders in permutations((out, back)):
        assert not book(list(orders)).is_revoked(out.subject)
    assert book([out, issued(SECOND, ANN, False, 1)]).is_revoked(out.subject)  # in doubt a peer stays out


def test_orders_of_a_co_organiser_who_was_shown_out_hold_no_more() -> None:
    out = issued(DEPUTY, ANN, True, 3)
    gone = issued(ORGANISER, DEPUTY, True, 4)
    back = issued(ORGANISER, DEPUTY, False, 5)
    again = issued(DEPUTY, ANN, True, 6)
    for orders in permutations((out, gone)):
        assert book(list(orders)).revoked() == (DEPUTY.peer_id,)
    for orders in permutations((out, gone, back)):
        assert book(list(orders)).revoked() == ()
    for orders in permutations((out, gone, back, again)):
        assert book(list(orders)).revoked() == (ANN.peer_id,)


def test_an_order_of_another_co_organiser_counts_again_when_the_one_over_it_is_gone() -> None:
    orders = [issued(DEPUTY, ANN, True, 1), issued(SECOND, ANN, False, 2), issued(ORGANISER, SECOND, True, 3)]
    for some in permutations(orders):
        assert book(list(some)).revoked() == tuple(sorted((SECOND.peer_id, ANN.peer_id)))


def signed(issuer: object, subject: PeerId, run_id: bytes = RUN_ID) -> Statement:
    return sign_order(issuer, run_id, Order(subject=subject, revoked=True, serial=1))  # type: ignore[arg-type]


def test_organiser_and_co_organisers_may_give_orders() -> None:
    assert read_order(signed(ORGANISER, ANN.peer_id), b"", RULES).by_organiser
    word = delegate(ORGANISER, RUN_ID, DEPUTY.peer_id).to_wire()
    found = read_order(signed(DEPUTY, ANN.peer_id), word, RULES)
    assert (found.issuer, found.by_organiser, found.subject) == (DEPUTY.peer_id, False, ANN.peer_id)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        (signed(ANN, BOB.peer_id), b""),
        (signed(ANN, BOB.peer_id), delegate(ORGANISER, RUN_ID, DEPUTY.peer_id).to_wire()),
        (signed(ANN, BOB.peer_id), delegate(ANN, RUN_ID, ANN.peer_id).to_wire()),
        (signed(DEPUTY, BOB.peer_id), delegate(ORGANISER, digest("another"), DEPUTY.peer_id).to_wire()),
        (signed(DEPUTY, ORGANISER.peer_id), delegate(ORGANISER, RUN_ID, DEPUTY.peer_id).to_wire()),
        (signed(ORGANISER, ORGANISER.peer_id), b""),
        (signed(ORGANISER, ANN.peer_id, digest("another")), b""),
        (signed(ORGANISER, ANN.peer_id), delegate(ORGANISER, RUN_ID, DEPUTY.peer_id).to_wire()),
        (make_statement(ORGANISER, place(RUN_ID, "order"), Delegation(deputy=ANN.peer_id)), b""),
    ],
)
def test_other_peers_may_not_give_orders(statement: Statement, word: bytes) -> None:
    with pytest.raises(PeerError):
        read_order(statement, word, RULES)


def about(number: int, issuer: object, serial: int = 1) -> Issued:
    order = Order(subject=f"{number:046}".replace("0", "z"), revoked=True, serial=serial)
    return Issued(order, issuer.peer_id, issuer is ORGANISER)  # type: ignore[attr-defined]


def test_a_co_organiser_with_more_orders_than_its_share_loses_its_own_oldest_ones() -> None:
    """The organiser and other co-organisers lose none of theirs."""
    made = Orders()
    theirs = issued(SECOND, BOB, True, 1)
    assert made.add(theirs)
    for number in range(2 * ORDERS_EACH_MAX):
        assert made.add(about(number, DEPUTY, serial=number + 1))
    assert not made.add(about(3 * ORDERS_EACH_MAX, DEPUTY, serial=1))
    assert made.add(issued(ORGANISER, ANN, True, 1))
    assert len(made) == ORDERS_EACH_MAX + 2
    assert made.is_revoked(ANN.peer_id)
    assert made.is_revoked(theirs.subject)
    assert made.is_revoked(about(2 * ORDERS_EACH_MAX - 1, DEPUTY).subject)
    assert not made.is_revoked(about(0, DEPUTY).subject)
    assert made.add(issued(ORGANISER, DEPUTY, True, 3 * ORDERS_EACH_MAX)) >= made.latest[DEPUTY.peer_id].keys()
    assert made.revoked() == tuple(sorted((theirs.subject, ANN.peer_id, DEPUTY.peer_id)))


def kept_of(orders: list[Issued], each_max: int, deputies_max: int) -> dict[PeerId, dict[PeerId, Issued]]:
    """Return the orders that are kept of all these, computed in another way than the code does."""
    books: dict[PeerId, dict[PeerId, Issued]] = {}
    for one in sorted(orders, key=lambda one: one.rank):
        books.setdefault(one.issuer, {})[one.subject] = one
    deputies = sorted(books.keys() - {ORGANISER.peer_id})[:deputies_max]
    heard = {issuer: sorted(books[issuer].values(), key=lambda one: one.rank) for issuer in books}
    return {
        issuer: {one.subject: one for one in heard[issuer][-each_max:]}
        for issuer in books
        if issuer in (*deputies, ORGANISER.peer_id)
    }


MANY = st.builds(
    issued, st.sampled_from(CLUB.signers), st.sampled_from(CLUB.signers[1:]), st.booleans(), st.integers(0, 4)
)


@given(st.lists(MANY, max_size=24), st.randoms(use_true_random=False))
def test_beyond_the_bound_neither_order_nor_repetition_matters_either(orders: list[Issued], random: object) -> None:
    shuffled = [*orders, *orders[:5]]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(orders_module, "ORDERS_EACH_MAX", 2)
        patched.setattr(orders_module, "DEPUTIES_MAX", 2)
        made = Orders()
        for one in shuffled:
            before = made.revoked()
            changed = made.add(one)
            assert set(before) ^ set(made.revoked()) <= changed
        assert made.latest == book(orders).latest == kept_of(orders, 2, 2)

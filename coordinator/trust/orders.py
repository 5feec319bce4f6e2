"""Orders, by which the organiser removes a key from a run and readmits it (docs/adr/0060). Pure.

An order proves itself: it is signed by the organiser, or by a co-organiser that adds the organiser's delegation. Which
orders hold is a function of the set of them, in whatever sequence and however often they arrived. So all peers that
have seen the same orders agree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import Field

from coordinator.chain.chain import Rules
from coordinator.run.model_spec import LINE
from dht.admission import AdmissionAuthority, Delegation, place
from dht.errors import PeerError
from dht.identity import PeerId, Signer
from dht.statement import PeerIdText, Statement, digest_of, make_statement
from dht.wire import Wire

REASON_CHARACTERS_MAX = 120
ORDERS_EACH_MAX = 256  # of the organiser, and of each co-organiser: one for each key
DEPUTIES_MAX = 16  # co-organisers whose orders are kept; only the organiser can appoint more
ORDERS_MAX = (1 + DEPUTIES_MAX) * ORDERS_EACH_MAX
SERIAL_MAX = 2**53


class Order(Wire):
    """Removes a key from the run, or readmits it. The highest serial of one issuer about a key counts."""

    subject: PeerIdText
    revoked: bool
    serial: int = Field(ge=0, le=SERIAL_MAX)  # unix milliseconds, if the issuer's clock is right
    reason: str = Field("", max_length=REASON_CHARACTERS_MAX, pattern=LINE)


@dataclass(frozen=True, slots=True)
class Issued:
    """An order whose signatures were verified."""

    order: Order
    issuer: PeerId
    by_organiser: bool

    @property
    def subject(self) -> PeerId:
        return PeerId(self.order.subject)

    @property
    def rank(self) -> tuple[bool, int, bool, bytes]:
        """Precedence of an order: first the organiser's, then the later one, then a revocation."""
        digest = digest_of(b"muster-order", self.issuer.encode(), self.order.to_wire())
        return self.by_organiser, self.order.serial, self.order.revoked, digest


def sign_order(signer: Signer, run_id: bytes, order: Order) -> Statement:
    """Sign an order as the organiser or a co-organiser."""
    return make_statement(signer, place(run_id, "order"), order)


def delegate(organiser: Signer, run_id: bytes, deputy: PeerId) -> Statement:
    """Sign the organiser's statement that `deputy` is a co-organiser."""
    return make_statement(organiser, place(run_id, "delegate"), Delegation(deputy=deputy))


def delegation_of(authority: AdmissionAuthority, deputy: PeerId, signature: bytes) -> Statement:
    """Return the delegation that has this signature of the organiser."""
    body = Delegation(deputy=deputy).to_wire()
    return Statement(
        context=place(authority.run_id, "delegate"), sender=authority.organiser, body=body, signature=signature
    )


def read_order(statement: Statement, delegation: bytes, rules: Rules) -> Issued:
    """Read the order in a verified statement; `delegation` proves that a co-organiser may give it. Raises PeerError."""
    if statement.context != place(rules.run_id, "order"):
        raise PeerError("no order of this run")
    order, issuer = statement.read(Order), PeerId(statement.sender)
    if order.to_wire() != statement.body:
        raise PeerError("an order with something in it that nobody here knows")
    if order.subject == rules.organiser:
        raise PeerError("an order about the organiser")
    if issuer == rules.organiser:
        if delegation:
            raise PeerError("an organiser needs nobody's word")
        return Issued(order, issuer, by_organiser=True)
    word = Statement.from_wire(delegation)
    if word.to_wire() != delegation or word.context != place(rules.run_id, "delegate"):
        raise PeerError("no delegation of this run")
    if word.sender != rules.organiser or word.read(Delegation).deputy != issuer or not word.verify(rules.verifier):
        raise PeerError("an order of somebody who may give none")
    return Issued(order, issuer, by_organiser=False)


@dataclass(slots=True)
class Orders:
    """The latest order of each issuer about each key, by issuer and subject.

    Bounded. Which orders are kept follows from the set of all orders: the latest of each issuer, and of the
    co-organisers those whose ids come first. So no issuer can take another's room, least of all the organiser's.
    """

    latest: dict[PeerId, dict[PeerId, Issued]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.latest.values()))

    def get(self, issuer: PeerId, subject: PeerId) -> Issued | None:
        """Return the latest order of this issuer about a key; None if there is none."""
        return self.latest.get(issuer, {}).get(subject)

    def add(self, issued: Issued) -> frozenset[PeerId]:
        """Add an order; returns the keys about which another order may hold now, none if it is not new or not kept.

        An issuer with more orders than it may have loses its oldest ones, which may be this one.
        """
        known = self.get(issued.issuer, issued.subject)
        if known is not None and known.rank >= issued.rank:
            return frozenset()
        book = self.latest.setdefault(issued.issuer, {})
        book[issued.subject] = issued
        changed = {issued.subject}
        if len(book) > ORDERS_EACH_MAX:
            oldest = min(book, key=lambda subject: book[subject].rank)
            del book[oldest]
            changed.add(oldest)
        changed.update(*(self.latest.get(subject, ()) for subject in tuple(changed)))  # and keys in their own orders
        for gone in sorted(self.latest.keys() - self._organisers())[DEPUTIES_MAX:]:
            changed |= self.latest.pop(gone).keys()
        return frozenset(changed) if self.get(issued.issuer, issued.subject) is issued else frozenset()

    def verdict(self, subject: PeerId) -> Issued | None:
        """Return the order that holds about a key; None if there is none.

        If the organiser has removed a co-organiser, only its orders after it was readmitted hold.
        """
        about = [one for book in self.latest.values() if (one := book.get(subject)) is not None and self._holds(one)]
        return max(about, key=lambda one: one.rank, default=None)

    def is_revoked(self, subject: PeerId) -> bool:
        verdict = self.verdict(subject)
        return verdict is not None and verdict.order.revoked

    def revoked(self) -> tuple[PeerId, ...]:
        """Return the keys that have no part in the run any more, in order."""
        subjects = sorted({subject for book in self.latest.values() for subject in book})
        return tuple(subject for subject in subjects if self.is_revoked(subject))

    def _organisers(self) -> frozenset[PeerId]:
        """Return the issuer that is the organiser, if it has given any order."""
        return frozenset(issuer for issuer, book in self.latest.items() if next(iter(book.values())).by_organiser)

    def _holds(self, issued: Issued) -> bool:
        if issued.by_organiser:
            return True
        about_issuer = [self.get(organiser, issued.issuer) for organiser in self._organisers()]
        return all(
            one is None or (not one.order.revoked and one.order.serial < issued.order.serial) for one in about_issuer
        )


def merged(books: Iterable[Orders]) -> Orders:
    """Return the orders of a peer that has seen all these orders."""
    whole = Orders()
    for book in books:
        for orders in book.latest.values():
            for issued in orders.values():
                whole.add(issued)
    return whole

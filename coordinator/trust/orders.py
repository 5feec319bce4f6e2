"""Orders: who the organiser shows out of a run, and lets in again (docs/adr/0060). Pure.

An order proves itself: it is signed by the organiser, or by a co-organiser with the organiser's own word that it is
one. Which orders hold is a function of the set of them, whatever order they came in and however often, so that all
peers who have seen the same come to the same.
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
ORDERS_EACH_MAX = 256  # of the organiser, and of each co-organiser: one about a key
DEPUTIES_MAX = 16  # co-organisers whose orders are kept; nobody but the organiser can make more
ORDERS_MAX = (1 + DEPUTIES_MAX) * ORDERS_EACH_MAX
SERIAL_MAX = 2**53


class Order(Wire):
    """«This key has no part in the run any more», or has again. The highest serial of one issuer about a key counts."""

    subject: PeerIdText
    revoked: bool
    serial: int = Field(ge=0, le=SERIAL_MAX)  # unix milliseconds, where the issuer's clock is right
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
        """What goes before what: the organiser's word, then the later one, then a revocation."""
        digest = digest_of(b"muster-order", self.issuer.encode(), self.order.to_wire())
        return self.by_organiser, self.order.serial, self.order.revoked, digest


def sign_order(signer: Signer, run_id: bytes, order: Order) -> Statement:
    """The order of an organiser or a co-organiser."""
    return make_statement(signer, place(run_id, "order"), order)


def delegate(organiser: Signer, run_id: bytes, deputy: PeerId) -> Statement:
    """The organiser's word that somebody is a co-organiser."""
    return make_statement(organiser, place(run_id, "delegate"), Delegation(deputy=deputy))


def delegation_of(authority: AdmissionAuthority, deputy: PeerId, signature: bytes) -> Statement:
    """The statement to which the organiser put this signature."""
    body = Delegation(deputy=deputy).to_wire()
    return Statement(
        context=place(authority.run_id, "delegate"), sender=authority.organiser, body=body, signature=signature
    )


def read_order(statement: Statement, delegation: bytes, rules: Rules) -> Issued:
    """The order that a verified statement gives; `delegation` shows that a co-organiser may. Raises PeerError."""
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

    Bounded, and what is kept follows from the set of all orders: of each issuer the latest ones, and of co-organisers
    those whose ids come first. So nobody can take the room of another, and least of all the organiser's.
    """

    latest: dict[PeerId, dict[PeerId, Issued]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.latest.values()))

    def get(self, issuer: PeerId, subject: PeerId) -> Issued | None:
        """The latest order of this issuer about a key."""
        return self.latest.get(issuer, {}).get(subject)

    def add(self, issued: Issued) -> frozenset[PeerId]:
        """Keys about which something else may hold now; none if this is no news, or older than all for which is room.

        An issuer with more than it may have loses its oldest ones.
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
        changed.update(*(self.latest.get(subject, ()) for subject in tuple(changed)))  # and what those said themselves
        for gone in sorted(self.latest.keys() - self._organisers())[DEPUTIES_MAX:]:
            changed |= self.latest.pop(gone).keys()
        return frozenset(changed) if self.get(issued.issuer, issued.subject) is issued else frozenset()

    def verdict(self, subject: PeerId) -> Issued | None:
        """The order that holds about a key; None if there is none.

        A co-organiser whom the organiser has shown out has given none, but for those after it was let in again.
        """
        about = [one for book in self.latest.values() if (one := book.get(subject)) is not None and self._holds(one)]
        return max(about, key=lambda one: one.rank, default=None)

    def is_revoked(self, subject: PeerId) -> bool:
        verdict = self.verdict(subject)
        return verdict is not None and verdict.order.revoked

    def revoked(self) -> tuple[PeerId, ...]:
        """Keys that have no part any more, in order."""
        subjects = sorted({subject for book in self.latest.values() for subject in book})
        return tuple(subject for subject in subjects if self.is_revoked(subject))

    def _organisers(self) -> frozenset[PeerId]:
        """The issuer that is the organiser, if it has given any."""
        return frozenset(issuer for issuer, book in self.latest.items() if next(iter(book.values())).by_organiser)

    def _holds(self, issued: Issued) -> bool:
        if issued.by_organiser:
            return True
        about_issuer = [self.get(organiser, issued.issuer) for organiser in self._organisers()]
        return all(
            one is None or (not one.order.revoked and one.order.serial < issued.order.serial) for one in about_issuer
        )


def merged(books: Iterable[Orders]) -> Orders:
    """What somebody knows who has seen everything that these have."""
    whole = Orders()
    for book in books:
        for orders in book.latest.values():
            for issued in orders.values():
                whole.add(issued)
    return whole

"""Results proven false in one group: by ourselves, or by others and then by us, too (design §6.2 step 8).

No member takes a refutation on trust: each one recomputes the leaf that it shows. A false refutation is signed, too;
members ignore further ones from its sender in this group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.actions import Action, Inspect, Tell
from coordinator.core.context import Core
from coordinator.core.events import Finding, Inspected
from coordinator.group.group import Group
from coordinator.round.exchange import Exchange, HeldResult
from coordinator.wire.openings import OpenedInput, Refutation
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

REPEATS_MAX = 3  # how often we repeat our refutations


@dataclass(frozen=True, slots=True)
class ReadRefutation:
    """A member's refutation, parsed only once: it may be half a megabyte."""

    statement: Statement
    body: Refutation


@dataclass(slots=True)
class Refutations:
    """The refutations of one group.

    `proven` has the refutation of each false result by the result's digest. Together with the bundle and the result it
    is a proof.
    """

    core: Core
    group: Group
    exchange: Exchange
    proven: dict[bytes, Statement] = field(default_factory=dict)
    false: dict[PeerId, Statement] = field(default_factory=dict)  # by sender: a refutation that refutes nothing
    claims: dict[PeerId, ReadRefutation] = field(default_factory=dict)  # not recomputed by us yet; one per member
    examined: set[PeerId] = field(default_factory=set)  # members whose claims are being recomputed
    repeats: int = 0

    @property
    def partitions(self) -> frozenset[int]:
        """Partitions whose current result is false."""
        held = enumerate(self.exchange.held())
        return frozenset(partition for partition, one in held if one and one.statement.digest in self.proven)

    def resolved(self, peer: PeerId) -> bool:
        """Whether this member's announced refutation has come and been recomputed."""
        known = peer in self.false or any(statement.sender == peer for statement in self.proven.values())
        return known and peer not in self.claims

    def tell(self, held: HeldResult, refutation: Refutation) -> list[Action]:
        """Show all members that a result is false."""
        assert self.exchange.inputs is not None
        statement = self.core.sign_statement("refutation", self.group.key, self.exchange.inputs.digest, refutation)
        return self._prove(held, statement) + self.spread([statement])

    def spread(self, statements: list[Statement]) -> list[Action]:
        """Send these refutations to all other members."""
        others = tuple(member for member in self.group.members if member != self.core.me)
        return [send for statement in statements for send in self.core.to_all(others, statement)]

    def _prove(self, held: HeldResult, statement: Statement) -> list[Action]:
        self.proven[held.statement.digest] = statement
        details: dict[str, object] = {"reducer": held.reducer, "partition": held.result.partition}
        return [Tell("result_refuted", self.group.key.fragment, self.group.key.version, details)]

    def hear(self, statement: Statement) -> list[Action]:
        """Take a member's refutation; raises PeerError if it cannot be about a result of this group."""
        sender, inputs = PeerId(statement.sender), self.exchange.inputs
        if inputs is None or statement.context.group != inputs.digest or sender not in self.group.voters:
            raise PeerError("a refutation of no result here")
        if sender in self.false or sender in self.claims or sender == self.core.me:
            return []
        body = statement.read(Refutation)
        if body.result in self.proven:
            return []
        self.claims[sender] = ReadRefutation(statement, body)
        return self.examine()

    def examine(self) -> list[Action]:
        """Start recomputing the claims about results that we hold."""
        actions: list[Action] = []
        held = self.exchange.by_digest()
        for sender, claim in [(sender, one.body) for sender, one in self.claims.items()]:
            result = held.get(claim.result)
            if claim.result in self.proven:
                self._forget(sender)
            elif result is None or sender in self.examined:
                continue
            elif (claim.partition, claim.turn) != (result.result.partition, result.result.turn):
                actions += self._disbelieve(sender)
            else:
                self.examined.add(sender)
                actions.append(inspection_of(self.exchange, result, sender, claim.inputs, leaf=claim.leaf))
        return actions

    def on_inspected(self, event: Inspected) -> list[Action]:
        """Accept or reject a claim, now that it has been recomputed."""
        claim = self.claims.get(event.accuser)
        if claim is None or event.accuser not in self.examined or event.result != claim.body.result:
            return []  # unknown, or about an earlier claim whose result another member has refuted meanwhile
        held = self.exchange.by_digest()[claim.body.result]
        if event.finding is not Finding.REFUTED:
            return self._disbelieve(event.accuser)
        self._forget(event.accuser)
        return [] if held.statement.digest in self.proven else self._prove(held, claim.statement)

    def _disbelieve(self, sender: PeerId) -> list[Action]:
        self.false[sender] = self.claims[sender].statement
        self._forget(sender)
        return [Tell("refutation_false", self.group.key.fragment, self.group.key.version, {"peer": sender})]

    def _forget(self, sender: PeerId) -> None:
        del self.claims[sender]
        self.examined.discard(sender)

    def remind(self) -> list[Action]:
        """Repeat our own refutations, at most REPEATS_MAX times."""
        own = [statement for statement in self.proven.values() if statement.sender == self.core.me]
        if not own or self.repeats >= REPEATS_MAX:
            return []
        self.repeats += 1
        return self.spread(own)


def inspection_of(
    exchange: Exchange,
    held: HeldResult,
    accuser: PeerId,
    opened: tuple[OpenedInput, ...] = (),
    *,
    seed: bytes = b"",
    leaf: int | None = None,
) -> Inspect:
    """Return the request to recompute opened leaves of a result: the leaves drawn by `seed`, or one `leaf`."""
    assert exchange.inputs is not None
    group, result = exchange.group, held.result
    return Inspect(
        key=group.key,
        accuser=accuser,
        partition=result.partition,
        partitions=group.partitions,
        turn=result.turn,
        voters=len(group.voters),
        members=len(group.members),
        result=held.statement.digest,
        root=result.root,
        coefficients=result.coefficients,
        inputs=exchange.inputs.partition(result.partition, result.included),
        opened=opened,
        seed=seed,
        leaf=leaf,
    )

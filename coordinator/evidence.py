"""Evidence: signed statements that prove a class A fault to anybody, offline (design §9, `byzantine.md` §8.9).

Whoever holds the bytes of an `Evidence` and the run's manifest comes to the same verdict: no clock, no network,
nobody's word. Only what is exact convicts. What rests on the tolerance of floating-point arithmetic, on time, or on
what somebody did *not* say never does.

**A contradiction** is two statements of one key in one place (`place_of`) that differ. No honest peer makes one,
however often it crashes and restarts, because each place holds something that a later life does not share:

* A *join* holds the boot nonce of the life that says it, and its context the base. Within a life `Joining.said` keeps
  what was said; an attempt forgotten there is used up, also if we leave the base and come back (`Bonds`).
* A *roster* counts as said by the life whose join of the leader it holds; without one it convicts nobody. A life issues
  each revision once, only for attempts that it has joined, and takes no join of an earlier life of its own for its own
  (`Gathering.add`).
* *What is said in a group* (commit, bundle, vote, abstention) names the roster, whose digest covers the boot nonce of
  every member. A peer only speaks under a roster that names its present life (`Rounds._on_roster`), once in each kind.
* *What is said about an input set* (result, check, redo, proposal) names the bundle, whose digest covers the roster's:
  one result for each partition and turn, one check for each phase, one redo, one proposal.
* *A vote and an abstention* share a place: who gave one never gives the other (`Verdict.abstain`, `Rounds._decline`).

Kinds that are not listed (presence, heads, whatever comes later) may be said as often as one likes. The simulator holds
every honest peer to this over all of its lives (`coordinator.virtual.invariants`).

**A lie** is one statement that cannot be true whatever else is: a result that counts one input twice.

**Garbage** is a commitment with an opened leaf of one of its parts that does not decode to finite numbers. No codec
makes such a leaf: encoding refuses what is not finite and saturates what is too large. Decoding is behind the port
`Court`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, TypeVar

from pydantic import Field

from coordinator.chain import Rules
from coordinator.merkle import verify_leaf
from coordinator.messages import STATEMENT_BODIES, Check, Commit, Join, Result, Roster
from coordinator.openings import Partition
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Digest, Statement, digest_of
from dht.wire import MESSAGE_BYTES_MAX, Wire

EVIDENCE_BYTES_MAX = MESSAGE_BYTES_MAX - (4 << 10)  # fits into one control message
STATEMENTS_MAX = 4
LEAF_BYTES_MAX = 4096
PATH_MAX = 40

CONTRADICTION = "contradiction"
LIE = "lie"
GARBAGE = "garbage"

Place = tuple[object, ...]
"""Where an honest peer says one thing at most."""

Body = TypeVar("Body", bound=Wire)


class Evidence(Wire):
    """What proves one fault of one key. Its bytes are canonical: another encoding of the same thing is no evidence."""

    charge: str = Field(max_length=16, pattern=r"^[a-z_]+$")
    statements: tuple[Statement, ...] = Field(min_length=1, max_length=STATEMENTS_MAX)
    exhibit: bytes = Field(b"", max_length=EVIDENCE_BYTES_MAX)  # what else this charge needs, encoded

    @cached_property
    def digest(self) -> bytes:
        return digest_of(b"muster-evidence", self.to_wire())

    @classmethod
    def parse(cls, data: bytes) -> Evidence:
        """Raises PeerError unless `data` is the one encoding of some evidence."""
        evidence = cls.from_wire(data, EVIDENCE_BYTES_MAX)
        if evidence.to_wire() != data:
            raise PeerError("evidence that is not in canonical form")
        return evidence


class OpenedLeaf(Wire):
    """One leaf of one part of a contribution, with its Merkle path to the part's root: the exhibit of `GARBAGE`."""

    partition: Partition
    index: int = Field(ge=0, lt=1 << PATH_MAX)
    piece: bytes = Field(max_length=LEAF_BYTES_MAX)
    path: tuple[Digest, ...] = Field(max_length=PATH_MAX)


class Court(Protocol):
    """What takes tensors to tell. Pure: answers follow from the manifest and the arguments alone.

    A part is named by fragment, number of partitions and partition.
    """

    @property
    def codec(self) -> str:
        """Of contributions."""
        ...

    def leaves(self, part: tuple[int, int, int]) -> int:
        """How many leaves the encoding of such a part of a contribution has; 0 if there is no such part."""
        ...

    def is_garbage(self, part: tuple[int, int, int], index: int, piece: bytes) -> bool:
        """Whether these bytes, as that leaf, have the wrong length or do not decode to finite numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Guilt:
    """Who is convicted, and of what, in one line."""

    peer: PeerId
    reason: str


class UnknownChargeError(PeerError):
    """Evidence that we cannot judge: of a newer version, or without tensors. Says nothing about whoever sent it."""


def verify(evidence: Evidence, rules: Rules, court: Court | None = None) -> Guilt:
    """Who is guilty; raises PeerError with the reason if this proves nothing."""
    if evidence.charge not in (CONTRADICTION, LIE, GARBAGE) or (evidence.charge == GARBAGE and court is None):
        raise UnknownChargeError(f"evidence that cannot be judged here: {evidence.charge}")
    for statement in evidence.statements:
        if statement.context.run_id != rules.run_id:
            raise PeerError("evidence from another run")
        if not statement.verify(rules.verifier):
            raise PeerError("evidence with a statement that its sender did not sign")
    if evidence.charge == GARBAGE and court is not None:
        return _judge_garbage(evidence, court)
    if evidence.exhibit:
        raise PeerError("evidence with an exhibit that proves nothing")
    return (_judge_contradiction if evidence.charge == CONTRADICTION else _judge_lie)(evidence.statements)


# -- contradictions


def place_of(statement: Statement) -> Place | None:
    """Where this was said, if only one thing may be said there; None for all else, and for what cannot be read."""
    context = statement.context
    detail = _PLACES.get(context.kind)
    if detail is None:
        return None
    try:
        known = detail(statement)
    except PeerError:
        return None
    if known is None:
        return None
    kind = "ballot" if context.kind in ("vote", "abstain") else context.kind
    return (context.run_id, kind, context.fragment, context.version, context.group, statement.sender, *known)


def contradiction(one: Statement, other: Statement) -> Evidence:
    """The evidence that two differing statements from one place make."""
    statements = tuple(sorted((one, other), key=lambda statement: statement.digest))
    return Evidence(charge=CONTRADICTION, statements=statements)


def nested(statement: Statement) -> tuple[Statement, ...]:
    """The statements of others that a leader's statement holds; none if it cannot be read."""
    model = STATEMENT_BODIES.get(statement.context.kind)
    field = _NESTED.get(statement.context.kind)
    if model is None or field is None:
        return ()
    try:
        found: tuple[Statement, ...] = getattr(statement.read(model), field)
    except PeerError:
        return ()
    return found


def _judge_contradiction(statements: tuple[Statement, ...]) -> Guilt:
    if len(statements) != 2 or not statements[0].digest < statements[1].digest:
        raise PeerError("a contradiction is two different statements, in order")
    one, other = statements
    place = place_of(one)
    if place is None or place != place_of(other):
        raise PeerError("two statements that do not contradict each other")
    kinds = sorted({one.context.kind, other.context.kind})
    words = " and ".join(f"«{kind}»" for kind in kinds)
    return Guilt(PeerId(one.sender), f"signed two different statements {words} in one place")


def _nothing_more(statement: Statement) -> Place:
    return ()


def _join(statement: Statement) -> Place:
    join = statement.read(Join)
    return (join.attempt, join.boot)


def _roster(statement: Statement) -> Place | None:
    roster = statement.read(Roster)
    own = [join for join in roster.joins if join.sender == statement.sender]
    return (roster.attempt, roster.revision, own[0].read(Join).boot) if len(own) == 1 else None


def _result(statement: Statement) -> Place:
    result = statement.read(Result)
    return (result.partition, result.turn)


def _check(statement: Statement) -> Place:
    return (statement.read(Check).phase,)


_PLACES: Mapping[str, Callable[[Statement], Place | None]] = MappingProxyType(
    {
        "join": _join,
        "roster": _roster,
        "commit": _nothing_more,
        "bundle": _nothing_more,
        "result": _result,
        "check": _check,
        "redo": _nothing_more,
        "proposal": _nothing_more,
        "vote": _nothing_more,
        "abstain": _nothing_more,
    }
)

_NESTED: Mapping[str, str] = MappingProxyType(
    {"roster": "joins", "bundle": "commits", "redo": "checks", "proposal": "checks"}
)


# -- lies


def lie_in(statement: Statement) -> str | None:
    """What in this statement cannot be true; None if nothing is, or it cannot be read."""
    if statement.context.kind != "result":
        return None
    try:
        included = statement.read(Result).included
    except PeerError:
        return None
    return "counts one input twice" if len(set(included)) != len(included) else None


def lie(statement: Statement) -> Evidence:
    """The evidence that such a statement is by itself."""
    return Evidence(charge=LIE, statements=(statement,))


def _judge_lie(statements: tuple[Statement, ...]) -> Guilt:
    what = lie_in(statements[0]) if len(statements) == 1 else None
    if what is None:
        raise PeerError("no lie that anybody could see")
    return Guilt(PeerId(statements[0].sender), f"signed a {statements[0].context.kind} that {what}")


# -- garbage


def garbage(commit: Statement, opened: OpenedLeaf) -> Evidence:
    """The evidence that such a leaf under a signed commitment makes."""
    return Evidence(charge=GARBAGE, statements=(commit,), exhibit=opened.to_wire())


def _judge_garbage(evidence: Evidence, court: Court) -> Guilt:
    opened, commit = OpenedLeaf.from_wire(evidence.exhibit), evidence.statements[0]
    if len(evidence.statements) != 1 or commit.context.kind != "commit" or opened.to_wire() != evidence.exhibit:
        raise PeerError("garbage is shown by one commitment and one leaf")
    body = commit.read(Commit)
    if body.codec != court.codec:
        raise PeerError("a commitment that no codec of this run can decode")
    roots = body.part_roots
    part = (commit.context.fragment, len(roots), opened.partition)
    leaves = court.leaves(part) if opened.partition < len(roots) else 0
    if not verify_leaf(roots[opened.partition] if leaves else b"", opened.piece, opened.index, leaves, opened.path):
        raise PeerError("a leaf that nobody committed")
    if not court.is_garbage(part, opened.index, opened.piece):
        raise PeerError("a leaf that decodes well")
    return Guilt(PeerId(commit.sender), "committed to values that are not finite numbers")

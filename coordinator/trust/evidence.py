"""Evidence: signed statements that prove a class A fault to anybody, offline (design §9).

Any peer with the bytes of an `Evidence` and the run's manifest reaches the same verdict, without a clock, a network or
another peer's word. Only exact facts convict. The tolerance of floating-point arithmetic, time, or a message that a
peer did *not* send never does.

**A contradiction** is two different statements of one key in one slot. No honest peer makes one, however often it
crashes and restarts (`coordinator.trust.statement_slots`).

**A lie** is one statement that is false by itself: a result that counts one input twice.

**Garbage** is a commitment with an opened leaf of one of its parts that does not decode to finite numbers. No codec
makes such a leaf: encoding refuses numbers that are not finite and saturates those that are too large.

**A false result** is a signed result with one opened leaf that does not follow from its inputs. The evidence holds the
reducer's statement, the leader's bundle, and that leaf with those of all included inputs. The result names the bundle
by its digest, so an honest reducer has read that very bundle before it signed. It had the same commitments, and with
them the same weights, norms and roots of all inputs. It includes only inputs whose whole bytes hash to their committed
root, and a root has one set of leaves. So nothing that a contributor or a leader signs afterwards can make an honest
reducer's result false, and only the reducer is convicted. The bundle's context is not checked, since its leader can
write anything there.

**An order** is no fault: the organiser, or a co-organiser, removes a key from the run or readmits it
(`coordinator.trust.orders`). It proves itself and is sent like proofs of faults.

Checks that need tensors are behind the port `ProofChecker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pydantic import Field

from coordinator.chain.chain import Rules
from coordinator.trust.orders import Issued, read_order
from coordinator.trust.statement_slots import slot_of
from coordinator.wire.inputs import Committed
from coordinator.wire.merkle import verify_leaf
from coordinator.wire.messages import Bundle, Commit, Result
from coordinator.wire.openings import LEAF_BYTES_MAX, Partition, Refutation
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Digest, Statement, digest_of
from dht.wire import MESSAGE_BYTES_MAX, Wire

EVIDENCE_BYTES_MAX = MESSAGE_BYTES_MAX - (4 << 10)  # fits into one control message
BODIES_BYTES_MAX = EVIDENCE_BYTES_MAX - (2 << 10)  # of its statements' bodies and its exhibit; the rest is small
STATEMENTS_MAX = 4
PATH_MAX = 40

CONTRADICTION = "contradiction"
LIE = "lie"
GARBAGE = "garbage"
FALSE_RESULT = "false_result"
ORDER = "order"
TENSOR_CHARGES = (GARBAGE, FALSE_RESULT)


class Evidence(Wire):
    """The proof of one fault of one key. Its bytes are canonical: another encoding of the same proof is no evidence."""

    charge: str = Field(max_length=16, pattern=r"^[a-z_]+$")
    statements: tuple[Statement, ...] = Field(min_length=1, max_length=STATEMENTS_MAX)
    exhibit: bytes = Field(b"", max_length=EVIDENCE_BYTES_MAX)  # further proof that this charge needs, encoded

    @cached_property
    def digest(self) -> bytes:
        return digest_of(b"muster-evidence", self.to_wire())

    @classmethod
    def parse(cls, data: bytes) -> Evidence:
        """Decode evidence; raises PeerError unless `data` is its one canonical encoding."""
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


class ProofChecker(Protocol):
    """The checks that need tensors. Pure: answers follow from the manifest and the arguments alone.

    A part is named by fragment, number of partitions and partition.
    """

    @property
    def codec(self) -> str:
        """The codec of contributions."""
        ...

    def leaves(self, part: tuple[int, int, int]) -> int:
        """Return how many leaves the encoding of such a part of a contribution has; 0 if there is no such part."""
        ...

    def is_garbage(self, part: tuple[int, int, int], index: int, piece: bytes) -> bool:
        """Whether these bytes, as that leaf, have the wrong length or do not decode to finite numbers."""
        ...

    def is_false(self, fragment: int, result: Result, committed: Committed, shown: Refutation) -> bool:
        """Whether the leaf that is shown proves that no honest reducer signs this result over these commitments.

        The commitments have one codec and one number of partitions, and the result includes some of them. Raises
        PeerError if a shown leaf is not under its signed root, or such results cannot be recomputed from a leaf.
        """
        ...


@dataclass(frozen=True, slots=True)
class Guilt:
    """A convicted key and the reason in one line. `issued` is the order, if there is one; it may let the key in."""

    peer: PeerId
    reason: str
    issued: Issued | None = None


class UnknownChargeError(PeerError):
    """We cannot judge this evidence: it is of a newer version, or we have no tensors. Says nothing about its sender."""


def verify(evidence: Evidence, rules: Rules, proof_checker: ProofChecker | None = None) -> Guilt:
    """Verify evidence and return its verdict; raises PeerError with the reason if it proves nothing."""
    of_tensors = evidence.charge in TENSOR_CHARGES
    if not (of_tensors and proof_checker is not None) and evidence.charge not in (CONTRADICTION, LIE, ORDER):
        raise UnknownChargeError(f"evidence that cannot be judged here: {evidence.charge}")
    for statement in evidence.statements:
        if statement.context.run_id != rules.run_id:
            raise PeerError("evidence from another run")
        if not statement.verify(rules.verifier):
            raise PeerError("evidence with a statement that its sender did not sign")
    if of_tensors and proof_checker is not None:
        return (_judge_garbage if evidence.charge == GARBAGE else _judge_false_result)(evidence, proof_checker)
    if evidence.charge == ORDER:
        return _read_order(evidence, rules)
    if evidence.exhibit:
        raise PeerError("evidence with an exhibit that proves nothing")
    return (_judge_contradiction if evidence.charge == CONTRADICTION else _judge_lie)(evidence.statements)


# -- orders


def order_evidence(order: Statement, delegation: bytes = b"") -> Evidence:
    """Make the evidence of an order, with the delegation by which a co-organiser may give it."""
    return Evidence(charge=ORDER, statements=(order,), exhibit=delegation)


def _read_order(evidence: Evidence, rules: Rules) -> Guilt:
    if len(evidence.statements) != 1:
        raise PeerError("an order is one statement")
    issued = read_order(evidence.statements[0], evidence.exhibit, rules)
    by, why = "the organiser" if issued.by_organiser else "a co-organiser", issued.order.reason
    what = "removed" if issued.order.revoked else "readmitted"
    return Guilt(issued.subject, f"{what} by {by}{': ' if why else ''}{why}", issued)


# -- contradictions


def contradiction(one: Statement, other: Statement) -> Evidence:
    """Make the evidence of two different statements in one slot."""
    statements = tuple(sorted((one, other), key=lambda statement: statement.digest))
    return Evidence(charge=CONTRADICTION, statements=statements)


def _judge_contradiction(statements: tuple[Statement, ...]) -> Guilt:
    if len(statements) != 2 or not statements[0].digest < statements[1].digest:
        raise PeerError("a contradiction is two different statements, in order")
    one, other = statements
    place = slot_of(one)
    if place is None or place != slot_of(other):
        raise PeerError("two statements that do not contradict each other")
    kinds = sorted({one.context.kind, other.context.kind})
    words = " and ".join(f"«{kind}»" for kind in kinds)
    return Guilt(PeerId(one.sender), f"signed two different statements {words} in one place")


# -- lies


def lie_in(statement: Statement) -> str | None:
    """Return what is false in a statement by itself; None if nothing is, or it cannot be read."""
    if statement.context.kind != "result":
        return None
    try:
        included = statement.read(Result).included
    except PeerError:
        return None
    return "counts one input twice" if len(set(included)) != len(included) else None


def lie(statement: Statement) -> Evidence:
    """Make the evidence of a statement that is false by itself."""
    return Evidence(charge=LIE, statements=(statement,))


def _judge_lie(statements: tuple[Statement, ...]) -> Guilt:
    what = lie_in(statements[0]) if len(statements) == 1 else None
    if what is None:
        raise PeerError("no lie that anybody could see")
    return Guilt(PeerId(statements[0].sender), f"signed a {statements[0].context.kind} that {what}")


# -- garbage


def garbage(commit: Statement, opened: OpenedLeaf) -> Evidence:
    """Make the evidence of a leaf under a signed commitment that does not decode to finite numbers."""
    return Evidence(charge=GARBAGE, statements=(commit,), exhibit=opened.to_wire())


def _judge_garbage(evidence: Evidence, proof_checker: ProofChecker) -> Guilt:
    opened, commit = OpenedLeaf.from_wire(evidence.exhibit), evidence.statements[0]
    if len(evidence.statements) != 1 or commit.context.kind != "commit" or opened.to_wire() != evidence.exhibit:
        raise PeerError("garbage is shown by one commitment and one leaf")
    body = commit.read(Commit)
    if body.codec != proof_checker.codec:
        raise PeerError("a commitment that no codec of this run can decode")
    roots = body.part_roots
    part = (commit.context.fragment, len(roots), opened.partition)
    leaves = proof_checker.leaves(part) if opened.partition < len(roots) else 0
    if not verify_leaf(roots[opened.partition] if leaves else b"", opened.piece, opened.index, leaves, opened.path):
        raise PeerError("a leaf that nobody committed")
    if not proof_checker.is_garbage(part, opened.index, opened.piece):
        raise PeerError("a leaf that decodes well")
    return Guilt(PeerId(commit.sender), "committed to values that are not finite numbers")


# -- false results


def false_result(result: Statement, bundle: Statement, shown: Refutation) -> Evidence | None:
    """Make the evidence of a refutation, its result and its bundle; None if it does not fit into one message."""
    exhibit = shown.to_wire()
    if len(result.body) + len(bundle.body) + len(exhibit) > BODIES_BYTES_MAX:
        return None
    return Evidence(charge=FALSE_RESULT, statements=(result, bundle), exhibit=exhibit)


def _judge_false_result(evidence: Evidence, proof_checker: ProofChecker) -> Guilt:
    shown = Refutation.from_wire(evidence.exhibit)
    kinds = [statement.context.kind for statement in evidence.statements]
    if kinds != ["result", "bundle"] or shown.to_wire() != evidence.exhibit:
        raise PeerError("a false result is shown by the result, its bundle and one leaf")
    signed, bundle = evidence.statements
    if signed.context.group != bundle.digest:
        raise PeerError("a result over other inputs")
    result = signed.read(Result)
    if (shown.partition, shown.turn, shown.result) != (result.partition, result.turn, signed.digest):
        raise PeerError("a leaf of another result")
    committed = Committed.of(bundle.read(Bundle))
    commits = committed.commits
    if len(commits) > committed.members:  # else a result with an older version's weights would convict (docs/adr/0046)
        raise PeerError("an input set that no honest member accepts")
    forms = {(commit.codec, len(commit.part_roots)) for commit in commits}
    if forms != {(proof_checker.codec, len(commits[0].part_roots))} or result.partition >= len(commits[0].part_roots):
        raise PeerError("an input set that no honest member accepts")
    included = set(result.included)
    if len(included) < len(result.included) or max(included) >= len(commits):
        raise PeerError("a result of inputs that do not exist, or of one twice")
    if not proof_checker.is_false(signed.context.fragment, result, committed, shown):
        raise PeerError("a leaf that is what its inputs come to")
    return Guilt(PeerId(signed.sender), f"signed a result of partition {result.partition} that its inputs do not give")

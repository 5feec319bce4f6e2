"""What takes tensors to tell of evidence: the real court, over real bytes.

A liar signs what it says, so every changed statement is signed anew: else none would be looked at. Whatever is shown,
nobody honest is convicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import Field

from coordinator.run.manifest import OuterSpec
from coordinator.trust.evidence import FALSE_RESULT, GARBAGE, Evidence, OpenedLeaf, contradiction, garbage, lie, verify
from coordinator.wire.merkle import merkle_tree
from coordinator.wire.messages import Commit
from coordinator.wire.openings import Refutation
from dht.errors import PeerError
from dht.statement import Context, Statement, signed_bytes
from dht.wire import Wire
from peer.numerics.reduction import ReducedPartition
from peer.rounds.tensor_proofs import TensorProofChecker
from peer.storage.evidence_files import FILE_BYTES_MAX, KeptEvidence
from tests.coordinator.builders import Club
from tests.fuzz.target import Target
from tests.peer.judged import CLUB, LAYOUT, MEMBERS, PARTITION, Round, round_of
from tests.peer.reducing import alike

OUTERS = tuple(
    OuterSpec.model_validate({"merge": merge, "norms": norms, "contribution_codec": sent, "result_codec": merged})
    for merge, norms, sent, merged in (
        ("robust_rda", "tensor", "int8", "int8"),
        ("robust_rda", "row", "bf16", "int4"),
        ("rda", "tensor", "int4", "int8"),
        ("median", "tensor", "bf16", "bf16"),
        ("krum", "tensor", "int8", "e3m0"),
        ("nnm_trimmed_mean", "tensor", "int8", "int8"),
    )
)


class Accusation(Wire):
    """What is signed in a round of one of the CASES, and a leaf that is shown of its result; bodies without names."""

    case: int = Field(ge=0, lt=len(OUTERS))
    commits: tuple[bytes, ...] = Field(min_length=1, max_length=MEMBERS)
    result: bytes
    shown: bytes


class Charge(Wire):
    """A commitment, and a leaf of it."""

    case: int = Field(ge=0, lt=len(OUTERS))
    commit: bytes
    shown: bytes


@dataclass(frozen=True)
class Case:
    """A round under one rule, and the bodies that all honest ones sign in it. Its keys are keyed hashes."""

    number: int
    of: Round

    @cached_property
    def proof_checker(self) -> TensorProofChecker:
        return self.of.proof_checker

    @cached_property
    def honest(self) -> ReducedPartition:
        return self.of.reduction.honest()

    @cached_property
    def commits(self) -> tuple[bytes, ...]:
        return tuple(one.body for one in self.of.inputs.signed)

    @cached_property
    def result(self) -> bytes:
        return self.of.result(self.honest).body

    @cached_property
    def reducer(self) -> int:
        return self.of.club.number(self.of.group.reducer(PARTITION))

    @property
    def others(self) -> tuple[int, int]:
        """Who looks, and a contributor that may send anything."""
        first, second, *_ = (member for member in range(MEMBERS) if member != self.reducer)
        return first, second

    @property
    def is_verifiable(self) -> bool:
        """Whether a leaf of a result can be recomputed."""
        return self.of.outer.merge != "nnm_trimmed_mean" and self.of.outer.norms == "tensor"

    def part(self, member: int) -> bytes:
        return bytes(self.of.reduction.blobs.get(self.of.reduction.inputs[member].root) or b"")

    def said(self, member: int, kind: str, body: bytes, group: bytes) -> Statement:
        """These bytes, signed as they are."""
        signer, key = self.of.club.signers[member], self.of.group.key
        run_id = self.of.club.manifest.run_id
        context = Context(run_id=run_id, kind=kind, fragment=key.fragment, version=key.version, group=group)
        signature = signer.sign(signed_bytes(context, signer.peer_id, body))
        return Statement(context=context, sender=signer.peer_id, body=body, signature=signature)

    def bundle(self, commits: Sequence[bytes]) -> Statement:
        roster_id = self.of.group.key.roster_id
        signed = [self.said(member, "commit", body, roster_id) for member, body in enumerate(commits)]
        return self.of.club.bundle(self.of.group, signed)

    def cheated(self) -> ReducedPartition:
        return self.of.reduction.perturbed(self.honest, 1.0, 1.0, seed=4)


def _case(number: int, outer: OuterSpec) -> Case:
    club = Club.of(MEMBERS, seed=number)
    config = club.manifest.config.model_copy(update={"outer": outer})
    club = replace(club, manifest=club.manifest.model_copy(update={"config": config}))
    return Case(number, round_of(outer, alike(LAYOUT, MEMBERS, 0.5, number), club=club))


CASES = tuple(_case(number, outer) for number, outer in enumerate(OUTERS))


# -- the court


def accuse(data: bytes) -> object:
    """Evidence of a false result; whoever is honest stays innocent, and that is no refusal."""
    said = Accusation.from_wire(data)
    case = CASES[said.case]
    bundle = case.bundle(said.commits)
    result = case.said(case.reducer, "result", said.result, bundle.digest)
    shown = Refutation.from_wire(said.shown).model_copy(update={"result": result.digest})
    evidence = Evidence(charge=FALSE_RESULT, statements=(result, bundle), exhibit=shown.to_wire())
    honest = said.commits == case.commits and said.result == case.result
    return _judged(case, evidence, honest)


def charge(data: bytes) -> object:
    """Evidence of garbage, likewise."""
    said = Charge.from_wire(data)
    case = CASES[said.case]
    member = case.others[1]
    commit = case.said(member, "commit", said.commit, case.of.group.key.roster_id)
    evidence = Evidence(charge=GARBAGE, statements=(commit,), exhibit=said.shown)
    return _judged(case, evidence, said.commit == case.commits[member])


def _judged(case: Case, evidence: Evidence, honest: bool) -> object:
    try:
        guilt = verify(Evidence.parse(evidence.to_wire()), case.of.club.rules, case.proof_checker)
    except PeerError:
        if honest:
            return None
        raise
    assert not honest, guilt
    return guilt


def _accusations() -> tuple[Accusation, ...]:
    """Of honest results, and of false ones where a leaf shows them."""
    found = []
    for case in CASES:
        for reduced in (case.honest, *([case.cheated()] if case.is_verifiable else [])):
            result = case.of.result(reduced)
            shown = case.of.shown(reduced, 1, result).to_wire()
            found.append(Accusation(case=case.number, commits=case.commits, result=result.body, shown=shown))
    return tuple(found)


def _garbled(case: Case) -> Charge:
    """A commitment to bytes of which the last leaf does not decode, and this leaf."""
    member = case.others[1]
    codec, data = case.of.reduction.contribution, case.part(member)
    whole = len(data) // codec.leaf_bytes * codec.leaf_bytes
    data = data[:whole] + b"\xff" * (len(data) - whole)
    opened = case.proof_checker.find((0, MEMBERS, PARTITION), data)
    assert opened is not None
    commit = Commit.from_wire(case.commits[member])
    roots = (merkle_tree(data, codec.leaf_bytes).root, *commit.part_roots[1:])
    body = commit.model_copy(update={"part_roots": roots}).to_wire()
    return Charge(case=case.number, commit=body, shown=opened.to_wire())


def _harmless(case: Case) -> Charge:
    """An honest commitment, and a leaf of it."""
    member = case.others[1]
    leaf_bytes, data = case.of.reduction.contribution.leaf_bytes, case.part(member)
    path = merkle_tree(data, leaf_bytes).path(0)
    opened = OpenedLeaf(partition=PARTITION, index=0, piece=data[:leaf_bytes], path=path)
    return Charge(case=case.number, commit=case.commits[member], shown=opened.to_wire())


def _charges() -> tuple[Charge, ...]:
    return tuple(made(case) for case in CASES for made in (_garbled, _harmless))


# -- with real keys

REAL = round_of(OUTERS[0], alike(LAYOUT, MEMBERS, 0.5, 1))


def _evidence() -> tuple[bytes, ...]:
    """One of every charge."""
    false = REAL.reduction.perturbed(REAL.reduction.honest(), 1.0, 1.0, seed=4)
    member = 1
    data = b"\xff" * len(REAL.reduction.blobs.get(REAL.reduction.inputs[member].root) or b"")
    opened = REAL.proof_checker.find((0, MEMBERS, PARTITION), data)
    assert opened is not None
    commit = REAL.inputs.signed[member].read(Commit)
    roots = (merkle_tree(data, REAL.reduction.contribution.leaf_bytes).root, *commit.part_roots[1:])
    other = CLUB.say(member, "commit", commit.model_copy(update={"part_roots": roots}), **CLUB.in_group(REAL.group))
    twice = REAL.result(false, included=(0, 1, 1, 2))
    return tuple(
        one.to_wire()
        for one in (
            contradiction(REAL.inputs.signed[member], other),
            lie(twice),
            garbage(other, opened),
            REAL.evidence(false, 1),
        )
    )


def judge(data: bytes) -> object:
    """Evidence as it arrives, under nobody's keys but those that signed it."""
    return verify(Evidence.parse(data), CLUB.rules, REAL_COURT)


def judge_file(data: bytes) -> object:
    """The same in a file, as peers keep it and hand it to each other's owners."""
    return judge(KeptEvidence.from_wire(data, FILE_BYTES_MAX).evidence)


REAL_COURT = REAL.proof_checker
COURT_TARGETS = {
    "evidence": Target(judge, _evidence()),
    "evidence_file": Target(
        judge_file, tuple(KeptEvidence(evidence=one, learnt_unix_milliseconds=1).to_wire() for one in _evidence())
    ),
    "court": Target(accuse, tuple(one.to_wire() for one in _accusations())),
    "court_garbage": Target(charge, tuple(one.to_wire() for one in _charges())),
}

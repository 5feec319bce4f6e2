"""Outcomes from checks: pure functions that proposer and voters compute alike (design §6.2 steps 8–9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from coordinator.chain.certificate import (
    Contributor,
    Outcome,
    PartitionOutcome,
    active_set_digest,
    is_void,
    trust_digest,
)
from coordinator.group.group import Group, InputSet
from coordinator.wire.messages import Check, Commit, Proposal, Result
from dht.errors import PeerError
from dht.identity import PeerId, Verifier
from dht.statement import Statement, digest_of

DROPPED_IN_MIN = 3  # a member left out of more than one partition in three was slow itself: it causes no redo


def nonce_hash(nonce: bytes) -> bytes:
    """Return the hash of a nonce for a commitment; the nonce is revealed later."""
    return digest_of(b"muster-nonce", nonce)


@dataclass(frozen=True, slots=True)
class Checked:
    """A valid check with its sender."""

    sender: PeerId
    check: Check
    statement: Statement


def read_check(statement: Statement, group: Group, inputs: InputSet, verifier: Verifier) -> Checked:
    """Return a member's check; raises PeerError with the reason if it does not count."""
    context, sender = statement.context, PeerId(statement.sender)
    place = ("check", group.key.fragment, group.key.version, inputs.digest)
    if (context.kind, context.fragment, context.version, context.group) != place or sender not in group.voters:
        raise PeerError("is no check of this group")
    check = statement.read(Check)
    if len(check.results) != group.partitions:
        raise PeerError("checks another number of partitions")
    member = inputs.index(sender)
    complete = None not in check.results
    if member is not None and complete:
        nonce = check.nonce
        if nonce is None or nonce_hash(nonce) != inputs.commits[member].nonce_hashes[check.phase]:
            raise PeerError("reveals another nonce than committed")
    elif check.nonce is not None:
        raise PeerError("reveals a nonce that nobody committed")  # a free choice of nonce would bias the coin
    if not statement.verify(verifier):
        raise PeerError("is not signed by its sender")
    return Checked(sender, check, statement)


def read_checks(
    statements: Sequence[Statement], group: Group, inputs: InputSet, verifier: Verifier
) -> tuple[Checked, ...]:
    """Return the checks in a leader's statement, one per member; raises PeerError if one does not count."""
    checks = tuple(read_check(statement, group, inputs, verifier) for statement in statements)
    if len({checked.sender for checked in checks}) != len(checks):
        raise PeerError("two checks of one member")
    return checks


def read_proposal(
    statement: Statement, group: Group, inputs: InputSet, verifier: Verifier
) -> tuple[Proposal, tuple[Checked, ...]]:
    """Return a proposal and its checks; raises PeerError unless it follows from them.

    It may lack agreed results; the caller has to check that these are refuted.
    """
    proposal = statement.read(Proposal)
    checks = read_checks(proposal.checks, group, inputs, verifier)
    if not group.more_than_two_thirds(frozenset(checked.sender for checked in checks)):
        raise PeerError("a proposal that rests on too few checks")
    if len({checked.check.phase for checked in checks}) != 1:
        raise PeerError("a proposal that mixes checks before and after a redo")
    agreed = agreed_results(group, checks)
    if not follows(proposal.results, agreed, set(agreed)) or is_void(proposal.results):
        raise PeerError("a proposal that does not follow from its checks")
    return proposal, checks


def agreed_results(
    group: Group, checks: Sequence[Checked], refuted: Set[bytes] = frozenset()
) -> tuple[bytes | None, ...]:
    """Return, per partition, the result that more than two thirds of the voters hold without doubt; None is void."""
    agreed: list[bytes | None] = []
    for partition in range(group.partitions):
        sure = (checked.check for checked in checks if partition not in checked.check.doubts)
        named = Counter(check.results[partition] for check in sure)
        del named[None]
        digest, count = named.most_common(1)[0] if named else (None, 0)
        stands = count >= group.votes_needed and digest not in refuted
        agreed.append(digest if stands else None)
    return tuple(agreed)


def follows(results: Sequence[bytes | None], agreed: Sequence[bytes | None], refuted: Set[bytes | None]) -> bool:
    """Whether a proposal has the agreed results and lacks only refuted ones."""
    return len(results) == len(agreed) and all(
        named == one or (named is None and one in refuted) for named, one in zip(results, agreed, strict=True)
    )


def missed_partitions(group: Group, checks: Sequence[Checked]) -> frozenset[int]:
    """Return the partitions of which more than a third of the voters have no result."""
    return _named_by_a_third(group, checks, lambda check: check.complaints)


def partitions_to_redo(
    group: Group, inputs: InputSet, checks: Sequence[Checked], results: Mapping[bytes, Result]
) -> frozenset[int]:
    """Return the partitions to reduce again by these checks: missed or doubted by many, or without a committed input.

    Voters that miss a result and voters that doubt it count together. Else a reducer that withholds the result from
    some and the openings from others could leave so few convinced that nobody may follow them (docs/adr/0055).
    `results` are by statement digest: of a result that is not among them nobody can say whom it left out.
    """
    unsure = _named_by_a_third(group, checks, lambda check: (*check.complaints, *check.doubts))
    dropped = (_dropped(group, inputs, checked, results) for checked in checks)
    return unsure.union(*dropped)


def _named_by_a_third(
    group: Group, checks: Sequence[Checked], named: Callable[[Check], Sequence[int]]
) -> frozenset[int]:
    return frozenset(
        partition
        for partition in range(group.partitions)
        if group.more_than_a_third(frozenset(checked.sender for checked in checks if partition in named(checked.check)))
    )


def _dropped(group: Group, inputs: InputSet, checked: Checked, results: Mapping[bytes, Result]) -> set[int]:
    """Return the partitions that really lack a member's input; none if it claims too many: then it was slow itself."""
    member, claimed = inputs.index(checked.sender), set(checked.check.dropped)
    if member is None or len(claimed) * DROPPED_IN_MIN > group.partitions:
        return set()
    named = ((partition, checked.check.results[partition]) for partition in claimed if partition < group.partitions)
    found = ((partition, results.get(digest)) for partition, digest in named if digest is not None)
    return {partition for partition, result in found if result is not None and member not in result.included}


def build_outcome(
    group: Group,
    inputs: InputSet,
    checks: Sequence[Checked],
    accepted: Sequence[bytes | None],
    results: Mapping[bytes, tuple[PeerId, Result]],
) -> Outcome:
    """Return the outcome of these checks with the `accepted` results; `results` must hold each, by statement digest."""
    partitions: list[PartitionOutcome | None] = []
    for digest in accepted:
        if digest is None:
            partitions.append(None)
            continue
        reducer, result = results[digest]
        partitions.append(PartitionOutcome(reducer=reducer, root=result.root, included=result.included))
    contributors = tuple(contributor(peer, commit) for peer, commit in zip(inputs.peers, inputs.commits, strict=True))
    return Outcome(
        fragment=group.key.fragment,
        version=group.key.version + 1,
        parent=group.parent,
        attempt=group.attempt,
        minor=group.minor,
        roster_id=group.key.roster_id,
        roster=group.members,
        input_set=inputs.digest,
        contributors=contributors,
        partitions=tuple(partitions),
        coin=_coin(checks),
        active_set=active_set_digest(group.active),
        trust=trust_digest(group.convictions),
        used_invites=group.used_invites or None,
    )


def contributor(peer: PeerId, commit: Commit) -> Contributor:
    """Return the entry for a commitment in a certificate or a cell's yield."""
    return Contributor(peer=peer, tokens=commit.tokens_counted, steps=commit.steps, cell=commit.cell)


def _coin(checks: Sequence[Checked]) -> bytes:
    ordered = sorted(checks, key=lambda checked: checked.sender)
    return digest_of(b"muster-coin", *(checked.check.nonce or b"" for checked in ordered))

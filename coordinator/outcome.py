"""From checks to an outcome: a pure function that proposer and voters compute alike (design §6.2 steps 8–9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.certificate import NO_TRUST_TABLE, Contributor, Outcome, PartitionOutcome, active_set_digest
from coordinator.group import Group, InputSet
from coordinator.messages import Check, Result
from dht.errors import PeerError
from dht.identity import PeerId, Verifier
from dht.statement import Statement, digest_of


def nonce_hash(nonce: bytes) -> bytes:
    """What a commitment holds of a nonce that is revealed later."""
    return digest_of(b"muster-nonce", nonce)


@dataclass(frozen=True, slots=True)
class Checked:
    """A valid check with its sender."""

    sender: PeerId
    check: Check
    statement: Statement


def read_check(statement: Statement, group: Group, inputs: InputSet, verifier: Verifier) -> Checked:
    """A member's check; raises PeerError with the reason it does not count."""
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
        raise PeerError("reveals a nonce that nobody committed")  # the coin could be ground with it
    if not statement.verify(verifier):
        raise PeerError("is not signed by its sender")
    return Checked(sender, check, statement)


def agreed_results(group: Group, checks: Sequence[Checked]) -> tuple[bytes | None, ...]:
    """Per partition the result that more than two thirds of the voters hold; None is void."""
    agreed: list[bytes | None] = []
    for partition in range(group.partitions):
        named = Counter(checked.check.results[partition] for checked in checks)
        del named[None]
        digest, count = named.most_common(1)[0] if named else (None, 0)
        agreed.append(digest if count >= group.votes_needed else None)
    return tuple(agreed)


def partitions_to_redo(group: Group, checks: Sequence[Checked]) -> tuple[int, ...]:
    """Partitions of which more than a third of the voters complain."""
    return tuple(
        partition
        for partition in range(group.partitions)
        if group.more_than_a_third(
            frozenset(checked.sender for checked in checks if partition in checked.check.complaints)
        )
    )


def build_outcome(
    group: Group,
    inputs: InputSet,
    checks: Sequence[Checked],
    results: Mapping[bytes, tuple[PeerId, Result]],
) -> Outcome:
    """The outcome these checks lead to. `results` must hold every agreed one, by statement digest."""
    partitions: list[PartitionOutcome | None] = []
    for digest in agreed_results(group, checks):
        if digest is None:
            partitions.append(None)
            continue
        reducer, result = results[digest]
        partitions.append(PartitionOutcome(reducer=reducer, root=result.root, included=result.included))
    contributors = tuple(
        Contributor(peer=peer, tokens=commit.tokens, steps=commit.steps)
        for peer, commit in zip(inputs.peers, inputs.commits, strict=True)
    )
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
        trust=NO_TRUST_TABLE,
    )


def _coin(checks: Sequence[Checked]) -> bytes:
    ordered = sorted(checks, key=lambda checked: checked.sender)
    return digest_of(b"muster-coin", *(checked.check.nonce or b"" for checked in ordered))

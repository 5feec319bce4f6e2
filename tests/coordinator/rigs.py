"""Signed statements for unit tests of the round core, with keyed hashes instead of Ed25519."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordinator.chain.certificate import (
    NO_TRUST_TABLE,
    Certificate,
    Contributor,
    Outcome,
    PartitionOutcome,
    Vote,
    active_set_digest,
    is_minor,
)
from coordinator.chain.chain import Chain, beacon_order
from coordinator.core.actions import RoundKey
from coordinator.core.context import Core
from coordinator.core.timeline import Timeline
from coordinator.group.group import Group, InputSet, leader_of, read_group, read_input_set
from coordinator.round.outcome import Checked, agreed_results, build_outcome, nonce_hash
from coordinator.run.manifest import Manifest, PaceSpec
from coordinator.simulator.simulation import make_manifest, make_signers
from coordinator.wire.messages import Bundle, Check, Commit, Join, Result, Roster
from coordinator.wire.presence import Presence, State
from dht.identity import PeerId, Signer
from dht.statement import Context, Statement, digest_of, make_statement
from dht.wire import Wire

SIGNERS, VERIFIER = make_signers(13, 1, real_keys=False)
PEERS = tuple(signer.peer_id for signer in SIGNERS)
BY_ID: dict[PeerId, Signer] = {signer.peer_id: signer for signer in SIGNERS}
PACE = PaceSpec(fragments=1, steps_per_version=6, quorum=3, min_group=2, round_seconds=8.0)
NONCES = (bytes(16), bytes([1]) * 16)
UNIX_SECONDS = 1_000_000


def manifest(founders: Sequence[PeerId] = PEERS[:5], pace: PaceSpec = PACE) -> Manifest:
    return make_manifest(pace, founders, 1)


def core(me: int = 0, founders: Sequence[PeerId] = PEERS[:5], pace: PaceSpec = PACE, boot: int | None = None) -> Core:
    """Make a core with the same "random" bytes every time; `boot` sets its boot nonce."""
    fill = me if boot is None else boot
    return Core(manifest(founders, pace), SIGNERS[me], VERIFIER, lambda count: bytes([fill]) * count, UNIX_SECONDS)


def chain_of(own: Core, fragment: int = 0) -> Chain:
    return Chain(own.rules, fragment, own.manifest.genesis[fragment])


def say(sender: PeerId, kind: str, chain: Chain, group: bytes, body: Wire, version: int | None = None) -> Statement:
    at = chain.version if version is None else version
    context = Context(run_id=chain.rules.run_id, kind=kind, fragment=chain.fragment, version=at, group=group)
    return make_statement(BY_ID[sender], context, body)


def decided(
    chain: Chain,
    roster: Sequence[PeerId],
    tokens: int = 100,
    salt: bytes = b"",
    changes: Mapping[str, object] | None = None,
) -> Outcome:
    """Make this roster's outcome for the next version of `chain`."""
    active = chain.active_set()
    fields: dict[str, object] = {
        "fragment": chain.fragment,
        "version": chain.version + 1,
        "parent": chain.digest,
        "attempt": 0,
        "minor": is_minor(roster, active, chain.rules.min_share),
        "roster_id": digest_of(b"roster", salt, *(peer.encode() for peer in roster)),
        "roster": tuple(roster),
        "input_set": digest_of(b"inputs", salt),
        "contributors": tuple(Contributor(peer=peer, tokens=tokens, steps=1) for peer in roster),
        "partitions": tuple(
            PartitionOutcome(reducer=peer, root=bytes(32), included=tuple(range(len(roster)))) for peer in roster
        ),
        "coin": digest_of(b"coin", salt),
        "active_set": active_set_digest(active),
        "trust": NO_TRUST_TABLE,
        **(changes or {}),
    }
    return Outcome.model_validate(fields)


def certified(run_id: bytes, outcome: Outcome, signers: Iterable[Signer], salt: bytes = b"") -> Certificate:
    """Make the certificate of an outcome with the votes of `signers`."""
    state = digest_of(b"state", salt, outcome.digest)
    vote = Vote(outcome=outcome.digest, state=state)
    context = Context(
        run_id=run_id, kind="vote", fragment=outcome.fragment, version=outcome.version - 1, group=outcome.roster_id
    )
    votes = tuple(make_statement(signer, context, vote) for signer in signers)
    return Certificate(outcome=outcome, state=state, votes=votes)


def certificate(
    chain: Chain,
    roster: Sequence[PeerId],
    voters: Iterable[PeerId] | None = None,
    tokens: int = 100,
    salt: bytes = b"",
    changes: dict[str, object] | None = None,
) -> Certificate:
    """Make a certificate for the next version of `chain`, signed by `voters` (default: the whole roster)."""
    signers = [BY_ID[voter] for voter in (roster if voters is None else voters)]
    return certified(chain.rules.run_id, decided(chain, roster, tokens, salt, changes), signers, salt)


def grown(chain: Chain, versions: int, roster: Sequence[PeerId], salt: bytes = b"", tokens: int = 100) -> Chain:
    """Return a copy of `chain` with this many more versions, all by the same roster."""
    copy = chain.truncated(chain.version)
    for _ in range(versions):
        copy.append(certificate(copy, roster, salt=salt, tokens=tokens))
    return copy


def join(chain: Chain, sender: PeerId, attempt: int = 0, **changes: object) -> Statement:
    body: dict[str, object] = {
        "attempt": attempt,
        "leader": leader_of(chain, attempt),
        "boot": bytes([PEERS.index(sender)]) * 16,
        "dialable": True,
        "contributes": True,
        "expires_unix_seconds": UNIX_SECONDS + 60,
    }
    return say(sender, "join", chain, chain.digest, Join.model_validate({**body, **changes}))


def roster(chain: Chain, members: Sequence[PeerId], attempt: int = 0, revision: int = 0) -> Statement:
    joins = tuple(join(chain, member, attempt) for member in beacon_order(chain.beacon(), members))
    body = Roster(attempt=attempt, revision=revision, joins=joins)
    return say(leader_of(chain, attempt), "roster", chain, chain.digest, body)


def group_of(chain: Chain, members: Sequence[PeerId], attempt: int = 0) -> Group:
    return read_group(roster(chain, members, attempt), chain, UNIX_SECONDS)


def commit_body(
    group: Group, sender: PeerId, tokens: int = 100, steps: int = 1, windows: int | None = None, probation: bool = False
) -> Commit:
    """Make a member's valid commitment; there are no bytes behind it."""
    return Commit(
        tokens=tokens,
        steps=steps,
        window_first=0,
        window_count=steps if windows is None else windows,
        codec="int8",
        part_roots=tuple(digest_of(sender.encode(), bytes([j])) for j in range(group.partitions)),
        squared_norms=(1.0,) * group.partitions,
        nonce_hashes=(nonce_hash(NONCES[0]), nonce_hash(NONCES[1])),
        probation=probation,
    )


def commit(
    chain: Chain, group: Group, sender: PeerId, tokens: int = 100, steps: int = 1, windows: int | None = None
) -> Statement:
    body = commit_body(group, sender, tokens, steps, windows)
    return say(sender, "commit", chain, group.key.roster_id, body)


def inputs_of(chain: Chain, group: Group, members: Sequence[PeerId] | None = None) -> InputSet:
    commits = tuple(commit(chain, group, member) for member in (group.members if members is None else members))
    body = Bundle(commits=commits, members=len(group.members))
    bundle = say(group.leader, "bundle", chain, group.key.roster_id, body)
    return read_input_set(bundle, group, "int8", chain)


def check(
    chain: Chain,
    inputs: InputSet,
    sender: PeerId,
    results: Sequence[bytes | None],
    phase: int = 0,
    doubts: tuple[int, ...] = (),
) -> Checked:
    missing = tuple(partition for partition, one in enumerate(results) if one is None)
    nonce = None if missing else NONCES[phase]
    body = Check(phase=phase, results=tuple(results), complaints=missing, nonce=nonce, doubts=doubts)
    return Checked(sender, body, say(sender, "check", chain, inputs.digest, body))


def result_of(group: Group, partition: int, turn: int = 0) -> tuple[bytes, tuple[PeerId, Result]]:
    result = Result(
        partition=partition,
        turn=turn,
        root=digest_of(b"result", bytes([partition, turn])),
        included=tuple(range(5)),
        coefficients=(),
        squared_norms=(),
        encoding_error=0.0,
    )
    return digest_of(b"statement", bytes([partition, turn])), (
        group.reducer(partition, {partition} if turn else ()),
        result,
    )


def key_of(chain: Chain, name: bytes = b"") -> RoundKey:
    return RoundKey(chain.fragment, chain.version, digest_of(b"round", name))


def timeline() -> Timeline:
    return Timeline(0.0, 8.0)


def presence(
    state: State = "training",
    steps: int = 0,
    rate: float = 1.0,
    chains: Sequence[Chain] = (),
    beat: int = 0,
    dialable: bool = True,
) -> Presence:
    return Presence(
        boot=bytes(16),
        state=state,
        steps=steps,
        steps_per_second=rate,
        tokens=steps,
        versions=tuple(chain.version for chain in chains),
        heads=tuple(chain.digest[:8] for chain in chains),
        addresses=(),
        beat=beat,
        dialable=dialable,
    )


def outcome_of(
    group: Group, inputs: InputSet, checks: Sequence[Checked], results: Mapping[bytes, tuple[PeerId, Result]]
) -> Outcome:
    """Return the outcome of these checks if nothing is refuted."""
    return build_outcome(group, inputs, checks, agreed_results(group, checks), results)

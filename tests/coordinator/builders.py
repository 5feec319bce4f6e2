"""A few peers with keys, and builders of all statements that they could make in a round."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
from coordinator.chain.chain import Chain, Rules
from coordinator.chain.packed_history import PackedHistory
from coordinator.core.context import Core
from coordinator.group.group import Group, InputSet, leader_of, read_group, read_input_set
from coordinator.round.outcome import Checked, nonce_hash, read_check
from coordinator.run.manifest import PEERS_PER_GROUP_MAX, Manifest, PaceSpec, TrustSpec
from coordinator.simulator.simulation import EVERYBODY_AT_ONCE, make_manifest, make_signers
from coordinator.wire.messages import NONCE_BYTES, Bundle, Check, Commit, Join, Result, Roster
from coordinator.wire.presence import Presence
from dht.identity import PeerId, Signer, Verifier
from dht.statement import Context, Statement, digest_of, make_statement
from dht.wire import Wire

PACE = PaceSpec(fragments=2, steps_per_version=8, quorum=3, min_group=1, round_seconds=8.0)
NOW = 1000.0
CODEC = "int8"


def digest(name: object) -> bytes:
    """Return a digest that stands for `name`."""
    return digest_of(str(name).encode())


def nonce(number: int, phase: int = 0) -> bytes:
    """Return the nonce that peer `number` reveals in its check of this phase."""
    return digest(("nonce", number, phase))[:NONCE_BYTES]


def boot(number: int, life: int = 0) -> bytes:
    """Return the boot nonce of peer `number` in one of its lives."""
    return digest(("boot", number, life))[:NONCE_BYTES]


def presence(number: int = 0, beat: int = 0, **changes: Any) -> Presence:
    """Make a presence record."""
    values: dict[str, Any] = {
        "boot": boot(number),
        "state": "training",
        "steps": 0,
        "steps_per_second": 1.0,
        "tokens": 0,
        "loss": None,
        "versions": (),
        "heads": (),
        "addresses": (),
        "beat": beat,
    }
    return Presence(**{**values, **changes})


@dataclass(frozen=True)
class Club:
    """The peers of a run, each named by its number."""

    signers: Sequence[Signer]
    verifier: Verifier
    manifest: Manifest

    @classmethod
    def of(
        cls,
        count: int,
        founders: int | None = None,
        pace: PaceSpec = PACE,
        *,
        seed: int = 0,
        real_keys: bool = False,
        trust: TrustSpec = EVERYBODY_AT_ONCE,
    ) -> Club:
        signers, verifier = make_signers(count, seed, real_keys)
        ids = [signer.peer_id for signer in signers]
        return cls(signers, verifier, make_manifest(pace, ids[: founders or PEERS_PER_GROUP_MAX], seed, trust))

    @property
    def ids(self) -> list[PeerId]:
        return [signer.peer_id for signer in self.signers]

    def peers(self, numbers: Iterable[int]) -> frozenset[PeerId]:
        return frozenset(self.ids[number] for number in numbers)

    def number(self, peer: str) -> int:
        return self.ids.index(PeerId(peer))

    @property
    def rules(self) -> Rules:
        return Rules.of(self.manifest, self.verifier)

    def core(self, number: int, **changes: Any) -> Core:
        """Make a protocol core for peer `number`; unix time is `now` here."""
        source = random.Random(number).randbytes
        return Core(self.manifest, self.signers[number], self.verifier, source, unix_offset_seconds=0.0, **changes)

    def chain(self, fragment: int = 0, certificates: Sequence[Certificate] = ()) -> Chain:
        return Chain(self.rules, fragment, self.manifest.genesis[fragment], PackedHistory(certificates))

    # -- certificates

    def outcome(self, chain: Chain, roster: Sequence[int], **changes: Any) -> Outcome:
        """Make the outcome of a round at the end of `chain`: one partition that holds all members' work."""
        members = tuple(self.ids[number] for number in roster)
        active = chain.active_set()
        name = (chain.digest, tuple(roster))
        values: dict[str, Any] = {
            "fragment": chain.fragment,
            "version": chain.version + 1,
            "parent": chain.digest,
            "attempt": 0,
            "minor": is_minor(frozenset(members), active, chain.rules.min_share),
            "roster_id": digest(("roster", name)),
            "roster": members,
            "input_set": digest(("inputs", name)),
            "contributors": tuple(Contributor(peer=peer, tokens=100, steps=10) for peer in members),
            "partitions": (
                PartitionOutcome(reducer=members[0], root=digest(("root", name)), included=tuple(range(len(members)))),
            ),
            "coin": digest(("coin", name)),
            "active_set": active_set_digest(active),
            "trust": NO_TRUST_TABLE,
        }
        return Outcome(**{**values, **changes})

    def vote(self, number: int, outcome: Outcome, state: bytes, **context: Any) -> Statement:
        """Make the vote of peer `number` for this outcome and state."""
        place = {"fragment": outcome.fragment, "version": outcome.version - 1, "group": outcome.roster_id, **context}
        return self.say(number, "vote", Vote(outcome=outcome.digest, state=state), **place)

    def certify(
        self, chain: Chain, roster: Sequence[int], voters: Collection[int] | None = None, **changes: Any
    ) -> Certificate:
        """Make the certificate of such a round, with the votes of `voters` (default: the whole roster)."""
        outcome = self.outcome(chain, roster, **changes)
        state = digest(("state", outcome.digest))
        votes = tuple(self.vote(number, outcome, state) for number in (roster if voters is None else voters))
        return Certificate(outcome=outcome, state=state, votes=votes)

    def grow(self, chain: Chain, *rosters: Sequence[int]) -> Chain:
        """Append one valid version per roster to the chain, and return it."""
        for roster in rosters:
            certificate = self.certify(chain, roster)
            assert chain.refusal(certificate) is None
            chain.append(certificate)
        return chain

    # -- statements

    @cached_property
    def run_id(self) -> bytes:
        """The manifest's run id, hashed once for all statements."""
        return self.manifest.run_id

    def say(self, number: int, kind: str, body: Wire, **context: Any) -> Statement:
        """Sign a statement; `fragment`, `version` and `group` give its context."""
        place = {"run_id": self.run_id, "fragment": 0, "version": 0, "group": b"", **context}
        return make_statement(self.signers[number], Context(kind=kind, **place), body)

    def at(self, chain: Chain) -> dict[str, Any]:
        """Return the context of statements about the base at the end of `chain`."""
        return {"fragment": chain.fragment, "version": chain.version, "group": chain.digest}

    def join(self, number: int, chain: Chain, attempt: int = 0, **changes: Any) -> Statement:
        """Make peer `number`'s join for an attempt."""
        values: dict[str, Any] = {
            "attempt": attempt,
            "leader": leader_of(chain, attempt),
            "boot": boot(number),
            "dialable": True,
            "contributes": True,
            "expires_unix_seconds": int(NOW) + 60,
        }
        return self.say(number, "join", Join(**{**values, **changes}), **self.at(chain))

    def roster(self, chain: Chain, joins: Sequence[Statement], attempt: int = 0, revision: int = 0) -> Statement:
        """Make the leader's roster of an attempt."""
        leader = self.number(leader_of(chain, attempt))
        body = Roster(attempt=attempt, revision=revision, joins=tuple(joins))
        return self.say(leader, "roster", body, **self.at(chain))

    def group(
        self,
        chain: Chain,
        members: Iterable[int],
        *,
        attempt: int = 0,
        revision: int = 0,
        witnesses: Iterable[int] = (),
    ) -> Group:
        """Make a group of these members; `witnesses` contribute no outer gradient."""
        silent = set(witnesses)
        joins = [self.join(one, chain, attempt, contributes=one not in silent) for one in members]
        return read_group(self.roster(chain, joins, attempt, revision), chain, NOW)

    def commit(self, number: int, group: Group, **changes: Any) -> Statement:
        """Make peer `number`'s commitment to a contribution."""
        values: dict[str, Any] = {
            "tokens": 100,
            "steps": 10,
            "window_first": 0,
            "window_count": 10,
            "codec": CODEC,
            "part_roots": tuple(digest(("part", number, partition)) for partition in range(group.partitions)),
            "squared_norms": (1.0,) * group.partitions,
            "nonce_hashes": (nonce_hash(nonce(number, 0)), nonce_hash(nonce(number, 1))),
        }
        return self.say(number, "commit", Commit(**{**values, **changes}), **self.in_group(group))

    def in_group(self, group: Group, name: bytes | None = None) -> dict[str, Any]:
        """Return the context of statements in a group; `name` is the input set's digest once there is one."""
        named = group.key.roster_id if name is None else name
        return {"fragment": group.key.fragment, "version": group.key.version, "group": named}

    def bundle(self, group: Group, commits: Sequence[Statement]) -> Statement:
        """Make the leader's bundle, which fixes the input set."""
        body = Bundle(commits=tuple(commits), members=len(group.members))
        return self.say(self.number(group.leader), "bundle", body, **self.in_group(group))

    def inputs(self, chain: Chain, group: Group) -> InputSet:
        """Make the input set with all contributions."""
        commits = [self.commit(self.number(peer), group) for peer in group.members if peer in group.contributors]
        return read_input_set(self.bundle(group, commits), group, CODEC, chain)

    def result(self, group: Group, inputs: InputSet, partition: int, turn: int = 0, **changes: Any) -> Statement:
        """Make the result of this turn's reducer for a partition."""
        values: dict[str, Any] = {
            "partition": partition,
            "turn": turn,
            "root": digest(("result", partition, turn)),
            "included": tuple(range(len(inputs.peers))),
            "coefficients": (),
            "squared_norms": (1.0,),
            "encoding_error": 0.0,
        }
        reducer = self.number(group.reducer(partition, {partition} if turn else ()))
        return self.say(reducer, "result", Result(**{**values, **changes}), **self.in_group(group, inputs.digest))

    def check_statement(
        self, number: int, group: Group, inputs: InputSet, results: Sequence[bytes | None], **changes: Any
    ) -> Statement:
        """Make peer `number`'s check of the results that it holds, with complaints about missing ones."""
        missing = tuple(partition for partition, result in enumerate(results) if result is None)
        phase = changes.get("phase", 0)
        brings = self.ids[number] in inputs.peers
        values: dict[str, Any] = {
            "phase": phase,
            "results": tuple(results),
            "complaints": missing,
            "nonce": nonce(number, phase) if brings and not missing else None,
        }
        return self.say(number, "check", Check(**{**values, **changes}), **self.in_group(group, inputs.digest))

    def check(
        self, number: int, group: Group, inputs: InputSet, results: Sequence[bytes | None], **changes: Any
    ) -> Checked:
        """Make such a check, read as a valid one."""
        return read_check(self.check_statement(number, group, inputs, results, **changes), group, inputs, self.verifier)


def forged(statement: Statement) -> Statement:
    """Return the same statement with a false signature."""
    return statement.model_copy(update={"signature": bytes(len(statement.signature))})

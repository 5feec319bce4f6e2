"""A run of a few keys, certified by hand, and exports of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

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
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import Manifest, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.views.credit import CreditRecord, CreditReport, report_of
from coordinator.views.evaluation import Evaluation
from dht.identity import Identity, KeyVerifier
from dht.statement import Context, digest_of, make_statement
from peer.export.exported import Exported
from peer.export.writer import write_export
from peer.model.description import Named, describe
from peer.numerics.outer_optimizer import OuterState, outer_step, state_digest
from peer.storage.anchors import genesis_states
from peer.storage.run_directory import Captured

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=8, layers=1, heads=2, intermediate_size=16),
    data=DataSpec(context_tokens=16),
    pace=PaceSpec(fragments=2, steps_per_version=4, min_group=1),
)
BUFFERED = RunConfig(  # its activations have buffers that are saved with the model
    model=ModelSpec(family="apertus", hidden_size=8, layers=1, heads=2, intermediate_size=16, weights="given"),
    data=CONFIG.data,
    pace=CONFIG.pace,
)
RATES = CONFIG.outer.learning_rate, CONFIG.outer.momentum
KEYS = [Identity(digest_of(b"exporting", bytes([number]))) for number in range(3)]
STRANGER = Identity(digest_of(b"a stranger"))
WRITTEN = 1_800_000_000
EVALUATIONS = tuple(
    Evaluation(versions=number, tokens_certified=100 * number, wall_seconds=number, loss=5 - number / 10)
    for number in range(40)
)


@dataclass
class CertifiedRun:
    """A run's chains and states, certified one version after the other, with votes of all KEYS by default."""

    config: RunConfig = CONFIG
    values: Named | None = None  # of version 0, unless they are seeded
    tokenizer: bytes | None = None
    chains: list[Chain] = field(default_factory=list)
    states: list[OuterState] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = genesis_states(self.config, self.values)
        self.manifest = Manifest(
            config=self.config,
            organiser=KEYS[0].peer_id,
            founders=tuple(key.peer_id for key in KEYS),
            data_digest=digest_of(b"data"),
            genesis=tuple(state_digest(state.anchor, state.momentum) for state in self.states),
            created_unix_seconds=0,
        )
        self.rules = Rules(self.manifest.run_id, self.manifest.founder_ids, 0.5, KeyVerifier())
        self.chains = [Chain(self.rules, index, digest) for index, digest in enumerate(self.manifest.genesis)]

    def advance(self, versions: int = 1, keys: Sequence[Identity] = KEYS) -> CertifiedRun:
        """Certify so many more versions of both fragments, by these keys."""
        for _ in range(versions):
            for chain in self.chains:
                self.certify(chain, keys)
        return self

    def certify(self, chain: Chain, keys: Sequence[Identity] = KEYS, state: OuterState | None = None) -> Certificate:
        """Certify one more version of a fragment, with this state or an invented one."""
        if state is None:
            before = self.states[chain.fragment]
            state = outer_step(before, torch.full_like(before.anchor, 0.01 * (chain.version + 1)), *RATES)
        self.states[chain.fragment] = state
        roster = tuple(key.peer_id for key in keys)
        active = chain.active_set()
        outcome = Outcome(
            fragment=chain.fragment,
            version=chain.version + 1,
            parent=chain.digest,
            attempt=0,
            minor=is_minor(roster, active, 0.5),
            roster_id=digest_of(b"roster", chain.digest),
            roster=roster,
            input_set=digest_of(b"inputs"),
            contributors=tuple(
                Contributor(peer=peer, tokens=100 * (place + 1), steps=2) for place, peer in enumerate(roster)
            ),
            partitions=(
                PartitionOutcome(
                    reducer=roster[0], root=digest_of(b"bytes"), included=tuple(range(max(1, len(roster) - 1)))
                ),
            ),
            coin=digest_of(b"coin"),
            active_set=active_set_digest(active),
            trust=NO_TRUST_TABLE,
        )
        digest = state_digest(state.anchor, state.momentum)
        context = Context(
            run_id=self.manifest.run_id,
            kind="vote",
            fragment=chain.fragment,
            version=chain.version,
            group=outcome.roster_id,
        )
        vote = Vote(outcome=outcome.digest, state=digest)
        votes = tuple(make_statement(key, context, vote) for key in keys)
        certificate = Certificate(outcome=outcome, state=digest, votes=votes)
        assert chain.refusal(certificate) is None
        chain.append(certificate)
        return certificate

    def credit(self) -> CreditReport:
        return report_of(self.manifest.run_id, CreditRecord.empty(len(self.chains)), self.chains, {})

    def captured(self) -> Captured:
        return Captured(
            tuple(chain.version for chain in self.chains),
            tuple(self.states),
            tuple(chain.certificates.copy() for chain in self.chains),
        )

    def exported(self, licence: str = "") -> Exported:
        return Exported(self.manifest, self.captured(), self.credit(), EVALUATIONS, 2.5, licence, self.tokenizer)

    def write(self, target: Path, key: Identity = KEYS[0]) -> Path:
        """Write an export of this moment, signed by this key."""
        write_export(target, self.exported(), key, WRITTEN)
        return target


def buffered_run() -> CertifiedRun:
    """Return a run of a model with buffers, at version 1."""
    described = describe(BUFFERED)
    return CertifiedRun(described.config, described.values).advance()


def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits, with all parameters copied first: their alignment in memory changes how products round."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    with torch.inference_mode():
        result: torch.Tensor = model(input_ids=ids).logits
    return result

"""Sums over the certificates of a demo: tokens, credit and traffic, with the crowd's share added."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import CERTIFICATES_MAX, CertificateView, ContributorView
from dashboard.demo.crowd import DemoCrowd
from dashboard.demo.recorder import HeardCertificate
from dashboard.demo.story import PACE
from dht.identity import PeerId

PARAMETERS = 25_000_000
CONTRIBUTION_BITS = RESULT_BITS = 4.5  # int4 with a scale for each block
SIMULATED_TOKENS_PER_STEP = 1024
TOKENS_PER_STEP = 16 * SIMULATED_TOKENS_PER_STEP  # a batch for a GPU
RATE_WINDOW_SECONDS = 30.0
EVALUATE_EVERY_VERSIONS = 4


def loss_after(tokens: float, draw: Random) -> float:
    """Return the loss of an invented learning curve after so many tokens, in nats per token."""
    return 1.9 + 3.6 * math.pow(1 + tokens / 640_000, -0.45) + draw.gauss(0, 0.006)


@dataclass
class DemoLedger:
    """Sums over certificates. `names` maps each simulated key to the peer that it stands for."""

    names: Mapping[PeerId, PeerId]
    crowd: DemoCrowd
    epoch: float
    certificates: deque[CertificateView] = field(default_factory=lambda: deque(maxlen=CERTIFICATES_MAX))
    evaluations: list[Evaluation] = field(default_factory=list)
    versions: int = 0
    sent: Counter[PeerId] = field(default_factory=Counter)
    credited: Counter[PeerId] = field(default_factory=Counter)  # tokens × fragments
    included: Counter[PeerId] = field(default_factory=Counter)  # versions
    last_at: dict[PeerId, float] = field(default_factory=dict)  # Unix seconds
    _token_fragments: int = 0

    @property
    def tokens(self) -> int:
        """Certified tokens, each counted once."""
        return self._token_fragments // PACE.fragments

    def credit(self, peer: PeerId) -> int:
        """Return the certified tokens of one contributor, each counted once."""
        return self.credited[peer] // PACE.fragments

    def tokens_per_second(self, at: float) -> float:
        """Return the rate of certified tokens over the last RATE_WINDOW_SECONDS."""
        start = self.epoch + at - RATE_WINDOW_SECONDS
        recent = sum(one.tokens for one in self.certificates if one.unix_seconds >= start)
        return recent / PACE.fragments / max(1.0, min(at, RATE_WINDOW_SECONDS))

    def add(self, heard: HeardCertificate, leader: PeerId) -> None:
        """Count one certificate."""
        view = self._view(heard, leader)
        self.certificates.append(view)
        self.versions += 1
        self._token_fragments += view.tokens
        members = len(view.roster)
        for one in view.contributors:
            peer = PeerId(one.peer_id)
            # scatter: all but the own partition of the contribution; gather: the own result to everybody else
            bits = (CONTRIBUTION_BITS + RESULT_BITS) * PARAMETERS / PACE.fragments * (members - 1) / members
            self.sent[peer] += int(bits / 8)
            self.credited[peer] += one.tokens if one.included else 0
            self.included[peer] += one.included
            self.last_at[peer] = view.unix_seconds
        if self.versions % EVALUATE_EVERY_VERSIONS == 0:
            draw = Random(f"evaluation {self.versions} of {self.crowd.seed}")
            loss = round(loss_after(self.tokens, draw), 4)
            self.evaluations.append(
                Evaluation(versions=self.versions, tokens_certified=self.tokens, wall_seconds=heard.at, loss=loss)
            )

    def _view(self, heard: HeardCertificate, leader: PeerId) -> CertificateView:
        outcome = heard.certificate.outcome
        extras = self.crowd.members(outcome.fragment, outcome.version)
        more = tuple(one.person.peer_id for one in extras)
        credited = outcome.credited()
        contributors = [
            ContributorView(
                peer_id=self.names[PeerId(one.peer)],
                tokens=credited.get(one.peer, one.tokens) * TOKENS_PER_STEP // SIMULATED_TOKENS_PER_STEP,
                steps=one.steps,
                included=one.peer in credited,
            )
            for one in outcome.contributors
        ]
        for extra in extras:
            steps = self.crowd.steps_per_turn(extra)
            contributors.append(
                ContributorView(peer_id=extra.person.peer_id, steps=steps, tokens=steps * TOKENS_PER_STEP)
            )
        counted = [one for one in contributors if one.included]
        return CertificateView(
            fragment=outcome.fragment,
            version=outcome.version,
            digest=heard.certificate.digest.hex(),
            parent=outcome.parent.hex(),
            state=heard.certificate.state.hex(),
            minor=outcome.minor,
            attempt=outcome.attempt,
            leader=leader,
            roster=(*(self.names[PeerId(peer)] for peer in outcome.roster), *more),
            voters=(*(self.names[voter] for voter in sorted(heard.certificate.voters)), *more),
            contributors=tuple(contributors),
            tokens=sum(one.tokens for one in counted),
            steps=max((one.steps for one in counted), default=0),
            unix_seconds=self.epoch + heard.at,
            verified=True,
        )

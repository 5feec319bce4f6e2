"""A peer's report on itself over its control socket: the one model behind status, views, reports and dashboards.

A snapshot is for people on the same machine; nothing in it is a claim that another peer would believe.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import BanView, CertificateView, RoundView

Phase = Literal["idle", "joining", "in a round", "bound by a vote", "catching up"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FragmentStatus(_Frozen):
    """One fragment at this peer."""

    version: int
    held_version: int
    head: str = Field(description="hex digest of the newest certified version")
    state: str = Field(description="hex digest of the state that we hold, as certified")
    phase: Phase
    reason: str = Field("", description="why its last attempt at the next version was void; empty if none was")
    hindrance: str = Field("", description="why it asks into no group now; empty if it may as soon as one is due")


class CertifiedWork(_Frozen):
    """Sums over the certificates added to our chains since this peer started, without branches that it left."""

    versions: int = 0
    minor: int = 0
    tokens: int = Field(0, description="certified in every fragment, on average: the sum over fragments divided by P")
    members: int = Field(0, description="contributors, summed over versions")
    steps: int = Field(0, description="steps of the contributor with most steps, summed over versions")


class OwnerDay(_Frozen):
    """A machine's training time and traffic since midnight, local time, across restarts."""

    trained_seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    opens_in_minutes: int | None = Field(None, description="until its owner lets it train; None: now")


class PeerSnapshot(_Frozen):
    """Everything about one running peer."""

    peer_id: str
    run_id: str
    name: str
    role: Literal["host", "learner"]
    state: str = Field(description="in words: starting, training, catching up, paused, draining, finished, hosting")
    note: str = Field("", description="what is happening now, in one line")
    advice: str = Field("", description="what somebody has to do so that this peer can go on; empty as a rule")
    late: str = Field("", description="why its work often comes too late for rounds, and what to do; empty as a rule")
    device: str = Field("", description="where it trains, and how it uses that")
    celsius: float | None = Field(None, description="of the hottest of processor and GPUs; None if nothing says it")
    gpu_watts: float | None = Field(None, description="what all GPUs draw")
    pid: int
    wall_seconds: float
    steps: int = 0
    steps_per_second: float = 0.0
    tokens: int = 0
    loss: float | None = None
    swarm_loss: float | None = Field(None, description="median of what it and the learners it sees say of theirs")
    learner_cpu_seconds: float = 0.0
    training_seconds: float = Field(0.0, description="wall time between first and last inner step")
    peer_cpu_seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    peers_live: int = Field(0, description="how many others are there, hosts too")
    dialable: bool = Field(True, description="whether others get through when they call it, as far as it knows")
    rounds_in_flight: int = 0
    fragments: tuple[FragmentStatus, ...] = ()
    certified: CertifiedWork = CertifiedWork()
    credited_tokens: dict[str, int] = Field(default_factory=dict, description="certified tokens by contributor")
    adoption_delays_steps: tuple[int, ...] = Field((), description="newest delays between snapshot and adoption")
    evaluations: tuple[Evaluation, ...] = ()
    rounds: tuple[RoundView, ...] = Field((), description="the newest rounds of this peer, newest last")
    certificates: tuple[CertificateView, ...] = Field(
        (), description="the newest of each fragment, without rosters and contributors"
    )
    bans: tuple[BanView, ...] = Field((), description="keys of which this peer holds evidence, without the evidence")
    events: dict[str, int] = Field(default_factory=dict)
    digests_from_tensors: tuple[str, ...] = Field((), description="state digests hashed from the tensors themselves")
    day: OwnerDay = OwnerDay()
    sample: str = Field("", description="text generated from the certified anchors, by a host")
    exports: str = Field("", description="where a host exports to, in words for everybody; empty: nowhere")

    @property
    def own_tokens(self) -> int:
        """The peer's own certified tokens, by the certificates that it has seen since it started."""
        return self.credited_tokens.get(self.peer_id, 0)

    @property
    def own_share(self) -> float:
        """The share of these tokens in all peers' certified tokens."""
        return self.own_tokens / max(1, sum(self.credited_tokens.values()))

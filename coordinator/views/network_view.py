"""An observer's view of a run: the one model between the code that reads the network and the code that shows it.

The observer writes the newest view as JSON to a file (write, then rename); pages and terminals only read it. Text in it
comes from strangers (names, notes, addresses, software, reasons): it is bounded, and it is never markup. Times are Unix
seconds of the observer's clock. Values that the network cannot tell are None, empty or 0 by default.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from coordinator.run.manifest import FRAGMENTS_MAX, PEERS_PER_GROUP_MAX
from coordinator.views.evaluation import Evaluation
from coordinator.wire.presence import ADDRESSES_MAX, PEERS_KNOWN_MAX

VIEW_BYTES_MAX = 32 << 20  # of a view as JSON
EVALUATIONS_MAX = 2048
HISTORY_MAX = 1024
CERTIFICATES_MAX = 512
ROUNDS_MAX = 128
PHASES_MAX = 16
BANS_MAX = 1024
AUDITS_MAX = 512
EVENTS_MAX = 256
TAPE_MAX = 2048
PEER_HISTORY_MAX = 60
EVIDENCE_MAX = 4
SAMPLE_CHARACTERS_MAX = 600
SENTENCE_CHARACTERS_MAX = 600
DAYS_KEPT = 14

Id = Annotated[str, StringConstraints(max_length=64)]
"""A peer id."""
Line = Annotated[str, StringConstraints(max_length=240)]
"""One line of untrusted text."""
Sample = Annotated[str, StringConstraints(max_length=SAMPLE_CHARACTERS_MAX)]
"""Untrusted text of several lines."""
Sentence = Annotated[str, StringConstraints(max_length=SENTENCE_CHARACTERS_MAX)]
"""Our own text, which also says what to do."""
Hex = Annotated[str, StringConstraints(max_length=64, pattern=r"^[0-9a-f]*$")]
"""A digest; empty if unknown."""
Unix = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Unix seconds."""
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Loss = Annotated[float, Field(allow_inf_nan=False)]

PhaseName = Literal["join", "grace", "encode", "commit", "scatter", "reduce", "check", "vote", "adopt"]
PHASES: tuple[PhaseName, ...] = ("join", "grace", "encode", "commit", "scatter", "reduce", "check", "vote", "adopt")
"""The phases in the order of a round (design §6.2): waiting for the quorum, grace window, …"""
PHASE_WORDS = {"join": "joining round", "grace": "joining round", "reduce": "reducing", "vote": "voting"}
"""Words for a member's state in the phases in which it does not just train."""

Trust = Literal["in good standing", "probation", "banned"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RunFacts(_Frozen):
    """Facts from the manifest, which never change, as far as people want to see them."""

    fragments: int = Field(1, ge=1, le=FRAGMENTS_MAX, description="P")
    steps_per_version: int = Field(1, ge=1, description="H: inner steps between two versions of a fragment")
    versions_target: int = Field(1, ge=1, description="the run ends after this many, over all fragments")
    parameters: int = Field(0, ge=0, description="of the model; 0 if unknown")
    tokens_per_step: int = Field(0, ge=0, description="of one learner")
    contribution_codec: Line = ""
    merge: Line = ""
    presence_lifetime_seconds: float = Field(9.0, gt=0, description="after this silence a peer counts as gone")
    about: tuple[tuple[Line, Line], ...] = Field((), max_length=8, description="what the run says of itself")
    admission: Line = Field("", description="who may take part: invite, list or open; empty in old runs")


class PeerPoint(_Frozen):
    """One peer at one moment."""

    unix_seconds: Unix
    live: bool
    steps: int = Field(0, ge=0)
    steps_per_second: Rate = 0.0
    loss: Loss | None = None
    versions: int = Field(0, ge=0, description="over all fragments")


class PeerView(_Frozen):
    """One peer as the observer sees it, mostly from the peer's own claims in its signed presence."""

    peer_id: Id
    name: Line = ""
    role: Literal["host", "learner", "unknown"] = "unknown"
    state: Line = Field(
        "", description="in words: starting, training, joining round, reducing, catching up, paused, finished…"
    )
    note: Line = Field("", description="why, in one line")
    device: Line = ""
    software: Line = ""
    steps: int = Field(0, ge=0)
    steps_per_second: Rate = 0.0
    tokens: int = Field(0, ge=0, description="trained, as the peer says")
    loss: Loss | None = Field(None, description="training loss, nats per token, as the peer says")
    versions: tuple[int, ...] = Field((), max_length=FRAGMENTS_MAX, description="held, per fragment")
    versions_behind: int = Field(0, ge=0, description="of the newest certified ones, over all fragments")
    addresses: tuple[Line, ...] = Field((), max_length=ADDRESSES_MAX)
    dialable: bool | None = Field(None, description="whether others can open connections to it; None if unknown")
    last_seen_seconds: Rate = Field(0.0, description="since its last presence, when the view was taken")
    live: bool = Field(True, description="its last presence is younger than a lifetime")
    credited_tokens: int = Field(0, ge=0, description="recomputed from certificates, each token counted once")
    bytes_sent: int | None = Field(None, ge=0, description="None if the peer does not tell")
    bytes_received: int | None = Field(None, ge=0)
    trust: Trust = "in good standing"
    history: tuple[PeerPoint, ...] = Field((), max_length=PEER_HISTORY_MAX, description="oldest first")


class FragmentView(_Frozen):
    """The newest certified version of one fragment."""

    version: int = Field(0, ge=0)
    head: Hex = Field("", description="its digest")
    certified_unix_seconds: Unix | None = None


class HistoryPoint(_Frozen):
    """The run at one moment. Sums count from the run's beginning, as far as the observer knows."""

    unix_seconds: Unix
    versions: int = Field(0, ge=0, description="certified, over all fragments")
    tokens_certified: int = Field(0, ge=0, description="each token counted once")
    tokens_per_second: Rate | None = Field(None, description="certified; None if not known yet")
    trained_tokens_per_second: Rate = Field(0.0, description="by live learners, from their step rates")
    capacity_tokens_per_second: Rate = Field(
        0.0, description="if every learner known, live or gone, trained at the speed it last had"
    )
    peers_live: int = Field(0, ge=0, description="all who are there, hosts too")
    peers_known: int = Field(0, ge=0, description="live or gone, as far as they are still remembered")
    bytes_sent: int | None = Field(None, ge=0, description="by all peers that tell; None if none does")
    bytes_received: int | None = Field(None, ge=0)
    learners_live: int | None = Field(None, ge=0, description="None in a view of an earlier version")


class ContributorView(_Frozen):
    """One member's certified work in one version."""

    peer_id: Id
    tokens: int = Field(0, ge=0, description="credited if it is included, else claimed")
    steps: int = Field(0, ge=0, description="claimed")
    included: bool = Field(True, description="in at least one partition")


class CertificateView(_Frozen):
    """One certified version."""

    fragment: int = Field(ge=0, lt=FRAGMENTS_MAX)
    version: int = Field(ge=1)
    digest: Hex = ""
    parent: Hex = ""
    state: Hex = Field("", description="digest of the state that it certifies")
    minor: bool = False
    attempt: int = Field(0, ge=0)
    leader: Id = ""
    roster: tuple[Id, ...] = Field((), max_length=PEERS_PER_GROUP_MAX)
    voters: tuple[Id, ...] = Field((), max_length=PEERS_PER_GROUP_MAX)
    contributors: tuple[ContributorView, ...] = Field((), max_length=PEERS_PER_GROUP_MAX)
    tokens: int = Field(0, ge=0, description="of the included contributors")
    steps: int = Field(0, ge=0, description="of the included contributor with most")
    unix_seconds: Unix = Field(0.0, description="when the observer first saw it")
    verified: bool = Field(False, description="the observer checked every signature and rule of §6.3")


class PhaseSpan(_Frozen):
    """One phase of a round; `end_unix_seconds` is None while it lasts."""

    name: PhaseName
    start_unix_seconds: Unix
    end_unix_seconds: Unix | None = None


class RoundView(_Frozen):
    """One round, with the times of the peer that reported it (the leader, if it is known)."""

    fragment: int = Field(ge=0, lt=FRAGMENTS_MAX)
    version: int = Field(ge=1, description="the version that it makes, or would have made")
    attempt: int = Field(0, ge=0)
    leader: Id = ""
    reporter: Id = ""
    members: tuple[Id, ...] = Field((), max_length=PEERS_PER_GROUP_MAX)
    late: tuple[Id, ...] = Field((), max_length=PEERS_PER_GROUP_MAX, description="joined after the quorum, or silent")
    phases: tuple[PhaseSpan, ...] = Field((), max_length=PHASES_MAX, description="in order of time")
    outcome: Literal["running", "certified", "void"] = "running"
    reason: Line = Field("", description="why it was void")
    digest: Hex = Field("", description="of the version, if certified")


class BanView(_Frozen):
    """A banned key."""

    peer_id: Id
    reason: Line = ""
    evidence: tuple[Annotated[str, StringConstraints(max_length=1 << 17, pattern=r"^[0-9a-f]*$")], ...] = Field(
        (), max_length=EVIDENCE_MAX, description="signed statements as on the wire, in hex, that prove it"
    )
    verified: bool = Field(False, description="the observer checked the evidence itself")
    unix_seconds: Unix = 0.0
    digest: Hex = Field("", description="of the evidence as a whole, by which peers ask for it")


class AuditView(_Frozen):
    """An audit of a peer, or a complaint about it, as another peer signed it."""

    kind: Literal["audit", "complaint"]
    about: Id
    by: Id = Field("", description="who says so; the sender leaves it to the receiver")
    fragment: int = Field(0, ge=0, lt=FRAGMENTS_MAX)
    version: int = Field(0, ge=0)
    passed: bool | None = Field(None, description="None: pending, or a complaint")
    reason: Line = ""
    unix_seconds: Unix = 0.0


class CreditView(_Frozen):
    """Certified tokens of one contributor, recomputed from certificates; it may have left long ago."""

    peer_id: Id
    name: Line = ""
    team: Line = ""
    tokens: int = Field(0, ge=0, description="each token counted once")
    versions: int = Field(0, ge=0, description="that include work of it")
    last_unix_seconds: Unix = 0.0
    days: tuple[tuple[int, int], ...] = Field(
        (), max_length=DAYS_KEPT, description="tokens by day (UTC, since 1970), as far as somebody looked on"
    )


class TapeEvent(_Frozen):
    """One line of the event tape."""

    unix_seconds: Unix
    event: Line
    peer_id: Id = ""
    fragment: int | None = None
    version: int | None = None
    detail: Line = ""


class NetworkView(_Frozen):
    """Everything that pages and terminals show of a run."""

    run_id: Hex = ""
    name: Line = Field("", description="what people call the run")
    demo: bool = Field(False, description="simulated; no such network exists")
    note: Sentence = Field("", description="what the observer is doing, or why it sees nothing")
    taken_unix_seconds: Unix = 0.0
    network_seen_unix_seconds: Unix | None = Field(None, description="when anything was last heard; None: never yet")
    run: RunFacts = RunFacts()
    peers: tuple[PeerView, ...] = Field((), max_length=PEERS_KNOWN_MAX)
    fragments: tuple[FragmentView, ...] = Field((), max_length=FRAGMENTS_MAX)
    evaluations: tuple[Evaluation, ...] = Field((), max_length=EVALUATIONS_MAX, description="oldest first")
    evaluator: Id = Field("", description="the peer that says so; empty if the observer evaluated itself")
    sample: Sample = Field("", description="what the newest certified model writes, as the evaluator says")
    exports: Line = Field("", description="where the evaluator exports the model to")
    history: tuple[HistoryPoint, ...] = Field((), max_length=HISTORY_MAX, description="oldest first")
    certificates: tuple[CertificateView, ...] = Field((), max_length=CERTIFICATES_MAX, description="newest last")
    rounds: tuple[RoundView, ...] = Field((), max_length=ROUNDS_MAX, description="newest last")
    bans: tuple[BanView, ...] = Field((), max_length=BANS_MAX)
    audits: tuple[AuditView, ...] = Field((), max_length=AUDITS_MAX)
    credit: tuple[CreditView, ...] = Field((), max_length=PEERS_KNOWN_MAX, description="most tokens first")
    events: dict[Line, int] = Field(default_factory=dict, max_length=EVENTS_MAX, description="how often each happened")
    tape: tuple[TapeEvent, ...] = Field((), max_length=TAPE_MAX, description="newest last")

    @property
    def versions(self) -> int:
        """Number of certified versions, over all fragments."""
        return sum(one.version for one in self.fragments)

    @property
    def finished(self) -> bool:
        """Whether the run has reached its number of versions; its peers may have gone since."""
        return bool(self.fragments) and self.versions >= self.run.versions_target

"""The status that a peer tells to everybody who asks: its note, its rounds, a host's evaluations.

It is bounded in size and rate. Nothing that decides believes it; an observer shows it as this peer's claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import SAMPLE_CHARACTERS_MAX, AuditView, BanView, Line, Rate, RoundView, Sample
from coordinator.views.snapshot import PeerSnapshot
from dht.allowance import CallerLimits
from dht.errors import PeerError
from dht.identity import PeerId
from peer.net.frames import STATUS_BYTES_MAX, StatusAnswer
from peer.rounds.audit_views import AUDITS_TOLD_MAX

ROUNDS_TOLD_MAX = 64
EVALUATIONS_TOLD_MAX = 256
BANS_TOLD_MAX = 32
NOTE_CHARACTERS_MAX = 240
ASK_SECONDS_MIN = 1.0  # between two answers to the same peer
ANSWERS_PER_SECOND_MAX = 8
ASKERS_KEPT = 256

Item = TypeVar("Item")


class PublicStatus(BaseModel):
    """The public part of a peer's snapshot. Bounds are checked, truth is not."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: Literal["host", "learner"]
    note: Line = ""
    wall_seconds: Rate = Field(0.0, description="since this peer started")
    evaluations: tuple[Evaluation, ...] = Field((), max_length=EVALUATIONS_TOLD_MAX)
    rounds: tuple[RoundView, ...] = Field((), max_length=ROUNDS_TOLD_MAX, description="newest last")
    bans: tuple[BanView, ...] = Field((), max_length=BANS_TOLD_MAX, description="newest last; evidence on request")
    audits: tuple[AuditView, ...] = Field((), max_length=AUDITS_TOLD_MAX, description="its own; newest last")
    sample: Sample = Field("", description="what the model writes, by a host")
    exports: Line = Field("", description="where a host exports to")


def public_status(
    snapshot: PeerSnapshot,
    rounds: Sequence[RoundView],
    audits: Iterable[AuditView] = (),
) -> PublicStatus:
    """Return the public part of a snapshot."""
    return PublicStatus(
        role=snapshot.role,
        note=snapshot.note[:NOTE_CHARACTERS_MAX],
        wall_seconds=snapshot.wall_seconds,
        # JSON has no infinity; a diverged model shows by its missing losses
        evaluations=thinned([one for one in snapshot.evaluations if math.isfinite(one.loss)], EVALUATIONS_TOLD_MAX),
        rounds=tuple(rounds[-ROUNDS_TOLD_MAX:]),
        bans=snapshot.bans[-BANS_TOLD_MAX:],
        audits=tuple(audits),
        sample=snapshot.sample[:SAMPLE_CHARACTERS_MAX],
        exports=snapshot.exports[:NOTE_CHARACTERS_MAX],
    )


def thinned(items: Sequence[Item], count_max: int) -> tuple[Item, ...]:
    """Return at most `count_max` of the items (two or more), evenly spread, with the first and the last among them."""
    if len(items) <= count_max:
        return tuple(items)
    return tuple(items[index * (len(items) - 1) // (count_max - 1)] for index in range(count_max))


def encode_status(status: PublicStatus) -> StatusAnswer:
    """Encode this status as an answer, with as many of the newest rounds as fit."""
    while True:
        text = status.model_dump_json(exclude_defaults=True).encode()
        if len(text) <= STATUS_BYTES_MAX:
            return StatusAnswer(status=text)
        if status.rounds:
            status = status.model_copy(update={"rounds": status.rounds[len(status.rounds) // 2 + 1 :]})
        else:
            status = status.model_copy(update={"evaluations": status.evaluations[-1:]})


def decode_status(answer: StatusAnswer) -> PublicStatus:
    """Decode the answer of `encode_status`; raises PeerError on anything else."""
    try:
        return PublicStatus.model_validate_json(answer.status)
    except ValidationError as error:
        raise PeerError(f"a status that cannot be read: {error.errors()[0]['msg']}") from None


class StatusResponder:
    """Answers StatusAsk with a limit per peer and one for all peers, from at most one encoding a second."""

    def __init__(self, status: Callable[[], PublicStatus]) -> None:
        self._status = status
        self._limits = CallerLimits(1 / ASK_SECONDS_MIN, 1, ANSWERS_PER_SECOND_MAX, ASKERS_KEPT)
        self._encoded_at = -math.inf
        self._encoded: StatusAnswer | None = None

    def answer(self, asker: PeerId, now: float) -> StatusAnswer | None:
        """Return the answer, or None if this peer, or all peers together, asked too often."""
        if not self._limits.take(asker, now):
            return None
        if self._encoded is None or now >= self._encoded_at + 1.0:
            self._encoded_at, self._encoded = now, encode_status(self._status())
        return self._encoded

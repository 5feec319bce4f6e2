"""The report of a chaos run: the swarm's own report, and the cost of the faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coordinator.views.report import ChaosReport, FaultRecord, SwarmReport
from dht.errors import UsageError
from peer.chaos import score
from peer.chaos.record import ChaosWatch
from peer.chaos.score import Window
from peer.observer.seen_certificates import Seen

DIED = "died"  # in a timeline: a process ended without a plan


@dataclass(frozen=True, slots=True)
class UndisturbedPace:
    """The pace of a learner without faults; `step_seconds` is 0 if it is unlimited."""

    tokens_per_step: int
    step_seconds: float

    def tokens_in(self, seconds: float) -> float:
        """Return the tokens of one learner in this time; 0 if unknown."""
        return seconds / self.step_seconds * self.tokens_per_step if self.step_seconds else 0.0


class FaultFreeReport(BaseModel):
    """The part of a chaos report without faults that serves as baseline."""

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    faults: dict[str, int] = Field(max_length=0)
    peers_planned: int
    step_seconds: float
    measured_seconds: float
    measured_tokens_certified: int


def chaos_report(swarm: SwarmReport, watch: ChaosWatch, window: Window, pace: UndisturbedPace) -> ChaosReport:
    """Return everything but goodput, which needs a run without faults (`against`)."""
    lineage = watch.certificates.lineage(watch.heads())
    fragments = max(1, len(watch.heads()))
    inside = [one for one in lineage if one.seconds in window]
    peer_seconds = score.alive_seconds(watch.outcomes, watch.learners, window)
    tokens = _tokens(inside) // fragments
    ideal = pace.tokens_in(peer_seconds)
    honest = {name: lives for name, lives in watch.lives_of.items() if name not in watch.hostile}  # a ban lasts
    recovered, lost = score.recoveries(watch.outcomes, honest, window)
    own = {
        **swarm.model_dump(exclude={"bans"}),
        "bans": swarm.bans,
        "tokens_certified": _tokens(lineage) // fragments,
        "minor_certificates": sum(one.certificate.minor for one in lineage),
        "inner_steps": swarm.tokens // pace.tokens_per_step,
        "events": _events(swarm, watch),
        "versions_per_minute": 60 * len(inside) / window.seconds,
    }
    return ChaosReport(
        **own,
        uptime=score.uptime(watch.lives_of, len(watch.learners), window, pace.step_seconds),
        goodput_ideal=tokens / ideal if ideal else None,
        longest_gap_seconds=score.longest_gap_seconds([one.seconds for one in inside], window),
        recovery_seconds=score.spread(recovered),
        not_recovered=lost,
        faults=score.counts(watch.outcomes),
        timeline=_timeline(watch, window),
        peers_planned=len(watch.learners),
        step_seconds=pace.step_seconds,
        measured_seconds=window.seconds,
        measured_peer_seconds=peer_seconds,
        measured_tokens_certified=tokens,
    )


def against(report: ChaosReport, baseline: FaultFreeReport) -> ChaosReport:
    """Return the report with its goodput: certified tokens per second, divided by those of a run without faults."""
    usual = baseline.measured_tokens_certified / baseline.measured_seconds
    own = report.measured_tokens_certified / report.measured_seconds
    return report.model_copy(update={"goodput": own / usual if usual else None})


def load_baseline(path: Path, peers: int, step_seconds: float) -> FaultFreeReport:
    """Read the report of a run without faults with as many peers and the same pace; raises UsageError."""
    try:
        report = FaultFreeReport.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"there is no report at {path}") from None
    except (OSError, ValidationError):
        raise UsageError(f"{path} is no report of `muster chaos` without faults; make one with a calm plan") from None
    if (report.peers_planned, report.step_seconds) != (peers, step_seconds):
        raise UsageError(
            f"{path} is of {report.peers_planned} peers at {report.step_seconds:g} s a step, "
            f"not of {peers} at {step_seconds:g}"
        )
    return report


def _tokens(certificates: Sequence[Seen]) -> int:
    """Return the sum over fragments: every token trains all of them, so each fragment counts it once."""
    return sum(one.certificate.tokens for one in certificates)


def _events(swarm: SwarmReport, watch: ChaosWatch) -> dict[str, int]:
    """Return the swarm's events, with unplanned deaths in place of all deaths."""
    events = {name: count for name, count in swarm.events.items() if not name.startswith(f"{DIED} ")}
    for one in watch.unplanned_exits:
        events[f"{DIED} {one.name}"] = events.get(f"{DIED} {one.name}", 0) + 1
    return events


def _timeline(watch: ChaosWatch, window: Window) -> tuple[FaultRecord, ...]:
    records = [
        FaultRecord(
            seconds=round(one.seconds - window.start, 2),
            fault=one.event.name,
            peer=one.event.target,
            detail=one.refusal or one.event.detail(),
            fired=one.refusal is None,
        )
        for one in watch.outcomes
    ]
    records += [
        FaultRecord(seconds=round(one.seconds - window.start, 2), fault=DIED, peer=one.name, detail=one.words)
        for one in watch.unplanned_exits
    ]
    return tuple(sorted(records, key=lambda record: record.seconds))

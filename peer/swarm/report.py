"""The figures of design §11, exactly as defined there, computed from the watch of a swarm."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.views.report import ReportedBan, SwarmReport
from coordinator.views.snapshot import CertifiedWork, PeerSnapshot
from dht.errors import LocalError, UsageError
from peer.swarm.watch import SwarmWatch, same_heads

_UNKNOWN = math.nan  # JSON has no such number: it is written as null


def report_of(watch: SwarmWatch, cores: int, wall_seconds: float) -> SwarmReport:
    """Sum up a swarm that has ended; peers that died count up to their last snapshot."""
    lives = watch.lives()
    learners = [one for one in lives if one.role == "learner"]
    certified = watch.most_advanced.certified if watch.most_advanced is not None else CertifiedWork()
    honest = [name for name in watch.honest if name in watch.final]
    evaluations = [loss for one in lives if one.role == "host" for loss in one.evaluations]
    return SwarmReport(
        run_id=watch.most_advanced.run_id if watch.most_advanced is not None else "",
        peers=sum(name in watch.final for name in watch.living_learners),
        versions_certified=watch.versions,
        rounds_void=max((snapshot.events.get("round_void", 0) for snapshot in lives), default=0),
        eval_loss_first=evaluations[0].loss if evaluations else _UNKNOWN,
        eval_loss_last=evaluations[-1].loss if evaluations else _UNKNOWN,
        tokens=sum(snapshot.tokens for snapshot in learners),
        wall_seconds=wall_seconds,
        inner_steps=sum(snapshot.steps for snapshot in learners),
        utilisation=utilisation(watch, cores),
        bytes_sent_per_peer=_per_peer(learners, "bytes_sent"),
        bytes_received_per_peer=_per_peer(learners, "bytes_received"),
        agreement=disagreement(watch) is None,
        state_digests={watch.final[name].peer_id: state_digests(watch.final[name]) for name in honest},
        bans=_bans([watch.latest[name] for name in watch.honest if name in watch.latest]),
        hostile=_hostile(watch, lives),
        events=_events(watch),
        group_size_mean=_ratio(certified.members, certified.versions),
        tokens_certified=certified.tokens,
        minor_certificates=certified.minor,
        steps_per_version=_ratio(certified.steps, certified.versions),
        adoption_delay_steps=delays(steps for snapshot in learners for steps in snapshot.adoption_delays_steps),
        versions_per_minute=watch.versions_per_minute,
    )


def disagreement(watch: SwarmWatch) -> str | None:
    """Say why the living honest processes do not all hold the same certified state; None if they do.

    They do if their tensors hash to the certified digests of the same versions, and no version of a fragment was
    certified twice upon one parent. Versions that a smaller side of a partition certified and gave up do not count.
    """
    finals = {name: watch.final.get(name) for name in watch.living_honest}
    told = [snapshot for snapshot in finals.values() if snapshot is not None]
    silent = [name for name, snapshot in finals.items() if snapshot is None]
    if not watch.living_learners:
        return "no peer is left"
    if silent:
        return f"{', '.join(silent)} did not say at the end what they hold"
    if watch.certificates.conflicts:
        fragment, version = min(watch.certificates.conflicts)
        return f"version {version} of fragment {fragment} was certified twice"
    if not same_heads(told):
        return "the peers ended with different versions"
    if any(one.digests_from_tensors != tuple(part.state for part in one.fragments) for one in told):
        return "a peer's tensors are not what was certified"
    return None


def utilisation(watch: SwarmWatch, cores: int) -> float:
    """Return the learners' CPU seconds over cores × wall seconds between the first and the last step of any of them."""
    learners = [snapshot for snapshot in watch.lives() if snapshot.role == "learner"]
    seen = (watch.last_step_at or 0.0) - (watch.first_step_at or 0.0)
    # polls come late by up to their interval, so a single peer's own measurement can be longer
    wall = max([seen, *(snapshot.training_seconds for snapshot in learners)])
    return _ratio(sum(snapshot.learner_cpu_seconds for snapshot in learners), cores * wall)


def state_digests(snapshot: PeerSnapshot) -> dict[str, tuple[int, str]]:
    """Return each fragment's held version and the digest hashed from its tensors."""
    pairs = zip(snapshot.fragments, snapshot.digests_from_tensors, strict=False)
    return {str(index): (part.held_version, digest) for index, (part, digest) in enumerate(pairs)}


def delays(steps: Iterable[int]) -> dict[str, float]:
    """Return median and 95th percentile by the nearest rank; empty without steps."""
    ranked = sorted(steps)
    if not ranked:
        return {}
    return {"median": float(_rank(ranked, 0.5)), "p95": float(_rank(ranked, 0.95))}


def check_writable(path: Path) -> None:
    """Raise UsageError if the report could not be written to `path` after all the work."""
    try:
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise UsageError(f"no report can be written to {path}; name a file in a folder that exists")
        temporary = _temporary(path)
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise UsageError(f"no report can be written to {path}: {error.strerror}; name a file elsewhere") from None


def write_report(report: SwarmReport, path: Path) -> None:
    """Write the report as JSON, whole or not at all; raises LocalError."""
    temporary = _temporary(path)
    try:
        temporary.write_text(report.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise LocalError(f"the report cannot be written to {path}: {error.strerror}") from None


def _temporary(path: Path) -> Path:
    """Return the path that a report is first written to."""
    return path.with_name(path.name + ".new")


def _events(watch: SwarmWatch) -> dict[str, int]:
    """Return the summed events of all processes, and the deaths."""
    total = Counter[str]()
    for snapshot in watch.lives():
        total.update(snapshot.events)
    total.update({f"died {name}": 1 for name in watch.died})
    return dict(total)


def _bans(lives: Sequence[PeerSnapshot]) -> tuple[ReportedBan, ...]:
    """Return every banned key once, with the number of processes that report it."""
    found = {one.peer_id: one for snapshot in lives for one in snapshot.bans}
    by = Counter(one.peer_id for snapshot in lives for one in snapshot.bans)
    return tuple(ReportedBan(peer=one.peer_id, reason=one.reason, by=by[one.peer_id]) for one in found.values())


def _hostile(watch: SwarmWatch, lives: Sequence[PeerSnapshot]) -> tuple[str, ...]:
    """Return the keys of hostile peers by `watch.keys` too: some are banned and end before they give a snapshot."""
    keys = {**watch.keys, **{one.name: one.peer_id for one in lives}}
    return tuple(keys[name] for name in sorted(watch.hostile) if name in keys)


def _rank(ranked: Sequence[int], share: float) -> int:
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _per_peer(lives: Sequence[PeerSnapshot], name: str) -> int:
    peers = len({snapshot.peer_id for snapshot in lives})
    return round(_ratio(sum(getattr(snapshot, name) for snapshot in lives), peers))

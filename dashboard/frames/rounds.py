"""Rows about the last rounds, phase by phase, and about certificates and events."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from coordinator.views.network_view import PHASES, NetworkView, RoundView
from dashboard.frames.network import round_label
from dashboard.frames.rows import Row, milliseconds, moment
from dashboard.text import labels, plain, short_id

ROUNDS_DRAWN = 24


def start_of(one: RoundView) -> float:
    """Return when a round began, in Unix seconds; 0 if that is not known."""
    return one.phases[0].start_unix_seconds if one.phases else 0.0


def end_of(one: RoundView, now: float) -> float:
    """Return when a round ended, in Unix seconds; `now` if it is running."""
    end = one.phases[-1].end_unix_seconds if one.phases else 0.0
    return now if end is None else end


def gantt_rows(view: NetworkView, rounds_max: int = ROUNDS_DRAWN) -> list[Row]:
    """Return a bar for each phase of the newest rounds; times are in milliseconds since 1970."""
    names, now = labels(view), view.taken_unix_seconds
    newest = sorted((one for one in view.rounds if one.phases), key=start_of)[-rounds_max:]
    return [
        {
            "round": f"f{one.fragment} v{one.version}" + (f" #{one.attempt + 1}" if one.attempt else ""),
            "order": len(newest) - index,
            "phase": phase.name,
            "start": milliseconds(phase.start_unix_seconds),
            "end": milliseconds(phase.end_unix_seconds if phase.end_unix_seconds is not None else now),
            "seconds": _seconds(phase.start_unix_seconds, phase.end_unix_seconds, now),
            "outcome": one.outcome,
            "mark": "✕ void" if one.outcome == "void" and phase is one.phases[-1] else "",
            "why": plain(one.reason),
            "leader": names.get(one.leader, short_id(one.leader)),
            "members": len(one.members),
            "late": len(one.late),
        }
        for index, one in enumerate(newest)
        for phase in one.phases
    ]


def latency_rows(view: NetworkView) -> list[Row]:
    """Return the median and 95th percentile of every phase over the certified rounds, in seconds."""
    found: dict[str, list[float]] = defaultdict(list)
    for one in view.rounds:
        for phase in one.phases:
            if one.outcome == "certified" and phase.end_unix_seconds is not None:
                found[phase.name].append(max(0.0, phase.end_unix_seconds - phase.start_unix_seconds))
    return [
        {
            "phase": name,
            "order": PHASES.index(name),
            "median": median(found[name]),
            "p95": percentile(found[name], 0.95),
            "rounds": len(found[name]),
        }
        for name in PHASES
        if found[name]
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def round_table(view: NetworkView, peer_id: str = "") -> list[Row]:
    """Return a row per round, or per round with this member, newest first."""
    names = labels(view)
    return [
        {
            "began": moment(start_of(one)),
            "round": round_label(one),
            "outcome": one.outcome,
            "void": one.outcome == "void",
            "why": plain(one.reason),
            "seconds": end_of(one, view.taken_unix_seconds) - start_of(one) if one.phases else None,
            "leader": names.get(one.leader, short_id(one.leader)),
            "members": len(one.members),
            "late": ", ".join(names.get(peer, short_id(peer)) for peer in one.late),
        }
        for one in sorted(view.rounds, key=start_of, reverse=True)
        if not peer_id or peer_id in one.members
    ]


def certificate_table(view: NetworkView) -> list[Row]:
    """Return a row per certificate, newest first."""
    names = labels(view)
    return [
        {
            "seen": moment(one.unix_seconds),
            "fragment": one.fragment,
            "version": one.version,
            "digest": one.digest[:16],
            "kind": "minor" if one.minor else "full",
            "included": sum(member.included for member in one.contributors),
            "roster": len(one.roster),
            "votes": len(one.voters),
            "tokens": one.tokens,
            "leader": names.get(one.leader, short_id(one.leader)),
            "signatures": "checked" if one.verified else "not checked",
        }
        for one in reversed(view.certificates)
    ]


def event_rows(view: NetworkView) -> list[Row]:
    """Return the count of each event, most frequent first."""
    return [
        {"event": plain(name).replace("_", " "), "count": count}
        for name, count in sorted(view.events.items(), key=lambda one: -one[1])
    ]


def tape_lines(view: NetworkView) -> str:
    """Return the event tape, one JSON object per line."""
    return "".join(json.dumps(event.model_dump(exclude_defaults=True), sort_keys=True) + "\n" for event in view.tape)


def _seconds(start: float, end: float | None, now: float) -> float:
    return max(0.0, (now if end is None else end) - start)

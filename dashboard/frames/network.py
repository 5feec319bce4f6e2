"""Rows about peers: their states, and the groups that they are in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from coordinator.views import quantity
from coordinator.views.network_view import NetworkView, PeerView, RoundView
from dashboard.frames.rows import Row, milliseconds
from dashboard.text import called, label, labels, marked, plain, short_id

RING_MAX = 40  # more peers than this fill a disc
GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
LIT_SECONDS = 4.0  # a group stays lit for this long after its round
GROUPS_LIT_MAX = 8

GONE, BANNED, IN_ROUND, LEAVING, UNKNOWN = "gone", "banned", "in a round", "leaving", "unknown"
FINISHED = "finished"  # with the run; then it may go
KINDS = ("training", IN_ROUND, "catching up", "paused", "hosting", FINISHED, LEAVING, GONE, BANNED, UNKNOWN)
AT_WORK = frozenset({"training", IN_ROUND})  # states that need no note
KIND_OF_STATE = {
    "training": "training",
    "starting": "catching up",
    "catching up": "catching up",
    "paused": "paused",
    "draining": LEAVING,
    FINISHED: FINISHED,
    "hosting": "hosting",
    "joining round": IN_ROUND,
    "reducing": IN_ROUND,
    "voting": IN_ROUND,
}


def state_words(peer: PeerView, busy: frozenset[str] = frozenset()) -> str:
    """Return a peer's state in words, with its note if it helps; `busy` are the members of running rounds."""
    if not peer.live and peer.trust != BANNED and peer.state != FINISHED:
        return GONE
    state = BANNED if peer.trust == BANNED else plain(peer.state, 40) or UNKNOWN
    if state == "training" and peer.peer_id in busy:
        state = IN_ROUND
    if state == "draining":
        state = LEAVING
    note = "" if kind(peer, busy) in AT_WORK else plain(peer.note, 80)
    return f"{state}: {note}" if note else state


def absent_words(view: NetworkView, peer_id: str) -> str:
    """Say why nothing is shown of a peer that is not in the view."""
    ban = next((one for one in view.bans if one.peer_id == peer_id), None)
    if ban is None:
        return "Nobody of this id is in the network, or was lately."
    return f"{short_id(peer_id)}: {BANNED}: {plain(ban.reason, 80)}"


def kind(peer: PeerView, busy: frozenset[str] = frozenset()) -> str:
    """Return a peer's state as one of `KINDS`; `busy` are the members of running rounds."""
    if peer.trust == BANNED:
        return BANNED
    if not peer.live and peer.state != FINISHED:
        return GONE
    if peer.peer_id in busy:
        return IN_ROUND
    return KIND_OF_STATE.get(peer.state, UNKNOWN)


def lit_rounds(view: NetworkView) -> list[RoundView]:
    """Return the rounds with members that are running or just over, newest first."""
    recent = [one for one in view.rounds if one.members and _ended(one, view) >= view.taken_unix_seconds - LIT_SECONDS]
    return recent[: -GROUPS_LIT_MAX - 1 : -1]


def _ended(one: RoundView, view: NetworkView) -> float:
    last = one.phases[-1].end_unix_seconds if one.phases else 0.0
    return view.taken_unix_seconds if last is None or one.outcome == "running" else last


def busy_peers(view: NetworkView) -> frozenset[str]:
    """Return the members of running rounds."""
    return frozenset(member for one in lit_rounds(view) if one.outcome == "running" for member in one.members)


def positions(peer_ids: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Place peers in the unit disc: few in a ring, many over all of it. The same ids get the same places."""
    ordered, count = sorted(peer_ids), len(peer_ids)
    if count == 1:
        return {ordered[0]: (0.0, 0.0)}
    places = {}
    for index, peer_id in enumerate(ordered):
        ring = count <= RING_MAX
        radius = 1.0 if ring else math.sqrt((index + 0.5) / count)
        angle = 2 * math.pi * index / count if ring else GOLDEN_ANGLE * index
        places[peer_id] = (radius * math.cos(angle), radius * math.sin(angle))
    return places


def graph_rows(view: NetworkView) -> list[Row]:
    """Return edges from leaders to members of lit groups, then a node for every peer."""
    places, busy, names = positions([peer.peer_id for peer in view.peers]), busy_peers(view), labels(view)
    rows: list[Row] = []
    for one in lit_rounds(view):
        start = places.get(one.leader)
        for member in one.members:
            end = places.get(member)
            if start is not None and end is not None and member != one.leader:
                rows.append(
                    {
                        "part": "edge",
                        "x": start[0],
                        "y": start[1],
                        "x2": end[0],
                        "y2": end[1],
                        "kind": one.outcome,
                        "round": round_label(one),
                        "leader": names.get(one.leader, short_id(one.leader)),
                    }
                )
    for peer in view.peers:
        x, y = places[peer.peer_id]
        rows.append(
            {
                "part": "node",
                "x": x,
                "y": y,
                "kind": kind(peer, busy),
                "peer": label(peer),
                "state": state_words(peer, busy),
                "device": plain(peer.device, 60),
                "name": called(peer, 16) if len(view.peers) <= RING_MAX else "",
            }
        )
    return rows


def round_label(one: RoundView) -> str:
    """Name a round in a few words."""
    attempt = f", attempt {one.attempt + 1}" if one.attempt else ""
    return f"fragment {one.fragment}, version {one.version}{attempt}"


def peer_table(view: NetworkView, text: str = "", kinds: Sequence[str] = (), own: str = "") -> list[Row]:
    """Return a row for each matching peer, most certified tokens first; `own` is the reader's peer id."""
    busy, wanted = busy_peers(view), text.strip().lower()
    total = sum(one.tokens for one in view.credit)
    found = []
    for peer in view.peers:
        haystack = f"{plain(peer.name)} {peer.peer_id} {plain(peer.device)} {plain(peer.software)}".lower()
        if wanted in haystack and (not kinds or kind(peer, busy) in kinds):
            found.append(peer)
    found.sort(key=lambda one: (-one.credited_tokens, one.name.lower(), one.peer_id))
    return [_table_row(peer, busy, total) | {"peer": marked(label(peer), peer.peer_id, own)} for peer in found]


def _table_row(peer: PeerView, busy: frozenset[str], total: int) -> Row:
    reach = {True: "direct", False: "through a relay", None: "unknown"}
    trains = peer.role != "host"  # a host has no speed and no share
    return {
        "state": state_words(peer, busy),
        "device": plain(peer.device, 60),
        "steps_per_second": peer.steps_per_second if trains and peer.live else None,
        "behind": peer.versions_behind,
        "loss": peer.loss,
        "steps": peer.steps if trains else None,
        "credit": peer.credited_tokens if trains else None,
        "share": _share(peer, total) if trains else None,
        "reachable": reach[peer.dialable],
        "software": plain(peer.software, 32),
        "sent": None if peer.bytes_sent is None else peer.bytes_sent / 1e6,
        "received": None if peer.bytes_received is None else peer.bytes_received / 1e6,
        "last_seen": peer.last_seen_seconds,
        "trust": peer.trust,
        "peer_id": peer.peer_id,
    }


def _share(peer: PeerView, total: int) -> float:
    """Return a peer's share of all certified tokens, in percent."""
    return 100 * peer.credited_tokens / total if total else 0.0


def kind_counts(view: NetworkView) -> dict[str, int]:
    """Count peers by state, in the order of `KINDS`; zeros stay, so that figures keep their places."""
    busy = busy_peers(view)
    counts = Counter(kind(peer, busy) for peer in view.peers)
    return {one: counts[one] for one in KINDS if counts[one] or one != UNKNOWN}


def find_peer(view: NetworkView, peer_id: str) -> PeerView | None:
    """Return the peer with this id; None if it is not known."""
    return next((peer for peer in view.peers if peer.peer_id == peer_id), None)


def figures(peer: PeerView) -> dict[str, str]:
    """Return the figures of one peer; a host has none about training."""
    trained = {
        "Certified tokens": quantity.count(peer.credited_tokens),
        "Steps": quantity.count(peer.steps),
        "Steps per second": f"{peer.steps_per_second:.2f}",
    }
    return {
        **(trained if peer.role != "host" else {}),
        "Versions behind": str(peer.versions_behind),
        "Sent": "–" if peer.bytes_sent is None else quantity.size(peer.bytes_sent),
        "Received": "–" if peer.bytes_received is None else quantity.size(peer.bytes_received),
    }


def history_rows(peer: PeerView) -> list[Row]:
    """Return a row per point of a peer's history."""
    return [
        {
            "time": milliseconds(point.unix_seconds),
            "steps_per_second": point.steps_per_second,
            "loss": point.loss,
            "versions": point.versions,
            "seen": "live" if point.live else GONE,
        }
        for point in peer.history
    ]


def fact_rows(peer: PeerView) -> list[Row]:
    """Return the known facts about one peer."""
    reach = {True: "others can open connections to it", False: "only through a relay", None: "unknown"}
    facts = {
        "peer id": plain(peer.peer_id),
        "state": state_words(peer),
        "trust": peer.trust,
        "role": peer.role,
        "device": plain(peer.device) or "not told",
        "software": plain(peer.software) or "not told",
        "reachability": reach[peer.dialable],
        "addresses": ", ".join(plain(address) for address in peer.addresses) or "none told",
        "versions held": ", ".join(map(str, peer.versions)) or "none told",
        "versions behind": str(peer.versions_behind),
        "last seen": f"{peer.last_seen_seconds:.0f} s before this view",
    }
    return [{"fact": fact, "value": value} for fact, value in facts.items()]

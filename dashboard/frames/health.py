"""The present problems of a run, in words that need no explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coordinator.views import quantity
from coordinator.views.network_view import NetworkView, PeerView
from dashboard.frames.run import alert
from dashboard.text import label, labels, plain

ROUNDS_MIN = 8  # so many must have ended before the share of void ones means anything
VOID_SHARE = 0.5
BEHIND_CYCLES = 4  # versions of every fragment that a machine may lack
NAMED_MAX = 5


def problems(view: NetworkView) -> list[str]:
    """Return a sentence for each problem, the worst first; none if all is well."""
    if view.finished:
        return []
    found = [*_of_the_run(view), *_of_rounds(view), *_of_machines(view), *_of_keys(view)]
    return [one[0].upper() + one[1:] for one in found]


def _of_the_run(view: NetworkView) -> Iterator[str]:
    if told := alert(view):
        yield f"{told}."
    if view.peers and not any(peer.live and peer.role == "host" for peer in view.peers):
        yield "the host is not there. The run goes on, but nobody tests the model, and newcomers may find nobody."
    if view.note and not view.demo:
        yield f"{plain(view.note, 240)}."


def _of_rounds(view: NetworkView) -> Iterator[str]:
    ended = [one for one in view.rounds if one.outcome != "running"]
    void = [one for one in ended if one.outcome == "void"]
    if len(ended) < ROUNDS_MIN or len(void) < VOID_SHARE * len(ended):
        return
    reasons = Counter(plain(one.reason) for one in void if one.reason)
    why = f", most often because: {reasons.most_common(1)[0][0]}" if reasons else ""
    yield f"{len(void)} of the last {len(ended)} rounds came to nothing{why}."


def _of_machines(view: NetworkView) -> Iterator[str]:
    learners = [peer for peer in view.peers if peer.live and peer.role == "learner" and peer.trust != "banned"]
    behind = [peer for peer in learners if peer.versions_behind > BEHIND_CYCLES * view.run.fragments]
    if behind:
        yield f"far behind the newest version: {_names(behind)}."


def _of_keys(view: NetworkView) -> Iterator[str]:
    names = labels(view)
    for ban in view.bans[-NAMED_MAX:]:
        yield f"{names.get(ban.peer_id, 'a machine that is gone')} was banned: {plain(ban.reason) or 'no reason told'}."


def _names(peers: list[PeerView]) -> str:
    named = ", ".join(label(peer) for peer in peers[:NAMED_MAX])
    return named if len(peers) <= NAMED_MAX else f"{named} and {quantity.count(len(peers) - NAMED_MAX)} others"

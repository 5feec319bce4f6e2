"""Rows about contributors' credit, which the observer recomputes from certificates."""

from __future__ import annotations

from datetime import date

from coordinator.views.credit import team_tokens
from coordinator.views.network_view import NetworkView
from dashboard.frames.rows import Row, milliseconds, moment
from dashboard.text import labels, marked, plain

HISTORY_PEERS = 8
ROWS_MAX = 1000
NO_TEAM = "no team"
EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


def leaderboard(view: NetworkView, own: str = "") -> list[Row]:
    """Return a row per contributor, most certified tokens first; `own` is the reader's peer id."""
    names, total = labels(view), sum(one.tokens for one in view.credit)
    return [
        {
            "place": place,
            "peer": marked(names[one.peer_id], one.peer_id, own),
            "team": plain(one.team, 40),
            "tokens": one.tokens,
            "share": 100 * one.tokens / total if total else 0.0,
            "versions": one.versions,
            "last": moment(one.last_unix_seconds),
        }
        for place, one in enumerate(sorted(view.credit, key=lambda one: -one.tokens)[:ROWS_MAX], start=1)
    ]


def team_rows(view: NetworkView) -> list[Row]:
    """Return certified tokens by team; empty if no peer names a team."""
    named = [one.model_copy(update={"team": plain(one.team, 40)}) for one in view.credit]
    return [{"team": team or NO_TEAM, "tokens": tokens} for team, tokens in team_tokens(named)]


def day_rows(view: NetworkView) -> list[Row]:
    """Return the top contributors' certified tokens by UTC day."""
    names = labels(view)
    leaders = sorted(view.credit, key=lambda one: -one.tokens)[:HISTORY_PEERS]
    return [
        {
            "day": f"{date.fromordinal(EPOCH_ORDINAL + day):%d %b}",
            "order": day,
            "peer": names[one.peer_id],
            "tokens": tokens,
        }
        for one in leaders
        for day, tokens in one.days
    ]


def history_rows(view: NetworkView) -> list[Row]:
    """Return the top contributors' certified tokens over time, as far back as the certificates in the view go.

    They are counted back from the present credit, each token once, so that the last points equal the leaderboard.
    """
    names = labels(view)
    leaders = sorted(view.credit, key=lambda one: -one.tokens)[:HISTORY_PEERS]
    credit = {one.peer_id: float(one.tokens) for one in leaders}
    rows: list[Row] = []

    def note(unix_seconds: float) -> None:
        time = milliseconds(unix_seconds)
        rows.extend({"time": time, "peer": names[peer], "tokens": max(0.0, held)} for peer, held in credit.items())

    if leaders and view.certificates:
        note(view.taken_unix_seconds)
    for certificate in reversed(view.certificates):
        note(certificate.unix_seconds)  # with its tokens, then without them: a step, so that no slope leads up to now
        for one in certificate.contributors:
            if one.included and one.peer_id in credit:
                credit[one.peer_id] -= one.tokens / view.run.fragments
        note(certificate.unix_seconds)
    return rows[::-1]

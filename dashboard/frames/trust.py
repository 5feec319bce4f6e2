"""Rows about bans and their evidence, probation, audits and complaints."""

from __future__ import annotations

from functools import lru_cache

from coordinator.trust.statement_slots import slot_of
from coordinator.views.network_view import BanView, NetworkView
from dashboard.frames.rows import Row, moment
from dashboard.text import labels, plain, short_id
from dht.errors import PeerError
from dht.identity import KeyVerifier
from dht.statement import Statement


@lru_cache(maxsize=1024)
def check_evidence(ban: BanView, run_id: str) -> str:
    """Verify the signatures in the evidence of a ban here, and say what they show."""
    if not ban.evidence:
        return "none shown; checked by the observer" if ban.verified else "none shown"
    try:
        statements = [Statement.from_wire(bytes.fromhex(one)) for one in ban.evidence]
    except (PeerError, ValueError):
        return "cannot be read"
    if any(one.sender != ban.peer_id for one in statements):
        return "is about somebody else"
    if any(one.context.run_id.hex() != run_id for one in statements):
        return "is about another run"
    if not all(one.verify(KeyVerifier()) for one in statements):
        return "is not signed by this key"
    places = {slot_of(one) for one in statements}
    if len(statements) > 1 and len(places) == 1 and None not in places and len({one.digest for one in statements}) > 1:
        return f"verified here: this key signed two different statements «{statements[0].context.kind}» in one group"
    return "signed by this key" + ("; checked by the observer" if ban.verified else "")


def ban_rows(view: NetworkView) -> list[Row]:
    """Return a row per ban, newest first."""
    names = labels(view)
    return [
        {
            "at": moment(ban.unix_seconds),
            "peer": names.get(ban.peer_id, short_id(ban.peer_id)),
            "reason": plain(ban.reason),
            "evidence": check_evidence(ban, view.run_id),
            "peer_id": plain(ban.peer_id),
        }
        for ban in sorted(view.bans, key=lambda ban: -ban.unix_seconds)
    ]


def evidence_lines(view: NetworkView) -> str:
    """Return all evidence as lines of a key and statements in hex, to be checked elsewhere."""
    return "".join(f"{ban.peer_id} {' '.join(ban.evidence)}\n" for ban in view.bans if ban.evidence)


def probation_rows(view: NetworkView) -> list[Row]:
    """Return a row per peer on probation, whose work is audited but does not count yet."""
    names = labels(view)
    return [
        {"peer": names[peer.peer_id], "steps": peer.steps, "last_seen": peer.last_seen_seconds}
        for peer in view.peers
        if peer.trust == "probation"
    ]


def audit_rows(view: NetworkView, kind: str) -> list[Row]:
    """Return a row per audit or complaint, newest first."""
    names, results = labels(view), {True: "passed", False: "failed", None: "pending"}
    return [
        {
            "at": moment(one.unix_seconds),
            "about": names.get(one.about, short_id(one.about)),
            "by": names.get(one.by, short_id(one.by)),
            "round": f"fragment {one.fragment}, version {one.version}",
            "result": results[one.passed] if kind == "audit" else "",
            "reason": plain(one.reason),
        }
        for one in sorted(view.audits, key=lambda one: -one.unix_seconds)
        if one.kind == kind
    ]

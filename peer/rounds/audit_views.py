"""Audits and complaints: what this peer has found out about others and tells to peers that ask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from coordinator.core.actions import Tell
from coordinator.views.network_view import AuditView

AUDITS_TOLD_MAX = 32
REASONS = {
    True: "",
    False: "what it returned is not what its inputs give",
    None: "what was committed could not be had, so nothing could be recomputed",
}
DOUBTFUL = "its coefficients are not those that the run's rule gives"


def audit_views(told: Tell, unix_seconds: float) -> list[AuditView]:
    """Return what an event says about other peers, as views for people; empty for most events.

    The views do not name this peer: their receiver knows the sender.
    """
    place = {"fragment": told.fragment, "version": told.version + 1, "unix_seconds": unix_seconds}
    return [AuditView.model_validate({**one, **place}) for one in _found(told)]


def _found(told: Tell) -> Iterator[dict[str, object]]:
    about, partition = told.details.get("reducer"), told.details.get("partition")
    if told.event == "result_refuted":
        reason = f"its result of partition {partition} is not what its inputs give"
        yield {"kind": "complaint", "about": about, "reason": reason}
    if told.event == "audited":
        passed = cast(bool | None, told.details["passed"])
        reason = DOUBTFUL if told.details["doubtful"] else REASONS[passed]
        yield {"kind": "audit", "about": about, "passed": passed, "reason": reason}
        for peer in cast(Sequence[str], told.details["withheld"]):
            reason = f"did not send its part of partition {partition} to an audit"
            yield {"kind": "complaint", "about": peer, "reason": reason}

"""Reasons to refuse a peer, and advice for its owner. Only the value is sent; the advice is our own text."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Refusal(StrEnum):
    """The reason for a refusal, as a door sends it."""

    NO_PASS = "no_pass"
    FALSE_PASS = "false_pass"
    NOT_NAMED = "not_named"
    REVOKED = "shown_out"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    USED_UP = "used_up"
    FULL = "full"
    ONLY_OBSERVES = "only_looks"
    ONLY_VOTES = "only_votes"


ADVICE: Mapping[Refusal, str] = MappingProxyType(
    {
        Refusal.NO_PASS: "this run lets in who was invited, and the line holds no invitation; ask its organiser for an "
        "invite of its own",
        Refusal.FALSE_PASS: "the invitation in this line is not of this run's organiser; ask the organiser for another",
        Refusal.NOT_NAMED: "this run lets in only peers that its organiser has named; tell the organiser your id, "
        "which `muster id` prints",
        Refusal.REVOKED: "this peer was removed by the run's organiser; ask the organiser",
        Refusal.WITHDRAWN: "the organiser has withdrawn this invite; ask the organiser for another",
        Refusal.EXPIRED: "this invite has expired; ask the organiser for a fresh one",
        Refusal.USED_UP: "this invite was used by as many peers as it lets in; ask the organiser for another",
        Refusal.FULL: "this run has as many guests of limited invites as it keeps; ask the organiser for an invite "
        "without limits",
        Refusal.ONLY_OBSERVES: "this invite lets its holder look and not take part; ask the organiser for one with "
        "--role trainer",
        Refusal.ONLY_VOTES: "this invite is for a host, and this peer trains; ask the organiser for one with "
        "--role trainer",
    }
)
"""The sentence that a refused peer shows its owner."""

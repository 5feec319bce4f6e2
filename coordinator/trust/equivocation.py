"""Finds equivocation: a peer that makes two different statements in one slot (design §9).

Every peer keeps the first valid statement for each slot of the newest two versions of a fragment. A second one that
differs is evidence. A sender may also tell half of a group one thing and the rest another. To find that, peers compare:
after each round a peer sends a few members of the group the digests of what it heard. They ask for the statements that
differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import msgpack

from coordinator.trust.evidence import BODIES_BYTES_MAX, Evidence, contradiction, lie, lie_in
from coordinator.trust.statement_slots import Slot, kind_of, nested, slot_of
from coordinator.wire.messages import HEARD_MAX, AskHeardNote, HeardNote
from dht.identity import PeerId, Verifier
from dht.statement import Statement, digest_of

VERSIONS_KEPT = 2
STATEMENTS_KEPT = 1024  # of each version: several rounds of a full group
BYTES_KEPT = 16 << 20  # of each version
SENDERS_MIN = 16  # it takes so many to fill either: one sender always leaves room for the others
STATEMENT_QUOTAS = {
    "join": (8, 8 << 10),
    "roster": (4, 48 << 10),
    "commit": (4, 28 << 10),
    "bundle": (4, BODIES_BYTES_MAX // 2),  # two that are longer do not fit into evidence
    "result": (8, 64 << 10),
    "check": (8, 16 << 10),
    "redo": (4, 56 << 10),
    "proposal": (4, 56 << 10),
    "ballot": (6, 4 << 10),
}
"""Statements and bytes kept of one sender and kind: a sender that fills one quota may convict itself in another."""
ELSEWHERE_PART = 4  # quotas for groups that we are not in are so much smaller: anybody can make up any number of groups
ANSWERED_MAX = 4  # statements in answer to one question
SHORT_BYTES = 16  # of a slot's name and of a statement's digest, if they are only compared

Heard = dict[bytes, Statement]
"""Statements by the name of their slot."""
QuotaKey = tuple[str, str, bool]
"""Sender, kind, and whether the statement is not the sender's part in a group of ours."""
MaySend = Callable[[Statement], bool]
"""Tells whether a statement is its sender's part in a group of ours."""


def in_no_group(statement: Statement) -> bool:
    """Return False: the answer of a peer that is in no group."""
    return False


@dataclass(slots=True)
class Equivocations:
    """The statements heard about one fragment, by version, among which equivocations are found."""

    verifier: Verifier
    heard: dict[int, Heard] = field(default_factory=dict)
    known: dict[int, set[bytes]] = field(default_factory=dict)  # digests of what is in `heard`
    kept_bytes: dict[int, Counter[QuotaKey]] = field(default_factory=dict)
    kept_counts: dict[int, Counter[QuotaKey]] = field(default_factory=dict)

    def see(self, statement: Statement, trusted: Set[PeerId], ours: MaySend = in_no_group) -> list[Evidence]:
        """Keep a statement and those in it, if they are new; returns what they prove together with those we have.

        All senders share one half of the space; the other half is for `trusted` ones, as keys cost nothing. Each sender
        has a quota for each kind. Statements that are its part in groups of ours (`ours`) have quotas of
        their own, which nothing else can fill.
        """
        version = statement.context.version
        if statement.digest in self.known.get(version, ()):
            return []
        found = self._keep(statement, trusted, ours)
        for inner in nested(statement):
            if inner.context.version == version and inner.digest not in self.known.get(version, ()):
                found += self._keep(inner, trusted, ours)
        return found

    def _keep(self, statement: Statement, trusted: Set[PeerId], ours: MaySend) -> list[Evidence]:
        place = slot_of(statement)
        if place is None:
            return []
        version, name = statement.context.version, _name(place)
        held = self.heard.get(version, {}).get(name)
        if held is not None and held.digest == statement.digest:
            return []
        if not statement.verify(self.verifier):
            return []
        if held is not None:  # evidence that is too large for one message convicts nobody
            fits = len(held.body) + len(statement.body) <= BODIES_BYTES_MAX
            return [contradiction(held, statement)] if fits else []
        quota = _quota_key(statement, ours)
        if self._has_room(version, quota, len(statement.body), trusted):
            self.heard.setdefault(version, {})[name] = statement
            self.known.setdefault(version, set()).add(statement.digest)
            self.kept_bytes.setdefault(version, Counter())[quota] += len(statement.body)
            self.kept_counts.setdefault(version, Counter())[quota] += 1
        return [lie(statement)] if lie_in(statement) is not None else []

    def _has_room(self, version: int, quota: QuotaKey, size: int, trusted: Set[PeerId]) -> bool:
        counts, sizes = self.kept_counts.get(version, Counter()), self.kept_bytes.get(version, Counter())
        sender, kind, elsewhere = quota
        share = 1 if sender in trusted else 2  # half is for senders that we know
        if counts.total() >= STATEMENTS_KEPT // share or sizes.total() + size > BYTES_KEPT // share:
            return False
        part = ELSEWHERE_PART if elsewhere else 1
        count_max, bytes_max = STATEMENT_QUOTAS[kind]
        return counts[quota] < count_max // part and sizes[quota] + size <= bytes_max // part

    def forget(self, newest: int) -> None:
        """Forget all statements but those about the newest versions up to this one."""
        for version in [one for one in self.heard if not newest - VERSIONS_KEPT < one <= newest]:
            del self.heard[version], self.known[version], self.kept_bytes[version], self.kept_counts[version]

    # -- comparing

    def summary(self, fragment: int, version: int) -> HeardNote | None:
        """Return short digests of what we heard about a version, the newest `HEARD_MAX`; None if we heard nothing."""
        heard = list(self.heard.get(version, {}).items())[-HEARD_MAX:]
        if not heard:
            return None
        marks = tuple(name + statement.digest[:SHORT_BYTES] for name, statement in heard)
        return HeardNote(fragment=fragment, version=version, heard=marks)

    def differing(self, note: HeardNote) -> AskHeardNote | None:
        """Return a request for the statements that another peer heard differently; None if there are none."""
        own = self.heard.get(note.version, {})
        places = [
            mark[:SHORT_BYTES]
            for mark in note.heard
            if (held := own.get(mark[:SHORT_BYTES])) is not None and held.digest[:SHORT_BYTES] != mark[SHORT_BYTES:]
        ]
        if not places:
            return None
        return AskHeardNote(fragment=note.fragment, version=note.version, places=tuple(places[:ANSWERED_MAX]))

    def answer(self, note: AskHeardNote) -> list[Statement]:
        """Return the statements that we heard in these slots."""
        own = self.heard.get(note.version, {})
        return [own[place] for place in note.places[:ANSWERED_MAX] if place in own]


def _name(place: Slot) -> bytes:
    return digest_of(b"muster-place", msgpack.packb(place, use_bin_type=True))[:SHORT_BYTES]


def _quota_key(statement: Statement, ours: MaySend) -> QuotaKey:
    kind = kind_of(statement)
    in_group = kind not in ("join", "roster")
    return statement.sender, kind, in_group and not ours(statement)

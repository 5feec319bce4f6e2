"""What we have heard others say, and where somebody said two things in one place (design §9).

Every peer keeps the first valid statement for each place of the newest two versions of a fragment. A second one that
differs is evidence. Who tells one thing to half of a group and another thing to the rest is found by comparing: after
each round a peer sends a few members of the group the digests of what it heard, and they ask for what differs.
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
SENDERS_MIN = 16  # it takes so many to fill either: what one says leaves room for what the others say
ROOMS = {
    "join": (8, 8 << 10),
    "roster": (4, 48 << 10),
    "commit": (4, 28 << 10),
    "bundle": (4, BODIES_BYTES_MAX // 2),  # of two that are longer no evidence can be made
    "result": (8, 64 << 10),
    "check": (8, 16 << 10),
    "redo": (4, 56 << 10),
    "proposal": (4, 56 << 10),
    "ballot": (6, 4 << 10),
}
"""Statements and bytes that are kept of one sender and kind: who fills one room may still convict itself in another."""
ELSEWHERE_PART = 4  # of a room, besides it, is for groups that we are not in: anybody can make up any number of those
ANSWERED_MAX = 4  # statements in answer to one question
SHORT_BYTES = 16  # of a place's name and of a statement's digest, where they are only compared

Heard = dict[bytes, Statement]
"""By place."""
Room = tuple[str, str, bool]
"""Sender, kind, and whether it was said elsewhere than in its part of a group of ours."""
Say = Callable[[Statement], bool]
"""Whether a sender says in a group of ours what is its part there."""


def nowhere(statement: Statement) -> bool:
    """For a peer that is in no group."""
    return False


@dataclass(slots=True)
class Equivocations:
    """Equivocations in one fragment, by version."""

    verifier: Verifier
    heard: dict[int, Heard] = field(default_factory=dict)
    known: dict[int, set[bytes]] = field(default_factory=dict)  # digests of what is in `heard`
    kept_bytes: dict[int, Counter[Room]] = field(default_factory=dict)
    kept_counts: dict[int, Counter[Room]] = field(default_factory=dict)

    def see(self, statement: Statement, trusted: Set[PeerId], ours: Say = nowhere) -> list[Evidence]:
        """Keep a statement and those in it, if they are news; returns what they prove together with what we have.

        While there is room everybody's are kept, then only those of `trusted` senders: keys cost nothing. Of any
        one sender a part is kept, of each kind. What it says as its part in groups of ours (`ours`) has rooms of its
        own, which nothing else can fill.
        """
        version = statement.context.version
        if statement.digest in self.known.get(version, ()):
            return []
        found = self._keep(statement, trusted, ours)
        for inner in nested(statement):
            if inner.context.version == version and inner.digest not in self.known.get(version, ()):
                found += self._keep(inner, trusted, ours)
        return found

    def _keep(self, statement: Statement, trusted: Set[PeerId], ours: Say) -> list[Evidence]:
        place = slot_of(statement)
        if place is None:
            return []
        version, name = statement.context.version, _name(place)
        held = self.heard.get(version, {}).get(name)
        if held is not None and held.digest == statement.digest:
            return []
        if not statement.verify(self.verifier):
            return []
        if held is not None:  # what is too large for one message convicts nobody
            fits = len(held.body) + len(statement.body) <= BODIES_BYTES_MAX
            return [contradiction(held, statement)] if fits else []
        room = _room(statement, ours)
        if self._has_room(version, room, len(statement.body), trusted):
            self.heard.setdefault(version, {})[name] = statement
            self.known.setdefault(version, set()).add(statement.digest)
            self.kept_bytes.setdefault(version, Counter())[room] += len(statement.body)
            self.kept_counts.setdefault(version, Counter())[room] += 1
        return [lie(statement)] if lie_in(statement) is not None else []

    def _has_room(self, version: int, room: Room, size: int, trusted: Set[PeerId]) -> bool:
        counts, sizes = self.kept_counts.get(version, Counter()), self.kept_bytes.get(version, Counter())
        sender, kind, elsewhere = room
        share = 1 if sender in trusted else 2  # half is for those whom we know
        if counts.total() >= STATEMENTS_KEPT // share or sizes.total() + size > BYTES_KEPT // share:
            return False
        part = ELSEWHERE_PART if elsewhere else 1
        count_max, bytes_max = ROOMS[kind]
        return counts[room] < count_max // part and sizes[room] + size <= bytes_max // part

    def forget(self, newest: int) -> None:
        """Keep what is about the newest versions up to this one only."""
        for version in [one for one in self.heard if not newest - VERSIONS_KEPT < one <= newest]:
            del self.heard[version], self.known[version], self.kept_bytes[version], self.kept_counts[version]

    # -- comparing

    def summary(self, fragment: int, version: int) -> HeardNote | None:
        """What we heard about a version, in digests: the newest `HEARD_MAX`; None if that is nothing."""
        heard = list(self.heard.get(version, {}).items())[-HEARD_MAX:]
        if not heard:
            return None
        marks = tuple(name + statement.digest[:SHORT_BYTES] for name, statement in heard)
        return HeardNote(fragment=fragment, version=version, heard=marks)

    def differing(self, note: HeardNote) -> AskHeardNote | None:
        """What to ask somebody who heard something else than we did; None if we agree as far as we both heard."""
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
        """What we heard in these places."""
        own = self.heard.get(note.version, {})
        return [own[place] for place in note.places[:ANSWERED_MAX] if place in own]


def _name(place: Slot) -> bytes:
    return digest_of(b"muster-place", msgpack.packb(place, use_bin_type=True))[:SHORT_BYTES]


def _room(statement: Statement, ours: Say) -> Room:
    kind = kind_of(statement)
    in_group = kind not in ("join", "roster")
    return statement.sender, kind, in_group and not ours(statement)

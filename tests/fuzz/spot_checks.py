"""One member that looks into a result, with the real inspector behind a real exchange; an auditor; a claim about it.

Whatever is opened or claimed, nobody refutes an honest result. Statements are signed anew (`tests.fuzz.courtroom`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from pydantic import Field

from coordinator.core.actions import Inspect, Open
from coordinator.core.events import Finding, Inspected
from coordinator.core.timeline import Timeline
from coordinator.round.exchange import Exchange, HeldResult
from coordinator.round.refutations import Refutations, inspection_of
from coordinator.round.spot_checks import SpotChecks
from coordinator.wire.merkle import merkle_tree
from coordinator.wire.messages import Commit, Result
from coordinator.wire.openings import OpeningNote, Refutation
from dht.errors import PeerError
from dht.wire import Wire
from peer.rounds.spot_checks import SpotChecker
from peer.storage.blobs import BlobStore
from tests.fuzz.courtroom import CASES
from tests.fuzz.target import Target
from tests.peer.judged import MEMBERS, PARTITION

BLOB_BYTES_MAX = 1 << 20


class Delivery(Wire):
    """What one member gets to look into: signed bodies, a result's bytes, a hostile contributor's, what is opened to
    it (nothing: what those bytes give), and what somebody else says to have refuted (or nothing)."""

    case: int = Field(ge=0, lt=len(CASES))
    commits: tuple[bytes, ...] = Field(min_length=MEMBERS, max_length=MEMBERS)
    result: bytes
    data: bytes
    part: bytes
    opened: bytes
    claim: bytes


class Looker:
    """A member with its own part and the result's bytes, and an auditor that has everything."""

    def __init__(self, said: Delivery) -> None:
        self.said, self.case = said, CASES[said.case]
        of, (me, hostile) = self.case.of, self.case.others
        self.member, reduction = of.club.core(me), of.reduction
        self.blobs, self.all = BlobStore(BLOB_BYTES_MAX), BlobStore(BLOB_BYTES_MAX)
        for member, one in enumerate(reduction.inputs):
            part = said.part if member == hostile else self.case.part(member)
            root = self.all.add(part, reduction.contribution.leaf_bytes)
            if member == hostile:
                self.hostile_root = root
            if member == me:
                self.blobs.put(part, self.all.tree(one.root) or merkle_tree(part, reduction.contribution.leaf_bytes))
        self.root = self.all.add(said.data, reduction.result.leaf_bytes)
        self.blobs.add(said.data, reduction.result.leaf_bytes)
        codecs = (reduction.contribution, reduction.result)
        self.inspector, self.auditor = (
            SpotChecker(lambda *_: reduction.cut, codecs, reduction.rule, blobs) for blobs in (self.blobs, self.all)
        )
        self.timeline = Timeline(0.0, 8.0)
        self.exchange = Exchange(self.member, of.club.chain(), of.group, self.timeline)
        self.refutations = Refutations(self.member, of.group, self.exchange)
        self.inspection = SpotChecks(self.member, of.group, self.timeline, self.exchange, self.refutations)

    @cached_property
    def honest(self) -> bool:
        """Whether nobody has signed or sent anything but what is so."""
        case, said = self.case, self.said
        same = said.commits == case.commits and said.result == case.result
        return same and said.data == case.honest.data and said.part == case.part(case.others[1])

    def take(self) -> HeldResult:
        """What is signed and sent; raises PeerError if this is no result that a member looks into."""
        hostile = self.case.others[1]
        commit = Commit.from_wire(self.said.commits[hostile])
        roots = (self.hostile_root, *commit.part_roots[1:])
        body = commit.model_copy(update={"part_roots": roots}).to_wire()
        commits = (*self.said.commits[:hostile], body, *self.said.commits[hostile + 1 :])
        bundle = self.case.bundle(commits)
        self.exchange.on_bundle(bundle, frozenset())
        result = Result.from_wire(self.said.result).model_copy(update={"root": self.root})
        self.exchange.on_result(self.case.said(self.case.reducer, "result", result.to_wire(), bundle.digest), self.root)
        held = self.exchange.held()[PARTITION]
        if held is None:
            raise PeerError("another result")
        return held

    def look(self, held: HeldResult) -> None:
        """At the leaves that it drew, which the reducer opens."""
        self.inspection.decide(frozenset(), 1.0)
        note = self._opening(held)
        if note is None:
            return
        for action in self.inspection.on_opening(held.reducer, note):
            if isinstance(action, Inspect):
                self.inspection.on_inspected(self._found(self.inspector.inspect(action)), 1.0)

    def _opening(self, held: HeldResult) -> OpeningNote | None:
        seed, group = self.inspection.cases[PARTITION, 0].seed, self.case.of.group
        if self.said.opened:
            place = {"group": group.key.roster_id, "partition": PARTITION, "turn": 0, "seed": seed}
            return OpeningNote.from_wire(self.said.opened).model_copy(update=place)
        assert self.exchange.inputs is not None
        members = [one for one in held.result.included if one != self.case.others[0]]
        inputs = self.exchange.inputs.partition(PARTITION, members)
        place = (PARTITION, MEMBERS, 0, seed, len(group.voters), len(group.members))
        return self.auditor.open(Open(group.key, self.member.me, *place, inputs)).note  # type: ignore[call-arg]

    def audit(self, held: HeldResult) -> Inspected:
        """At all leaves."""
        whole = replace(inspection_of(self.exchange, held, self.member.me), whole=True)
        return self._found(self.auditor.inspect(whole))

    def hear(self, held: HeldResult) -> None:
        """Somebody else says that it has refuted this."""
        if not self.said.claim:
            return
        assert self.exchange.inputs is not None
        body = Refutation.from_wire(self.said.claim).model_copy(update={"result": held.statement.digest})
        claim = self.case.said(self.case.others[1], "refutation", body.to_wire(), self.exchange.inputs.digest)
        for action in self.refutations.hear(claim):
            if isinstance(action, Inspect):
                self.refutations.on_inspected(self._found(self.inspector.inspect(action)))

    def _found(self, found: Inspected) -> Inspected:
        assert not (self.honest and found.finding is Finding.REFUTED), found
        return found


def deliver(data: bytes) -> object:
    """One member looks into a result, an auditor as well, and a claim about it is heard."""
    looker = Looker(Delivery.from_wire(data))
    held = looker.take()
    looker.look(held)
    found = looker.audit(held)
    looker.hear(held)
    return found


def _deliveries() -> tuple[Delivery, ...]:
    """Honest and false results, opened as they are and in so many words; and one over garbage."""
    found = []
    for case in CASES:
        part = case.part(case.others[1])
        for reduced, sent in (
            (case.honest, part),
            (case.cheated(), part),
            (case.honest, b"\xff" * len(part)),
        ):
            result = case.of.result(reduced)
            plain = Delivery(
                case=case.number,
                commits=case.commits,
                result=result.body,
                data=bytes(reduced.data),
                part=sent,
                opened=b"",
                claim=case.of.shown(reduced, 0, result).to_wire(),
            )
            looker = Looker(plain)
            held = looker.take()
            looker.inspection.decide(frozenset(), 1.0)
            note = looker._opening(held)
            assert note is not None
            found += [plain, plain.model_copy(update={"opened": note.to_wire()})]
    return tuple(found)


INSPECTION_TARGETS = {"inspection": Target(deliver, tuple(one.to_wire() for one in _deliveries()))}

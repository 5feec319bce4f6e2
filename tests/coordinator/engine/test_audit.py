"""The requests of an audit, and its result (design §9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.chain.weights import most_hostile
from coordinator.core.actions import Action, Inspect, Send, Tell
from coordinator.core.events import Encoded, Finding, Inspected
from coordinator.core.timeline import Timeline
from coordinator.engine.audit import ASKERS_SPARE, GIVEN_MAX, PATIENCE_DEADLINES, ROUNDS_KEPT, Audit, Auditor, Past
from coordinator.engine.engine import Engine
from coordinator.round.exchange import Exchange, HeldResult
from coordinator.run.manifest import TrustSpec
from coordinator.simulator.tensors import VirtualProofChecker, opened_input
from coordinator.wire.messages import NeedNote, PartNote, Result
from coordinator.wire.openings import Refutation
from dht.statement import Statement
from tests.coordinator.builders import NOW, PACE, Club, digest

CLUB = Club.of(6, trust=TrustSpec(audit_share=1.0))
EVERYBODY = tuple(range(6))
ENDS_AT = NOW + PATIENCE_DEADLINES * PACE.round_seconds


class Stand:
    """An auditor, number 0 in beacon order, that audits the result of the last partition."""

    def __init__(self) -> None:
        self.chain = CLUB.chain()
        self.group = CLUB.group(self.chain, EVERYBODY)
        self.me = CLUB.number(self.group.members[0])
        core = CLUB.core(self.me)
        core.proof_checker = VirtualProofChecker()
        self.engine = Engine(core, [self.chain, CLUB.chain(1)], [0, 0], NOW)
        self.auditor: Auditor = self.engine.auditor
        self.exchange = Exchange(core, self.chain, self.group, Timeline(NOW, PACE.round_seconds))
        self.exchange.inputs = self.inputs = CLUB.inputs(self.chain, self.group)
        self.partition = len(self.group.members) - 1
        statement: Statement = CLUB.result(self.group, self.inputs, self.partition)
        self.held = HeldResult(self.group.reducer(self.partition), statement.read(Result), statement)
        self.others = [member for member, peer in enumerate(self.inputs.peers) if peer != core.me]
        self.auditor.audit = Audit(self.exchange, self.held, set(self.others), NOW, ENDS_AT)

    def part(self, member: int, **changes: object) -> list[Action]:
        """Let a contributor send its committed part."""
        values = {"group": self.group.key.roster_id, "partition": self.partition, "turn": 0, **changes}
        root = values.pop("root", self.inputs.commits[member].part_roots[self.partition])
        return self.auditor.receive(self.inputs.peers[member], PartNote(**values), root)  # type: ignore[arg-type]

    def recomputed(self, finding: Finding, refutation: Refutation | None = None) -> list[Action]:
        place = (self.group.key, self.engine.core.me, self.partition, 0, self.held.statement.digest)
        return self.auditor.on_answer(Inspected(*place, finding, refutation, whole=True), NOW)


def told(actions: list[Action]) -> list[object]:
    return [action.details["passed"] for action in actions if isinstance(action, Tell) and action.event == "audited"]


def asked(actions: list[Action]) -> set[str]:
    return {action.to for action in actions if isinstance(action, Send) and isinstance(action.message, NeedNote)}


def test_it_asks_every_contributor_and_recomputes_once_all_is_here() -> None:
    stand = Stand()
    assert asked(stand.auditor.tick(NOW)) == {stand.inputs.peers[member] for member in stand.others}
    for member in stand.others[:-1]:
        assert stand.part(member) == []
    (action,) = stand.part(stand.others[-1])
    assert isinstance(action, Inspect)
    assert action.whole
    assert (action.root, action.inputs) == (
        stand.held.result.root,
        stand.inputs.partition(stand.partition, range(6)),
    )
    assert told(stand.recomputed(Finding.CONFIRMED)) == [True]
    assert stand.auditor.audit is None


@pytest.mark.parametrize("changes", [{"root": digest("other")}, {"partition": 0}, {"turn": 1}, {"group": digest("x")}])
def test_unasked_parts_count_for_nothing(changes: dict[str, object]) -> None:
    stand = Stand()
    stand.part(stand.others[0], **changes)
    assert stand.auditor.audit is not None
    assert stand.others[0] in stand.auditor.audit.lacking


def test_it_asks_again_for_what_is_missing_and_gives_up_in_the_end() -> None:
    stand = Stand()
    stand.auditor.tick(NOW)
    for member in stand.others[1:]:
        stand.part(member)
    again_at = stand.auditor.next_deadline()
    assert NOW < again_at < ENDS_AT
    assert stand.auditor.tick(NOW) == []
    assert asked(stand.auditor.tick(again_at)) == {stand.inputs.peers[stand.others[0]]}
    (tell,) = stand.auditor.tick(ENDS_AT)
    assert isinstance(tell, Tell)
    assert (tell.details["passed"], tell.details["withheld"]) == (None, [stand.inputs.peers[stand.others[0]]])
    assert stand.auditor.tick(ENDS_AT) == []


def test_coefficients_that_are_not_the_rules_are_told_and_ban_nobody() -> None:
    stand = Stand()
    stand.auditor.tick(NOW)
    for member in stand.others:
        stand.part(member)
    (tell,) = stand.recomputed(Finding.DOUBTFUL)
    assert isinstance(tell, Tell)
    assert (tell.details["passed"], tell.details["doubtful"]) == (False, True)
    assert stand.held.reducer not in stand.engine.core.bans


def test_a_leaf_that_differs_bans_its_reducer() -> None:
    stand = Stand()
    stand.auditor.tick(NOW)
    for member in stand.others:
        stand.part(member)
    opened = tuple(map(opened_input, stand.inputs.partition(stand.partition, range(6))))
    place = {"partition": stand.partition, "turn": 0, "result": stand.held.statement.digest}
    shown = Refutation(leaf=0, inputs=opened, piece=b"", siblings=(), **place)  # type: ignore[arg-type]
    actions = stand.recomputed(Finding.REFUTED, shown)
    assert told(actions) == [False]
    assert stand.held.reducer in stand.engine.core.bans


def test_a_spot_check_ends_no_audit() -> None:
    stand = Stand()
    late = Inspected(stand.group.key, stand.engine.core.me, stand.partition, 0, bytes(32), Finding.CONFIRMED)
    assert stand.auditor.on_answer(late, NOW) == []
    assert stand.auditor.audit is not None


# -- serving


def served() -> tuple[Stand, Past]:
    stand = Stand()
    roots = stand.inputs.commits[0].part_roots
    stand.exchange.encoded = Encoded(stand.group.key, 100, 10, 0, 10, roots, (1.0,) * len(roots))
    past = Past(stand.exchange)
    stand.auditor.past.append(past)
    return stand, past


def give(stand: Stand, asker: int, partition: int, **changes: object) -> list[Action]:
    values = {"what": "part", "group": stand.group.key.roster_id, "turn": 0, **changes}
    return stand.auditor.receive(CLUB.ids[asker], NeedNote(partition=partition, **values), None)  # type: ignore[arg-type]


def test_a_member_gets_one_part_a_few_times() -> None:
    stand, _ = served()
    for _ in range(GIVEN_MAX):
        (send,) = give(stand, 1, 2)
        assert isinstance(send, Send)
        assert (send.to, send.payload) == (CLUB.ids[1], stand.inputs.commits[0].part_roots[2])
    assert give(stand, 1, 2) == []
    assert give(stand, 1, 3) == []


LARGE = Club.of(13)
BORNE = 4  # hostile members of thirteen


def give_everybody(stand: Stand) -> list[bool]:
    """Let all members of a large group ask for the same part in turn; return whether each gets it."""
    stand.exchange.group = replace(stand.group, members=tuple(LARGE.ids))
    need = NeedNote(what="part", group=stand.group.key.roster_id, partition=0, turn=0)
    return [bool(stand.auditor.receive(asker, need, None)) for asker in LARGE.ids]


def test_only_a_few_members_get_one() -> None:
    stand, past = served()
    assert sum(give_everybody(stand)) == BORNE + ASKERS_SPARE == len(past.given)


def test_as_many_hostile_members_as_a_group_bears_take_nobodys_place() -> None:
    """They ask first, after every round: else an honest auditor would get nothing, and blame contributors for it."""
    stand, _ = served()
    assert all(give_everybody(stand)[: BORNE + ASKERS_SPARE])
    assert len(LARGE.ids) - stand.exchange.group.votes_needed == BORNE


def test_keys_on_probation_take_nobodys_place_either() -> None:
    stand, _ = served()
    members, new = tuple(LARGE.ids), len(LARGE.ids) // 4
    stand.exchange.group = replace(stand.group, members=members, probation=frozenset(members[:new]))
    hostile = most_hostile(len(members) - new)
    assert stand.auditor.past[-1].capacity == new + hostile + ASKERS_SPARE


def test_strangers_and_other_rounds_get_nothing() -> None:
    stand, _ = served()
    assert give(stand, 1, 0, group=digest("another")) == []
    assert give(stand, 1, 30) == []
    assert give(stand, 1, 0, what="result") == []
    outsider = replace(stand.group, members=stand.group.members[1:])
    stand.exchange.group = outsider
    assert give(stand, CLUB.number(stand.group.members[0]), 0) == []


def test_few_rounds_are_kept() -> None:
    stand, past = served()
    for _ in range(2 * ROUNDS_KEPT):
        stand.auditor.past.append(past)
    assert len(stand.auditor.past) == ROUNDS_KEPT

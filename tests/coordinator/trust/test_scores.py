"""Who is drawn to look into whose contribution, how findings add up, and who gets whose bytes for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import Contributor, Outcome
from coordinator.core.actions import Action, Appraise, Send, Tell
from coordinator.core.events import Appraised, Encoded
from coordinator.core.timeline import Timeline
from coordinator.engine.scorer import GIVEN_EACH_MAX, PATIENCE_DEADLINES, ROUNDS_KEPT, STANDINGS_MAX, Scorer
from coordinator.round.exchange import Exchange
from coordinator.simulator.keys import virtual_peer_id
from coordinator.trust.scores import NEWEST_WEIGHT, SCORERS, Appraisal, Assignment, MemberScore, assignment_of
from coordinator.wire.messages import NeedNote, PartNote
from dht.identity import PeerId
from tests.coordinator.builders import NOW, PACE, Club, digest

CLUB = Club.of(6)
CHAIN = CLUB.chain()
GROUP = CLUB.group(CHAIN, range(6))
INPUTS = CLUB.inputs(CHAIN, GROUP)
LOSSES = st.floats(-10, 10)


# -- standings


@given(st.lists(st.tuples(LOSSES, LOSSES), min_size=1, max_size=40))
def test_a_standing_lies_within_what_was_found(found: list[tuple[float, float]]) -> None:
    standing = MemberScore()
    for one in found:
        standing = standing.after(Appraisal(*one))
    assert standing.rounds == len(found)
    for mean, values in zip((standing.assigned, standing.other), zip(*found, strict=True), strict=True):
        assert min(values) - 1e-9 <= mean <= max(values) + 1e-9


@given(st.lists(LOSSES, min_size=1, max_size=int(1 / NEWEST_WEIGHT)))
def test_the_first_few_count_alike(found: list[float]) -> None:
    standing = MemberScore()
    for one in found:
        standing = standing.after(Appraisal(one, -one))
    assert standing.assigned == pytest.approx(sum(found) / len(found), abs=1e-9)
    assert standing.other == pytest.approx(-standing.assigned, abs=1e-9)


@given(st.integers(1, 200))
def test_who_turns_harmful_shows_it_however_good_it_was(good_rounds: int) -> None:
    standing = MemberScore()
    for _ in range(good_rounds):
        standing = standing.after(Appraisal(0.1, 0.1))
    for _ in range(20):
        standing = standing.after(Appraisal(-0.1, -0.1))
    assert standing.other < -0.05


# -- draws


def outcomes(count: int) -> list[Outcome]:
    return [CLUB.outcome(CHAIN, range(6), coin=digest(("coin", number))) for number in range(count)]


def test_a_draw_takes_an_included_member_and_two_others() -> None:
    drawn = [assignment_of(one, 1.0) for one in outcomes(200)]
    for one in drawn:
        assert one is not None
        assert len(set(one.scorers)) == SCORERS
        assert one.scored not in one.scorers
        assert {one.scored, *one.scorers} <= set(CLUB.ids)
    assert {one.scored for one in drawn if one} == set(CLUB.ids)
    assert {peer for one in drawn if one for peer in one.scorers} == set(CLUB.ids)


@pytest.mark.parametrize(("share", "lowest", "highest"), [(0.0, 0, 0), (0.1, 20, 60), (0.5, 160, 240), (1.0, 400, 400)])
def test_so_many_versions_are_drawn(share: float, lowest: int, highest: int) -> None:
    drawn = sum(assignment_of(one, share) is not None for one in outcomes(400))
    assert lowest <= drawn <= highest  # six standard deviations


def test_what_a_cell_has_brought_is_not_drawn_nor_who_was_left_out() -> None:
    lines = tuple(
        Contributor(peer=peer, tokens=100, steps=10, cell=digest("a cell") if number == 0 else None)
        for number, peer in enumerate(CLUB.ids)
    )
    base = CLUB.outcome(CHAIN, range(6), contributors=lines)
    partition = base.partitions[0]
    assert partition is not None
    left_out = base.model_copy(update={"partitions": (partition.model_copy(update={"included": (0, 2, 3)}),)})
    for number in range(60):
        drawn = assignment_of(left_out.model_copy(update={"coin": digest(("coin", number))}), 1.0)
        assert drawn is not None
        assert drawn.scored in {CLUB.ids[2], CLUB.ids[3]}
    alone = left_out.model_copy(update={"contributors": tuple(lines[:1]), "partitions": (None,)})
    assert assignment_of(alone, 1.0) is None


# -- the two sides


@dataclass
class Stand:
    """The scorer of member `number` after a round of six, in which the last of them is looked into by the first two."""

    number: int
    scorer: Scorer = field(init=False)
    exchange: Exchange = field(init=False)
    begun: list[Action] = field(init=False)

    def __post_init__(self) -> None:
        core = CLUB.core(self.number)
        self.scorer = Scorer(core)
        self.exchange = Exchange(core, CHAIN, GROUP, Timeline(NOW, PACE.round_seconds), inputs=INPUTS)
        roots = INPUTS.commits[self.member(self.number)].part_roots
        self.exchange.encoded = Encoded(GROUP.key, 100, 10, 0, 10, roots, (1.0,) * len(roots))
        self.begun = self.scorer.close(self.exchange, ASSIGNMENT, NOW)

    @staticmethod
    def member(number: int) -> int:
        found = INPUTS.index(CLUB.ids[number])
        assert found is not None
        return found

    def part(self, partition: int, sender: int = 5, **changes: object) -> list[Action]:
        values = {"group": GROUP.key.roster_id, "partition": partition, "turn": 0, **changes}
        root = values.pop("root", INPUTS.commits[self.member(5)].part_roots[partition % GROUP.partitions])
        return self.scorer.on_part(CLUB.ids[sender], PartNote(**values), root)  # type: ignore[arg-type]

    def give(self, asker: int, partition: int, group: bytes = GROUP.key.roster_id) -> list[Action]:
        return self.scorer.give(CLUB.ids[asker], NeedNote(what="part", group=group, partition=partition, turn=0))


ASSIGNMENT = Assignment(CLUB.ids[5], (CLUB.ids[0], CLUB.ids[1]), digest("seed"))
PARTITIONS = range(GROUP.partitions)


def test_a_scorer_gets_every_part_and_tells_what_they_do() -> None:
    stand = Stand(0)
    asked = [one for one in stand.begun if isinstance(one, Send) and isinstance(one.message, NeedNote)]
    assert [(one.to, one.message.partition) for one in asked] == [(CLUB.ids[5], p) for p in PARTITIONS]  # type: ignore[union-attr]
    for partition in PARTITIONS[:-1]:
        assert stand.part(partition) == []
    (action,) = stand.part(PARTITIONS[-1])
    assert isinstance(action, Appraise)
    assert (action.peer, action.base) == (CLUB.ids[5], CHAIN.digest)
    assert action.part_roots == INPUTS.commits[stand.member(5)].part_roots
    assert stand.scorer.on_appraised(Appraised(CLUB.group(CLUB.chain(1), range(6)).key, Appraisal(1, 1))) == []
    (tell,) = stand.scorer.on_appraised(Appraised(GROUP.key, Appraisal(0.25, -0.5)))
    assert isinstance(tell, Tell)
    assert (tell.details["peer"], tell.details["mean_assigned"], tell.details["mean_other"]) == (
        CLUB.ids[5],
        0.25,
        -0.5,
    )
    assert stand.scorer.standings == {CLUB.ids[5]: MemberScore(1, 0.25, -0.5)}
    assert stand.scorer.scoring is None


@pytest.mark.parametrize("changes", [{"root": digest("other")}, {"group": digest("x")}, {"sender": 4}])
def test_what_was_not_committed_or_asked_for_counts_for_nothing(changes: dict[str, object]) -> None:
    stand = Stand(0)
    stand.part(0, **changes)  # type: ignore[arg-type]
    assert stand.scorer.scoring is not None
    assert stand.scorer.scoring.lacking == set(PARTITIONS)
    assert stand.part(GROUP.partitions + 3, root=digest("other")) == []


def test_who_gives_nothing_has_no_standing() -> None:
    stand = Stand(0)
    again_at = stand.scorer.next_deadline()
    assert stand.scorer.tick(NOW) == []
    stand.part(1)
    assert len(stand.scorer.tick(again_at)) == GROUP.partitions - 1
    assert stand.scorer.tick(NOW + PATIENCE_DEADLINES * PACE.round_seconds) == []
    assert stand.scorer.scoring is None
    assert stand.scorer.standings == {}


def test_what_cannot_be_told_is_not() -> None:
    stand = Stand(0)
    for partition in PARTITIONS:
        stand.part(partition)
    assert stand.scorer.on_appraised(Appraised(GROUP.key, None)) == []
    assert stand.scorer.standings == {}
    assert stand.scorer.scoring is None


def test_only_who_was_drawn_asks_and_only_it_is_given() -> None:
    assert Stand(2).begun == []
    stand = Stand(5)
    assert stand.begun == []
    for asker in (0, 1):
        for partition in PARTITIONS:
            given = [stand.give(asker, partition) for _ in range(2 * GIVEN_EACH_MAX)]
            assert sum(map(len, given)) == GIVEN_EACH_MAX
            (send,) = given[0]
            assert isinstance(send, Send)
            assert send.payload == INPUTS.commits[stand.member(5)].part_roots[partition]
    assert stand.give(2, 0) == stand.give(0, 30) == stand.give(0, 0, digest("another")) == []
    assert Stand(4).give(0, 0) == []  # not drawn: nobody looks into it


def test_what_is_kept_is_bounded() -> None:
    stand = Stand(5)
    for _ in range(2 * ROUNDS_KEPT):
        stand.scorer.close(stand.exchange, ASSIGNMENT, NOW)
    assert len(stand.scorer.owed) == ROUNDS_KEPT
    looking = Stand(0)
    for number in range(STANDINGS_MAX):
        looking.scorer.standings[PeerId(virtual_peer_id(number, 9))] = MemberScore(1)
    for partition in PARTITIONS:
        looking.part(partition)
    looking.scorer.on_appraised(Appraised(GROUP.key, Appraisal(0.0, 0.0)))
    assert len(looking.scorer.standings) == STANDINGS_MAX
    assert CLUB.ids[5] in looking.scorer.standings

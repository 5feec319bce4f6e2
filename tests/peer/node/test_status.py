"""What a peer reports of its fragments: what it does for each, and what keeps it from doing more."""

from __future__ import annotations

from types import SimpleNamespace

from coordinator.chain.chain import Chain
from coordinator.core.events import Progress
from coordinator.engine.engine import Engine
from coordinator.group.eligibility import Hindrance
from coordinator.run.manifest import PaceSpec
from coordinator.views.credit import CreditRecord, report_of
from coordinator.views.snapshot import FragmentStatus, PeerSnapshot
from peer.node.status import fragment_status, run_position
from peer.rounds.counters import RunCounters
from peer.service.status_text import status_page
from tests.coordinator.builders import NOW, Club
from tests.coordinator.rigs import presence

CLUB = Club.of(1, pace=PaceSpec(fragments=2, steps_per_version=8, quorum=1, min_group=1, round_seconds=8.0))


def told(engine: Engine, now: float = NOW) -> list[FragmentStatus]:
    return [fragment_status(machine, "", now) for machine in engine.machines]


def engine_of(chains: list[Chain], held: int = 0) -> Engine:
    return Engine(CLUB.core(0), chains, [held, held], NOW)


def test_phase_and_hindrance_are_those_of_the_core() -> None:
    engine = engine_of([CLUB.chain(0), CLUB.chain(1)])
    assert [(one.phase, one.hindrance) for one in told(engine)] == [("idle", "")] * 2
    engine.handle(Progress(4, 1.0), NOW)
    assert [one.phase for one in told(engine)] == ["in a round", "idle"]
    engine.drain()
    assert [one.phase for one in told(engine)] == ["in a round", "idle"], "what is in flight goes on"
    assert told(engine)[1].hindrance == "begins no more rounds"


def test_a_host_that_starts_again_counts_the_tokens_from_before() -> None:
    """Before, it told its evaluations' tokens from 0, so a loss curve of a later observer was shifted to the left."""
    chains = [CLUB.grow(CLUB.chain(0), [0]), CLUB.grow(CLUB.chain(1), [0])]
    credit = report_of(CLUB.manifest.run_id, CreditRecord.empty(2), chains, {})
    driver = SimpleNamespace(engine=engine_of(chains, 1), counters=RunCounters(2))
    driver.counters.follow(driver.engine.machines)
    assert run_position(driver, 5.0, credit.tokens).tokens == credit.tokens > 0
    driver.counters.certify(CLUB.grow(chains[0], [0]).certificates[-1])
    new = driver.counters.certified.tokens
    assert new > 0
    assert run_position(driver, 5.0, credit.tokens).tokens == credit.tokens + new


def test_a_peer_without_a_state_catches_up() -> None:
    engine = engine_of([CLUB.grow(CLUB.chain(0), [0]), CLUB.grow(CLUB.chain(1), [0])])
    assert {(one.phase, one.hindrance) for one in told(engine)} == {("catching up", "lacks its newest state")}


def test_a_host_whose_vote_is_not_needed_waits_for_nothing() -> None:
    club, everybody = Club.of(4), range(4)
    chains = [club.grow(club.chain(index), everybody) for index in range(club.manifest.config.pace.fragments)]
    engine = Engine(club.core(0), chains, [1] * len(chains), NOW)
    engine.core.contributes = False
    for learner in club.ids[1:]:
        engine.core.presence.see(learner, presence(), NOW)
    assert {machine.eligibility(NOW)[1] for machine in engine.machines} == {Hindrance.NOT_NEEDED}
    assert {one.hindrance for one in told(engine)} == {""}


def test_the_page_of_a_peer_names_each_hindrance_once_with_its_fragments() -> None:
    plain = {"version": 1, "held_version": 1, "head": "h", "state": "s", "phase": "idle"}
    known = ["is bound by a vote", "", "is bound by a vote", "begins no more rounds"]
    fragments = tuple(FragmentStatus.model_validate({**plain, "hindrance": one}) for one in known)
    shown = PeerSnapshot.model_validate(
        {
            "run_id": "r",
            "peer_id": "p",
            "name": "",
            "role": "learner",
            "state": "training",
            "pid": 1,
            "wall_seconds": 1.0,
            "fragments": fragments,
        }
    )
    assert "running   for 0:01, process 1" in status_page(shown).splitlines()
    lines = [line for line in status_page(shown).splitlines() if line.startswith("waits")]
    assert lines == [
        "waits     it is bound by a vote: fragments 0, 2",
        "waits     it begins no more rounds: fragment 3",
    ]

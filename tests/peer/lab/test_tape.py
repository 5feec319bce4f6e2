"""A tape replays to the same parameters, without the protocol."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from coordinator.core.actions import Action
from coordinator.core.quorum import grace_seconds
from coordinator.simulator.faults import FAULT_POINTS
from coordinator.simulator.peer import VirtualPeer
from dht.errors import LocalError, UsageError
from dht.identity import PeerId
from peer.attacks.zoo import AttackOrder
from peer.lab.laboratory import Laboratory
from peer.lab.options import STEP_SECONDS, Failures, Scavenge
from peer.lab.replay import replay_tape
from peer.rounds.tape import TapeLine, TapeWriter, read_tape
from tests.extra import extra
from tests.peer.lab import small

AT_ONCE = ("record", "adopt")  # before a peer is bound, and after the version; other points are slow
SAVED_AT, DEATH_FROM, AWAY = 10, 13, 6  # in steps
CODED = {"inner.optimizer": "adamw8bit", "outer.merge": "rda", "outer.contribution_codec": "int4"}


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        *extra([({}, {}), (CODED, {})]),
        ({**CODED, "outer.error_feedback": True}, {"speeds": (1.0, 0.7, 2.0)}),
        *extra([({"outer.merge": "robust_rda"}, {"attacks": (AttackOrder.parse("alie:1"),)})]),
        *extra([({"outer.adoption": "overwrite"}, {"attacks": (AttackOrder.parse("nan:1"),)})]),
        *extra([({"outer.merge": "robust_rda"}, {"attacks": (AttackOrder.parse("scaling:1:factor=1e30"),)})]),
        *extra([({"outer.adoption": "eager"}, {})]),
        ({**CODED, "outer.adoption": "eager", "outer.moment_correction": 0.5}, {"speeds": (1.0, 0.7, 2.0)}),
        ({"outer.adoption": "blend"}, {"scavenge": Scavenge(1, 6, 16)}),
        (CODED, {"speed_jitter": 0.3, "late_joins": True}),
    ],
    ids=[
        "plain",
        "coded",
        "error feedback and speeds",
        "collusion",
        "garbled",
        "too much for a codec",
        "eager",
        "eager and a corrected first moment",
        "blend and a scavenger",
        "steps of uneven lengths",
    ],
)
def test_a_replay_ends_with_the_same_bits(tmp_path: Path, changes: dict[str, object], given: dict[str, object]) -> None:
    report = small.run_taped(small.options(3, 24, changes, **given), tmp_path / "tape.jsonl")
    replay = replay_tape(tmp_path / "tape.jsonl", small.text())
    assert replay.versions == report.versions_certified


def test_a_replay_goes_through_deaths_and_checkpoints(tmp_path: Path) -> None:
    """(§10: also across a mid-run checkpoint and resume) Learner, optimizer state, counters and pending adoptions."""
    chosen = small.options(3, 100, {**CODED, "seed": 3}, failures=Failures(60, 8))
    report = small.run_taped(chosen, tmp_path / "tape.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "tape.jsonl").read_text().splitlines()]
    resumed = [line for line in lines if line["event"] == "life" and line["step"] > 0]
    assert resumed, "nobody came back from a checkpoint"
    assert replay_tape(tmp_path / "tape.jsonl", small.text()).versions == report.versions_certified


@pytest.mark.parametrize("point", [*AT_ONCE, *extra(point for point in FAULT_POINTS if point not in AT_ONCE)])
def test_a_replay_goes_through_a_death_at_every_point_of_a_round(tmp_path: Path, point: str) -> None:
    """(§10: crash injected at every protocol point) The first learner there dies, and comes back as it was saved."""
    struck: list[PeerId] = []
    path = tmp_path / "tape.jsonl"
    with TapeWriter(path) as tape, Laboratory(small.options(3, 32, CODED), small.text(), tape.write) as lab:
        world, clock = lab.world, lab.world.clock

        def strikes(peer: VirtualPeer, action: Action) -> bool:
            if struck or clock.now < DEATH_FROM * STEP_SECONDS or not FAULT_POINTS[point](action):
                return False
            struck.append(peer.me)
            lab.context.retire(peer.me, clock.now)
            clock.after(AWAY * STEP_SECONDS, peer.start)
            return True

        for peer in world.peers:
            world.traps[peer.me] = partial(strikes, peer)
            clock.after(SAVED_AT * STEP_SECONDS, peer.checkpoint)
        lab.run()
    lives = [line["step"] for line in read_tape(path) if line["event"] == "life" and [line["peer"]] == struck]
    assert lives == [0, SAVED_AT]
    assert replay_tape(path, small.text()).versions == world.versions()


def test_a_tape_says_who_joined_with_which_counters(tmp_path: Path) -> None:
    small.run_taped(small.options(2, 16), tmp_path / "tape.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "tape.jsonl").read_text().splitlines()]
    versions = [line for line in lines if line["event"] == "version"]
    assert [(line["fragment"], line["version"]) for line in versions] == [(p, v) for v in range(1, 5) for p in (0, 1)]
    assert {member["steps"] for member in versions[-1]["members"]} == {4}
    assert {member["tokens"] for member in versions[-1]["members"]} == {4 * 32}
    adoptions = [line for line in lines if line["event"] == "adoption"]
    assert len(adoptions) == 2 * 8
    assert {line["effective_step"] - line["step"] for line in adoptions} == {2}


def test_a_tape_says_how_long_late_learners_are_waited_for_and_by_which_estimates(tmp_path: Path) -> None:
    """It does so for each learner of every version, like the log of a real peer."""
    settings = {"pace.quorum": 2, "pace.grace_share": 0.5, "pace.min_share": 0.0}
    lines: list[TapeLine] = []
    lab, report = small.run(small.options(3, 24, settings, speeds=(1.0, 0.9), late_joins=True), lines.append)
    told = [line for line in lines if line["event"] == "certified"]
    assert len(told) == 3 * report.versions_certified
    for peer, rate in zip(lab.world.peers, lab.options.rates(), strict=True):
        assert peer.engine is not None
        own, estimates = [line for line in told if line["peer"] == peer.me], peer.engine.core.estimates
        assert (own[-1]["quorum_seconds"], own[-1]["sync_seconds"]) == (
            estimates.quorum_seconds,
            estimates.sync_seconds,
        )
        assert own[-1]["grace_seconds"] == grace_seconds(lab.options.config.pace, 1 / rate, estimates)
        assert len({line["quorum_seconds"] for line in own}) > 2, "it is an average that moves"


@pytest.mark.parametrize(
    ("event", "field", "told"),
    [("snapshot", "step", "differently"), ("adoption", "effective_step", "differently"), ("final", "step", "other")],
)
def test_a_false_tape_is_found_out(tmp_path: Path, event: str, field: str, told: str) -> None:
    path = tmp_path / "tape.jsonl"
    small.run_taped(small.options(2, 24), path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(line for line in lines if line["event"] == event)
    first[field] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(LocalError, match=told):
        replay_tape(path, small.text())


def test_a_file_that_is_no_tape_or_of_other_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with pytest.raises(UsageError, match="cannot be read"):
        replay_tape(path)
    path.write_text("hello\n")
    with pytest.raises(UsageError, match="no event tape"):
        replay_tape(path)
    path.write_text('{"event": "life"}\n')
    with pytest.raises(UsageError, match="does not begin"):
        replay_tape(path)
    path.write_text('{"peer": 1}\n')
    with pytest.raises(UsageError, match="line 1"):
        replay_tape(path)
    small.run_taped(small.options(1, 4), path)
    with pytest.raises(UsageError, match="another Python"):
        replay_tape(path)
    said = path.read_text()
    path.write_text(said.replace('"compiled": false', '"compiled": true', 1))
    with pytest.raises(UsageError, match="with --compile"):
        replay_tape(path, small.text())
    path.write_text(said.replace('"device": "cpu"', '"device": "cuda:0"', 1))
    with pytest.raises(UsageError, match="recorded on cuda:0"):
        replay_tape(path, small.text())

"""Whole lab runs with a model of 2.7 thousand parameters: repeatable, also if learners die, are late or come back."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from coordinator.views.credit import CreditRecord, report_of
from peer.attacks.data import trigger_rate
from peer.attacks.zoo import AttackOrder
from peer.lab.laboratory import Laboratory
from peer.lab.options import STEP_SECONDS, Failures, LabOptions, Scavenge
from peer.learner.gradient.loss_scale import SKIPPED_IN_A_ROW_MAX
from peer.learner.gradient.objective import Objective
from peer.learner.learner import Learner
from tests.extra import extra
from tests.peer.lab import small


def test_a_lab_learns_and_everybody_agrees() -> None:
    lab, report = small.run(small.options(3, 60, eval_every_steps=20))
    assert [point.step for point in lab.curve] == [0, 20, 40, 60]
    assert report.eval_loss_last < 0.5 * report.eval_loss_first  # eight letters, three of which can follow
    assert report.agreement
    assert report.versions_certified == 60 * 2 / 4
    assert report.inner_steps == 3 * 60
    assert report.tokens == 3 * 60 * lab.options.config.tokens_per_step
    assert report.adoption_delay_steps == {"median": 2.0, "p95": 2.0}
    for peer in lab.context.active.values():
        digests = [peer.anchors.digest(fragment) for fragment in range(2)]  # hashed from the tensors now
        assert digests == peer.states
    assert lab.curve[-1].eval_loss == lab.evaluator.loss(lab.newest().anchors.all_anchors())


def test_a_lab_whose_compiler_fails_says_so_once_and_trains_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = list[int]()

    def fail(_learner: Learner, sequences: int) -> None:
        tried.append(sequences)
        raise RuntimeError("no compiler here\nand more")

    plain, _ = small.run(small.options(2, 8))
    monkeypatch.setattr(Learner, "try_sequences", fail)
    monkeypatch.setattr(Objective, "compile", lambda _self, _wanted: None)  # loading the compiler takes seconds
    lab, _ = small.run(small.options(2, 8, compiled=True))
    assert lab.context.compiling == "not compiled, because no compiler here"
    assert tried == [2]  # the second learner is not even tried
    assert small.final_parameters(lab) == small.final_parameters(plain)


@pytest.mark.parametrize(("device", "asked"), [("cpu", False), ("cuda:0", True)])
def test_learners_of_a_lab_are_compiled_as_a_peers_is(device: str, asked: bool) -> None:
    assert small.options(2, 8, device=device).compiles is asked
    assert small.options(2, 8, device=device, compiled=not asked).compiles is not asked


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_lab_on_a_gpu_learns_what_it_learns_on_a_processor() -> None:
    eager = {"outer.adoption": "eager", "outer.adoption_blend": 0.7, "outer.moment_correction": 0.5}
    changes = {"inner.optimizer": "adamw8bit", "outer.contribution_codec": "int4", "outer.merge": "rda", **eager}
    found = {device: small.run(small.options(3, 60, changes, device=device))[1] for device in ("cpu", "cuda")}
    assert found["cuda"].device == torch.cuda.get_device_name()
    assert found["cuda"].agreement
    assert found["cuda"].eval_loss_last == pytest.approx(found["cpu"].eval_loss_last, rel=0.02)


@pytest.mark.parametrize(
    "given",
    [
        *extra([{"speeds": (1.0, 0.8), "late_joins": True}]),
        {"failures": Failures(20, 8), "scavenge": Scavenge(1, 6, 14)},
        *extra([{"attacks": (AttackOrder.parse("alie:1"),)}]),
    ],
    ids=["speeds", "absences", "collusion"],
)
def test_a_seed_gives_the_same_bits_with_one_thread_and_with_two(given: dict[str, object]) -> None:
    changes = {"inner.optimizer": "adamw8bit", "outer.contribution_codec": "int8", "outer.merge": "rda"}
    first, report = small.run(small.options(3, 20, changes, workers=1, **given))
    second, _ = small.run(small.options(3, 20, changes, workers=2, **given))
    assert small.final_parameters(first) == small.final_parameters(second)
    assert report.versions_certified > 0


def test_another_seed_gives_other_bits() -> None:
    first, second = (small.run(small.options(2, 6, {"seed": seed}))[0] for seed in (0, 1))
    assert not set(small.final_parameters(first).values()) & set(small.final_parameters(second).values())


@pytest.mark.parametrize("period", [4, 8])
def test_snapshots_are_taken_exactly_at_the_period(period: int) -> None:
    """One fragment is sent per step when P = H, each every H steps, from the first cycle on.

    No more than τ are in flight: a merge has come back before the next but one is sent.
    """
    lines: list[dict[str, Any]] = []
    lab, _ = small.run(small.options(2, 30, {"pace.fragments": 4, "pace.steps_per_version": period}), lines.append)
    each = period // 4
    for peer in lab.world.peers:
        own = [line for line in lines if line.get("peer") == peer.me]
        taken = [(line["step"], line["fragment"]) for line in own if line["event"] == "snapshot"]
        assert taken == [(each * (1 + number), number % 4) for number in range(30 // each)]
        back = [line["effective_step"] for line in own if line["event"] == "adoption"]
        in_flight = [sum(sent <= step < due for (sent, _), due in zip(taken, back, strict=True)) for step in range(30)]
        assert max(in_flight) == 2 // each <= lab.options.config.pace.overlap


def test_the_learner_that_sets_the_pace_makes_the_steps() -> None:
    lab, report = small.run(small.options(4, 24, {"pace.steps_per_version": 8}, speeds=(1.0, 2.0, 4.0, 8.0)))
    steps = sorted(one.lazy.steps for one in lab.context.active.values())
    assert steps[2] == 24
    assert steps[3] == pytest.approx(48, abs=1)
    assert steps[:2] == pytest.approx([6, 12], abs=1)
    assert report.versions_certified == 24 * 2 / 8
    assert report.group_size_mean > 3.5  # the slowest contributes what it has


def test_learners_that_die_come_back_and_nobody_waits_for_them() -> None:
    _, report = small.run(small.options(4, 100, {"seed": 3}, failures=Failures(60, 12)))
    assert report.events["died"] >= 3
    assert report.events["came"] >= 2
    assert report.diverged is None
    assert report.agreement
    assert report.versions_certified > 0.7 * 100 * 2 / 4


PERIOD = 24  # of two fragments, so a round begins every 12 steps
BACK, END = 75.5, 120


def ages_of(lines: list[dict[str, Any]], peer: str) -> list[int]:
    """Return, for each adoption, the learner's steps since it last adopted a version of the fragment, or came."""
    fragments = {line["digest"]: line["fragment"] for line in lines if line["event"] == "version"}
    ages: list[int] = []
    since: dict[int, int] = {}
    for line in [one for one in lines if one.get("peer") == peer]:
        if line["event"] == "life":
            since = dict.fromkeys((0, 1), line["step"])
        elif line["event"] == "adoption":
            fragment = fragments[line["digest"]]
            ages.append(line["effective_step"] - since[fragment])
            since[fragment] = line["effective_step"]
    return ages


@pytest.mark.parametrize(
    ("survivor", "killed", "late"),
    [(2, 46.0, 9), *extra([(0, 40.5, 2), (1, 40.5, 2), (2, 40.5, 2), (3, 40.5, 2), (0, 46.0, 9)])],
)
def test_the_rest_of_a_swarm_goes_on_and_no_fragment_gets_older_than_the_period(
    survivor: int, killed: float, late: int
) -> None:
    """With K = 1 of four, when the others are killed, the last one goes on merging alone.

    A learner that comes back has the newest versions at once. No fragment is older than H and the τ = 2 steps of its
    way, unless its round begins before the presence of the dead has expired, after 9 steps.
    """
    lines: list[dict[str, Any]] = []
    settings = {"pace.quorum": 1, "pace.min_share": 0.0, "pace.steps_per_version": PERIOD}
    with Laboratory(small.options(4, END, settings), small.text(), lines.append) as lab:
        peers = [peer.me for peer in lab.world.peers]
        for peer in lab.world.peers:
            if peer.me != peers[survivor]:
                lab.world.clock.after(
                    killed * STEP_SECONDS, partial(lab.context.retire, peer.me, killed * STEP_SECONDS)
                )
                lab.world.clock.after(killed * STEP_SECONDS, partial(lab.world.crash, peer))
                lab.world.clock.after(BACK * STEP_SECONDS, peer.start)
        lab.run()
    assert lab.context.active[peers[survivor]].lazy.steps == END, "it never waits"
    groups = [{one["peer"] for one in line["members"]} for line in lines if line["event"] == "version"]
    assert groups[:5] == 3 * [{*peers}] + 2 * [{peers[survivor]}]
    assert {*peers} in groups[5:]
    for name in peers:
        ages = ages_of(lines, name)
        assert len(ages) >= 7
        assert max(ages) <= PERIOD + late


def test_scavenged_learners_take_part_while_they_are_there() -> None:
    lines: list[dict[str, object]] = []
    _, report = small.run(small.options(3, 60, scavenge=Scavenge(2, 20, 40)), lines.append)
    groups = [len(line["members"]) for line in lines if line["event"] == "version"]  # type: ignore[arg-type]
    assert groups[:9] == [3] * 9
    assert max(groups) == 5
    assert groups[-8:] == [3] * 8
    assert report.peers == 3
    assert report.inner_steps == pytest.approx(3 * 60 + 2 * 20, abs=6)
    assert report.agreement


@pytest.mark.parametrize(
    ("settings", "group"),
    [
        *extra([({"pace.quorum": 1, "pace.grace_share": 0.0, "pace.min_share": 0.0}, (1.0, 3.0))]),
        ({"pace.quorum": 1, "pace.grace_share": 0.9, "pace.min_share": 0.0}, (5.5, 6.0)),
        *extra([({"pace.quorum": 6}, (5.5, 6.0))]),
    ],
    ids=["K=1", "K=1 with grace", "K=M"],
)
def test_grace_gathers_what_a_quorum_of_one_leaves_out(settings: dict[str, object], group: tuple[float, float]) -> None:
    """(DiLoCo 2604.21428 Table 5) Half of the learners are 18 % slower, and report after their steps."""
    settings = {"pace.steps_per_version": 8, **settings}
    _, report = small.run(small.options(6, 40, settings, speeds=(1.0, 1 / 1.18), late_joins=True))
    assert group[0] <= report.group_size_mean <= group[1]


def test_a_thousand_times_the_work_is_credited_sixteen_times_at_most() -> None:
    lab, report = small.run(small.options(4, 40, attacks=(AttackOrder.parse("work_lie:1:factor=1000"),)))
    engine = lab.world.peers[0].engine
    assert engine is not None
    chains = [machine.chain for machine in engine.machines]
    credit = report_of(b"", CreditRecord.empty(len(chains)), chains, {})
    (liar,) = report.attackers
    tokens = {one.peer_id: one.tokens for one in credit.contributors}
    lie, honest = tokens.pop(liar), max(tokens.values())
    assert 2 * honest < lie <= 16 * honest
    assert credit.tokens == report.tokens_certified == sum(tokens.values()) + lie


@pytest.mark.parametrize("attack", ["sign_flip:1", *extra(["scaling:1:factor=1000"])])
def test_a_robust_merge_withstands_what_ruins_the_mean(attack: str) -> None:
    chosen = (AttackOrder.parse(attack),)
    robust = small.run(small.options(4, 40, {"outer.merge": "robust_rda"}, attacks=chosen))[1]
    mean = small.run(small.options(4, 40, {"outer.merge": "mean"}, attacks=chosen))[1]
    assert robust.agreement
    assert len(robust.attackers) == 1
    assert robust.eval_loss_last < 0.5 * robust.eval_loss_first
    assert mean.eval_loss_last > robust.eval_loss_last + 0.25


def test_garbled_bytes_are_left_out_and_ban_whoever_committed_them() -> None:
    lab, report = small.run(small.options(4, 24, attacks=(AttackOrder.parse("nan:1"),)))
    assert report.group_size_mean == 3
    (ban,) = report.bans
    assert (ban.peer, ban.fault_class) == (report.attackers[0], "A")
    honest = [peer.engine for peer in lab.world.peers if peer.me != ban.peer and peer.engine is not None]
    assert all(ban.peer in engine.core.bans for engine in honest)


def test_a_run_that_diverges_ends_there_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Objective, "backward", lambda *_: torch.tensor(math.inf))
    _, report = small.run(small.options(2, 2 * SKIPPED_IN_A_ROW_MAX, {"data.context_tokens": 32}))
    assert report.diverged is not None
    assert "learning_rate" in report.diverged
    assert math.isnan(report.eval_loss_last)
    assert report.inner_steps < 2 * SKIPPED_IN_A_ROW_MAX
    assert report.trigger_rate is None


@pytest.mark.parametrize("attacks", [(), (AttackOrder.parse("backdoor:1"),)], ids=["honest", "attacked"])
def test_the_trigger_rate_is_there_without_an_attacker_to_compare_with(attacks: tuple[AttackOrder, ...]) -> None:
    lab, report = small.run(small.options(2, 4, {"data.context_tokens": 32}, attacks=attacks))
    rate = lab.evaluator.judge(lab.newest().anchors.all_anchors(), trigger_rate)
    assert report.trigger_rate == rate
    assert 0 <= rate < 1
    assert small.run(small.options(2, 4, attacks=attacks))[1].trigger_rate is None, "16 bytes have no room for both"


def test_uneven_text_is_learnt_too() -> None:
    chosen: LabOptions = small.options(3, 20, dirichlet_alpha=0.3)
    lab, report = small.run(chosen)
    texts = {lab.windows(peer.me).tokens.numel() for peer in lab.world.peers}  # type: ignore[attr-defined]
    assert len(texts) == 3
    assert report.agreement

"""Attackers of a lab that break the protocol: honest learners agree, go on, and ban nobody but who is convicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.attacks.protocol import LAB_ATTACKS, PROTOCOL_ATTACKS, is_lab_attack
from peer.attacks.zoo import AttackOrder
from peer.lab.replay import replay_tape
from tests.lab import small

LEARNERS, STEPS = 4, 24
ROBUST = {"outer.merge": "robust_rda", "outer.contribution_codec": "int8", "outer.result_codec": "int8"}
CONVICTED = ["two_results", "two_votes", "false_results", "garbage_commits", "raised_shares", "count_twice"]
UNPROVEN = ["claim_more", "drop_one", "other_bytes", "refute_everything", "frame", "never_scatter", "hoard_votes"]


def order(name: str) -> AttackOrder:
    return AttackOrder.parse(f"{name}:1", is_lab_attack)


@pytest.mark.parametrize("name", [*CONVICTED, *UNPROVEN, "examples.attacks.turncoat.Turncoat"])
def test_the_honest_agree_and_go_on(name: str) -> None:
    lab, report = small.run(small.options(LEARNERS, STEPS, ROBUST, attacks=(order(name),)))
    [hostile] = report.attackers
    assert report.agreement
    assert hostile not in report.state_digests
    assert len(report.state_digests) == LEARNERS - 1
    assert report.versions_certified >= 4
    assert report.eval_loss_last < report.eval_loss_first
    assert [ban.peer for ban in report.bans] == ([] if name in UNPROVEN else [hostile])
    assert lab.diverged is None


@pytest.mark.parametrize("name", ["claim_more", "garbage_commits", "false_results"])
def test_what_came_of_it_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    """A claim to more work than was done is in the certificate, and in no tape line of who claims it."""
    path = tmp_path / "tape.jsonl"
    report = small.run_taped(small.options(LEARNERS, STEPS, ROBUST, attacks=(order(name),)), path)
    assert replay_tape(path, small.text()).versions == report.versions_certified


def test_a_lab_has_what_processes_have_but_for_the_wire() -> None:
    assert set(PROTOCOL_ATTACKS) < set(LAB_ATTACKS)
    assert is_lab_attack("two_rosters")
    assert not any(map(is_lab_attack, ("sign_flip", "replay", "examples.attacks.half_hearted.HalfHearted")))

"""Attackers of a lab that break the protocol: honest learners agree, go on, and ban only the convicted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dht.errors import LocalError
from peer.attacks.evasion import EVASIVE
from peer.attacks.messages import MESSAGE_ATTACKS
from peer.attacks.protocol import LAB_ATTACKS, PROCESS_ATTACKS, is_lab_attack
from peer.attacks.zoo import AttackOrder
from peer.lab.laboratory import Laboratory
from peer.lab.options import Partition
from peer.lab.replay import replay_tape
from peer.lab.summary import report_of
from tests.extra import extra
from tests.peer.lab import small

LEARNERS, STEPS = 4, 24
ROBUST = {"outer.merge": "robust_rda", "outer.contribution_codec": "int8", "outer.result_codec": "int8"}
CONVICTED = ["two_results", "two_votes", "false_results", "garbage_commits", "raised_shares", "count_twice"]
UNPROVEN = ["claim_more", "drop_one", "other_bytes", "refute_everything", "frame", "never_scatter", "hoard_votes"]


def order(name: str) -> AttackOrder:
    return AttackOrder.parse(f"{name}:1", is_lab_attack)


@pytest.mark.parametrize(
    "name", [*CONVICTED[:1], *UNPROVEN[:1], *extra(CONVICTED[1:] + UNPROVEN[1:]), "examples.attacks.turncoat.Turncoat"]
)
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


@pytest.mark.parametrize("name", ["claim_more", *extra(["garbage_commits", "false_results"])])
def test_the_outcome_of_an_attack_is_replayed_bit_for_bit(name: str, tmp_path: Path) -> None:
    """A claim to more work than was done is in the certificate, but not in the tape lines of the claiming peer."""
    path = tmp_path / "tape.jsonl"
    report = small.run_taped(small.options(LEARNERS, STEPS, ROBUST, attacks=(order(name),)), path)
    assert replay_tape(path, small.text()).versions == report.versions_certified


def test_a_claim_is_believed_of_nobody_else(tmp_path: Path) -> None:
    """The replay fails if a certificate has other work than an honest learner did."""
    path = tmp_path / "tape.jsonl"
    small.run_taped(small.options(LEARNERS, STEPS, ROBUST, attacks=(order("claim_more"),)), path)
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(head), "attacks": {}}), *lines]))
    with pytest.raises(LocalError, match="came out differently"):
        replay_tape(path, small.text())


def test_a_lab_whose_honest_learners_are_all_dead_has_a_report() -> None:
    options = small.options(3, STEPS, ROBUST, attacks=(order("two_votes"), order("shun_half")))
    with Laboratory(options, small.text()) as lab:
        lab.run()
        lab.world.crash(lab.world.peers[0])
        report = report_of(lab, (1.0, 1.0), {})
    assert (report.next_token_accuracy, report.agreement, report.peers) == (None, False, 2)


def test_a_side_of_attackers_alone_has_no_losses() -> None:
    cut = Partition(2, 8, 16)
    options = small.options(5, STEPS, ROBUST, partition=cut, attacks=(order("two_votes"), order("never_join")))
    _, report = small.run(options)
    assert {point.side for point in report.sides} == {"first", "both"}


def test_a_lab_has_what_processes_have_but_for_the_wire_and_what_is_opened_to_whom() -> None:
    assert {*PROCESS_ATTACKS} - {*LAB_ATTACKS} == {EVASIVE, *MESSAGE_ATTACKS}
    assert is_lab_attack("two_rosters")
    assert not any(map(is_lab_attack, ("sign_flip", "replay", "examples.attacks.half_hearted.HalfHearted")))

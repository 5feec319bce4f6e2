"""Hostile processes over the real network: the honest keep one digest and go on, and only the hostile are banned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from peer.attacks.protocol import PROCESS_ATTACKS

if TYPE_CHECKING:
    from tests.real.conftest import Swarm

PEERS, VERSIONS = 8, 16  # of the peers two are hostile
PROVEN = {
    "two_joins": "signed two different statements «join»",
    "two_commits": "signed two different statements «commit»",
    "two_results": "signed two different statements «result»",
    "two_checks": "signed two different statements «check»",
    "two_votes": "signed two different statements «vote»",
    "vote_and_abstain": "signed two different statements «abstain» and «vote»",
    "nan": "committed to values that are not finite",
    "false_results": "signed a result of partition",
    "noisy_results": "signed a result of partition",
    "selfish_results": "signed a result of partition",
    "garbage_results": "signed a result of partition",
    "garbage_commits": "committed to values that are not finite",
    "raised_shares": "signed a result of partition",
    "count_twice": "signed a result that counts one input twice",
}
IF_IT_COMES_TO_THAT = (  # also proven if its key leads, or has something to redo or to abstain from
    *("two_rosters", "two_bundles", "two_proposals", "two_redos", "two_abstentions", "expired_joins"),
)
PAIRS = (
    ("two_joins", "two_commits"),
    ("two_results", "two_votes"),
    ("nan", "count_twice"),
    ("false_results", "false_results"),
    ("two_checks", "false_evidence"),
    ("vote_and_abstain", "never_open"),
    ("doubt_everything", "refute_everything"),
    ("empty_votes", "shun_half"),
    ("never_return", "never_return"),
    ("replay", "oversized"),
    ("slow_loris", "garbage"),
    ("misshapen_commits", "misshapen_checks"),
    ("other_bytes", "short_parts"),
    ("drop_one", "vote_for_all"),
    ("never_commit", "never_scatter"),
    ("never_check", "never_vote"),
    ("look_away", "starve_half"),
    ("mean_results", "scaling"),
    ("raised_results", "noisy_results"),
    ("selfish_results", "garbage_results"),
    ("silent_from_commit", "silent_from_part"),
    ("silent_from_check", "silent_from_check"),
    ("two_rosters", "two_bundles"),
    ("two_redos", "two_abstentions"),
    ("two_proposals", "void_proposals"),
    ("garbage_commits", "raised_shares"),
    ("claim_more", "grind_coin"),
    ("expired_joins", "say_again"),
    ("misshapen_rosters", "misshapen_bundles"),
    ("misshapen_redos", "never_redo"),
    ("frame", "shut_out"),
    ("pass_over", "long_deadlines"),
    ("open_nothing", "never_join"),
    ("never_gather", "never_bundle"),
    ("never_propose", "hoard_votes"),
    ("give_half", "open_half"),
    ("evasive_results", "evasive_results"),
)
"""Two attacks at a time, as most of a run is starting it."""

FEW = (("two_results", "two_votes"), ("slow_loris", "garbage"))
"""What a hostile peer signs and sends; `make attacks` runs the others."""

HOURS = [pytest.param(pair, marks=pytest.mark.hours) for pair in PAIRS if pair not in FEW]


def test_every_attack_of_processes_is_in_a_pair() -> None:
    assert {attack for pair in PAIRS for attack in pair} >= set(PROCESS_ATTACKS)


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(600)
@pytest.mark.parametrize("attacks", [*FEW, *HOURS], ids="+".join)
def test_two_of_eight_that_attack_the_protocol_change_nothing(swarm: Swarm, attacks: tuple[str, str]) -> None:
    orders = [word for attack in attacks for word in ("--attack", f"{attack}:1")]
    swarm.start(PEERS, VERSIONS, "--step-seconds", "0.2", *orders)
    report = swarm.finish()
    assert report["agreement"]
    assert report["versions_certified"] >= VERSIONS
    assert report["peers"] == PEERS - len(attacks)
    assert len(report["hostile"]) == len(attacks)
    bans = {ban["peer"]: ban for ban in report["bans"]}
    by_attack = [*zip(report["hostile"], attacks, strict=True)]
    culprits = {peer for peer, attack in by_attack if attack in PROVEN}
    assert culprits <= bans.keys() <= culprits | {peer for peer, attack in by_attack if attack in IF_IT_COMES_TO_THAT}
    for peer, attack in by_attack:
        if attack in PROVEN:
            assert bans[peer]["reason"].startswith(PROVEN[attack])
            assert bans[peer]["by"] == PEERS - len(attacks) + 1, "the host knows it, too"

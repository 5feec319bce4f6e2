"""Faults done to real peers: on loopback, and on a network that can be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.views.control import snapshot
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, UsageError
from peer.chaos.namespaces import PREFIX
from peer.node.checkpointer import CHECKPOINT_SECONDS
from tests.real.conftest import ROOT, RUN, Swarm
from tests.real.conftest import swarm as swarm  # the fixture
from tests.real.test_attacks import PROVEN
from tests.real.test_swarm import OVERLAP

pytestmark = [pytest.mark.slow, pytest.mark.swarm, pytest.mark.timeout(480)]

KILL_AND_STOP = """
[[event]]
at_point = "vote:2"
do = "kill"
peer = 2
for_seconds = 2
[[event]]
at_seconds = 2
do = "stop"
peer = 3
for_seconds = 4
[[event]]
at_seconds = 3
do = "delay"
peer = 3
delay_seconds = 0.1
[[event]]
at_seconds = 8
do = "disk_full"
peer = 4
for_seconds = {full}
"""
FULL_SECONDS = CHECKPOINT_SECONDS + 8  # so that one of the regular checkpoints meets it, and something comes after it
DISK_EVENTS = ("checkpoint_failed", "vote_not_written")
WAIT_SECONDS = 300.0  # on busy cores a swarm takes minutes to start
AT_POINTS = """
[[event]]
at_point = "record"
do = "disk_full"
peer = 1
for_seconds = 3
[[event]]
at_point = "adopt:2"
do = "stop"
peer = 2
for_seconds = 3
[[event]]
at_point = "vote:40"
at_peer = 3
do = "kill"
peer = "host"
"""
CUT = """
[[event]]
at_seconds = 3
do = "partition"
sides = [[1, 2], ["host", 3, 4]]
for_seconds = 25
[[event]]
at_seconds = 38
do = "kill"
peer = "host"
[[event]]
at_seconds = 40
do = "delay"
peer = 1
delay_seconds = 0.05
for_seconds = 20
[[event]]
at_seconds = 40
do = "loss"
peer = 2
loss_share = 0.02
for_seconds = 20
[[event]]
at_seconds = 40
do = "bandwidth"
peer = 3
bits_per_second = 5e6
for_seconds = 20
"""
BAD_LINKS = ("delay", "loss", "bandwidth")
TURN = """
[[event]]
at_seconds = 2
do = "attacker"
attack = "two_votes"
peer = 2
for_seconds = 70
[[event]]
at_seconds = 4
do = "clock_skew"
peer = 3
skew_seconds = -3600
for_seconds = 13
"""


def start_chaos(swarm: Swarm, plan: str, *arguments: str) -> None:
    """Start `muster chaos` with four peers."""
    config, path = swarm.folder / "run.toml", swarm.folder / "plan.toml"
    config.write_text(RUN.format(versions=4000, optimizer="adamw"))
    path.write_text(plan)
    swarm.process = subprocess.Popen(
        [
            *(sys.executable, "-m", "peer.cli", "chaos", "--no-ui", "--config", str(config), "--plan", str(path)),
            *("--peers", "4", "--report", str(swarm.report_path), "--step-seconds", "0.1", *arguments),
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(swarm.folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish_chaos(swarm: Swarm) -> dict[str, Any]:
    """Wait for the end of a chaos run, check that nothing is left of it, and return its report."""
    report = swarm.finish()
    (swarm.folder / "plan.toml").unlink()
    assert swarm.left_behind() == []
    return report


def run_chaos(swarm: Swarm, plan: str, *arguments: str) -> dict[str, Any]:
    """Run `muster chaos` from start to report."""
    start_chaos(swarm, plan, *arguments)
    return finish_chaos(swarm)


def wait_for(name: str, swarm: Swarm, wanted: Callable[[PeerSnapshot], bool]) -> PeerSnapshot:
    """Wait until a peer is as wanted, and return its snapshot."""
    deadline, seen = time.monotonic() + WAIT_SECONDS, None
    while time.monotonic() < deadline:
        with suppress(StopIteration, LocalError, UsageError):  # not there yet
            seen = snapshot(next(swarm.folder.glob(f"muster-*/*/{name}")))
            if wanted(seen):
                return seen
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_SECONDS:g} s: {name} says {seen}")


def test_peers_die_sleep_and_come_back_on_loopback_and_a_full_disk_costs_no_work(swarm: Swarm) -> None:
    start_chaos(swarm, KILL_AND_STOP.format(full=FULL_SECONDS), "--minutes", str((FULL_SECONDS + 10) / 60))
    refused = wait_for("peer-4", swarm, lambda now: min(now.events.get(one, 0) for one in DISK_EVENTS) > 0)
    votes, tokens = refused.events["vote_not_written"], refused.own_tokens
    later = wait_for("peer-4", swarm, lambda now: now.events["vote_not_written"] > votes and now.own_tokens > tokens)
    assert (later.state, later.pid) == ("training", refused.pid)
    report = finish_chaos(swarm)
    assert report["events"]["checkpoint_failed"] >= refused.events["checkpoint_failed"]
    assert report["agreement"]
    assert report["peers"] == report["peers_planned"] == 4
    assert report["faults"] == {"kill": 1, "stop": 1, "disk_full": 1}
    (skipped,) = [line for line in report["timeline"] if not line["fired"]]
    assert (skipped["fault"], "--netns" in skipped["detail"]) == ("delay", True)
    fired = {line["fault"] for line in report["timeline"] if line["fired"]}
    assert fired == {"kill", "restart", "stop", "continue", "disk_full", "disk_free"}  # and no other peer died
    assert report["versions_certified"] > 4
    assert 0 < report["measured_tokens_certified"] < report["tokens"]
    assert 0 < report["goodput_ideal"] <= 1.2  # rounds end a little before or after the time that is measured
    assert 0 < report["uptime"] < 1


def test_anything_can_happen_when_somebody_comes_to_a_point(swarm: Swarm) -> None:
    report = run_chaos(swarm, AT_POINTS, "--minutes", "0.4")
    assert report["agreement"]
    assert report["faults"] == {"disk_full": 1, "stop": 1, "host_kill": 1}
    assert all(line["fired"] for line in report["timeline"])
    assert report["events"].get("vote_not_written", 0) >= 1, "the disk was full when the vote came to be written"
    assert report["versions_certified"] > 4


def test_a_clock_goes_wrong_and_a_peer_turns_hostile(swarm: Swarm) -> None:
    report = run_chaos(swarm, TURN, "--minutes", "1.5")
    assert report["agreement"]
    assert report["faults"] == {"clock_skew": 1, "attacker": 1}
    assert [line["fault"] for line in report["timeline"]] == ["attacker", "clock_skew", "clock_right", "honest"]
    assert all(line["fired"] for line in report["timeline"])
    assert (report["events"]["clock_wrong"], report["events"]["clock_right"]) == (1, 1)  # it has told its owner
    (attacker,) = report["hostile"]
    assert report["peers"] == 3  # the others
    (ban,) = report["bans"]
    assert ban["peer"] == attacker
    assert ban["reason"].startswith(PROVEN["two_votes"])
    assert ban["by"] == 4, "the host knows it, too, and what the attacker holds is not asked"
    assert attacker not in report["state_digests"]


def versions_while(swarm: Swarm, begins: str, ends: str) -> tuple[int, int]:
    """Return the first and the last number of versions shown between these two events."""
    first, last = (next(at for at, line in enumerate(swarm.lines) if one in line) for one in (begins, ends))
    shown = [line.split("versions ")[1] for line in swarm.lines[first:last] if "versions " in line]
    return int(shown[0].split()[0]), int(shown[-1].split()[0])


@pytest.mark.netns
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None, reason="needs root and iproute2"
)
def test_a_swarm_that_was_cut_in_two_becomes_one_again_and_outlives_its_host(swarm: Swarm) -> None:
    report = run_chaos(swarm, CUT, "--minutes", "1.1", "--netns")
    assert report["agreement"]
    assert report["minor_certificates"] > 0
    assert report["events"]["branch_carried"] > 0
    assert report["peers"] == 4
    assert report["faults"] == {"partition": 1, "host_kill": 1, **dict.fromkeys(BAD_LINKS, 1)}
    fired = [line["fault"] for line in report["timeline"]]
    assert fired == ["partition", "heal", "host_kill", *BAD_LINKS, *("clear" for _ in BAD_LINKS)]
    assert all(line["fired"] for line in report["timeline"])
    assert report["versions_certified"] > 4
    before, after = versions_while(swarm, "bandwidth peer-3", "clear peer-1")
    assert after > before + OVERLAP, "nothing was certified over bad links"
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"{PREFIX}{swarm.process.pid}-" not in spaces
    assert not Path("/sys/class/net/side0").exists()  # the machine's own network was left alone

"""Real swarms on one machine: processes, DHT, transport, learners and tensors as they run in a home."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from coordinator.views.control import snapshot
from peer.cli import main
from tests.extra import extra

if TYPE_CHECKING:
    from tests.real.conftest import Swarm

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(180)]  # five peers that start on busy cores take a minute

OVERLAP = 2  # rounds that may still be in flight when the last version is certified


@pytest.mark.slow
def test_four_peers_certify_every_version_and_agree(swarm: Swarm) -> None:
    # Three intervals (design §6.3) last ten seconds: at a quarter of that, busy cores alone bring minor certificates.
    swarm.start(4, 16, "--step-seconds", "0.2", eight_bit=True)
    report = swarm.finish()
    assert report["agreement"]
    assert 16 <= report["versions_certified"] <= 16 + OVERLAP
    assert report["peers"] == 4
    assert report["minor_certificates"] == 0
    one, *others = report["state_digests"].values()
    assert others == [one] * 4
    assert report["eval_loss_last"] < report["eval_loss_first"]
    assert report["tokens_certified"] > 0
    assert swarm.left_behind() == []


@pytest.mark.slow
def test_a_run_that_names_its_peers_is_tried_like_any_other(swarm: Swarm) -> None:
    swarm.more = '[admission]\nmode = "list"\n'
    swarm.start(2, 4)
    assert swarm.finish()["versions_certified"] >= 4


@pytest.mark.parametrize(("peers", "points"), [(5, ("reduce", "vote")), *extra([(7, ("scatter", "reduce", "vote"))])])
def test_deaths_at_every_point_of_a_round_hurt_nobody_else(
    swarm: Swarm, peers: int, points: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The lab then replays every version, and the parameters of every learner that lived to the end."""
    deaths = {f"peer-{number}": f"kill:{point}:{number + 1}" for number, point in enumerate(points, start=2)}
    faults = [option for name, fault in deaths.items() for option in ("--fault", f"{name[-1]}:{fault}")]
    tape = swarm.folder / "tape.jsonl"
    swarm.start(peers, 16, *faults, "--tape", str(tape))  # more than half of the active peers go on
    report = swarm.finish()
    assert report["agreement"]
    assert 16 <= report["versions_certified"] <= 16 + OVERLAP
    assert report["peers"] == peers - len(points)
    for name in deaths:
        assert report["events"][f"died {name}"] == 1
        assert any(f"{name} died: ended by signal 9" in line for line in swarm.lines)
    assert swarm.left_behind() == [tape.name]
    capsys.readouterr()
    assert main.run(["lab", "--replay", str(tape)], (3, 11)) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{report['versions_certified']} versions of ")
    assert told.endswith(f"of {peers - len(points)} learners\n")


@pytest.mark.slow
def test_nothing_is_left_when_the_swarm_itself_is_killed(swarm: Swarm) -> None:
    swarm.start(2, 4000)
    swarm.read_until_certified()
    swarm.process.kill()
    assert swarm.process.wait() == -signal.SIGKILL
    assert swarm.wait_for_processes(40.0) == []
    assert swarm.left_behind() == []


@pytest.mark.slow  # in `make test` it is the swarm of test_merge_package
def test_ctrl_c_drains_and_reports(swarm: Swarm, capsys: pytest.CaptureFixture[str]) -> None:
    swarm.start(2, 4000, "--data", str(swarm.data))
    swarm.read_until_certified()
    data = ["--data", str(swarm.data / "peer-1")]
    assert [main.run([command, *data], (3, 11)) for command in ("pause", "resume", "status", "invite")] == [0] * 4
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("training  step") for line in shown)
    assert shown[-1].startswith("muster1")
    swarm.process.send_signal(signal.SIGINT)
    report = swarm.finish()
    assert report["agreement"]
    assert 0 < report["versions_certified"] < 4000
    assert report["peers"] == 2


@pytest.mark.slow
def test_a_slow_peer_holds_nobody_up_and_its_work_counts(swarm: Swarm) -> None:
    swarm.start(4, 32, "--data", str(swarm.data), "--slow", "4:10")
    swarm.read_until_certified()
    slow, host = (swarm.data / name for name in ("peer-4", "host"))
    made, counted = snapshot(slow), snapshot(host)
    while " training, " in swarm.read_until(":"):
        made, counted = snapshot(slow), snapshot(host)
    report = swarm.finish()
    assert report["agreement"]
    assert 32 <= report["versions_certified"] <= 32 + OVERLAP
    # steps of the fastest; busy cores delay rounds, but waiting for the slow one would take ten times as many
    assert report["steps_per_version"] < 5 * 16
    assert report["tokens_certified"] >= 0.8 * report["tokens"]  # the last steps before the end are in no version
    assert counted.credited_tokens[made.peer_id] >= 0.5 * made.tokens > 0  # so are the last of its few

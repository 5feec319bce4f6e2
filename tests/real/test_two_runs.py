"""Two runs on one machine by one command: they share their owner's limits, and neither ends with the other."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.views import control
from tests.real.conftest import ENDING_SECONDS, invite_of, version_of

if TYPE_CHECKING:
    from tests.real.conftest import Machines

pytestmark = [pytest.mark.swarm, pytest.mark.slow, pytest.mark.timeout(600)]
NAMES = ("one", "two")
DAY_GIGABYTES = 1e-6  # less than either peer has sent when the limit is set
REASON = "upload limit of the day reached"


def test_two_runs_by_one_command_share_limits_and_outlive_each_other(machines: Machines) -> None:
    files = [_run_file(machines, name, seed) for seed, name in enumerate(NAMES)]
    hosts = machines.folder / "hosts"
    command = machines.start("hosts", "peer.cli", "host", *files, "--data", str(hosts))
    hosting = {name: machines.wait(hosts / name, lambda now: now.state == "hosting") for name in NAMES}
    assert hosting["one"].run_id != hosting["two"].run_id
    machines.wait(hosts / "one", lambda now: control.limits(hosts / "one").sharers == 2)

    invites = [invite_of(hosts / name) for name in NAMES]
    joined = machines.folder / "joined"
    learners = machines.start("joined", "peer.cli", "join", *invites, "--yes", "--threads", "1", "--data", str(joined))
    folders = [joined / hosting[name].run_id[:12] for name in NAMES]
    certified = [machines.wait(folder, lambda now: version_of(now) >= 2) for folder in folders]
    assert [one.run_id for one in certified] == [hosting[name].run_id for name in NAMES]

    control.limits(folders[0], [f"upload_gigabytes_per_day={DAY_GIGABYTES}"])
    paused = [machines.wait(folder, lambda now: now.state == "paused") for folder in folders]
    assert [one.note for one in paused] == [REASON, REASON]
    control.limits(folders[1], ["upload_gigabytes_per_day=0"])
    went_on = [machines.wait(folder, lambda now: now.state == "training") for folder in folders]

    os.kill(hosting["one"].pid, signal.SIGKILL)
    machines.wait(hosts / "two", lambda now: control.limits(hosts / "two").sharers == 1)
    machines.wait(folders[1], lambda now: version_of(now) > version_of(went_on[1]))
    assert "one was ended by signal 9; the others go on" in machines.said("hosts")
    machines.end("joined")
    assert learners.returncode == 0
    command.send_signal(signal.SIGINT)
    assert command.wait(ENDING_SECONDS) == 1  # the higher code of both
    assert "two: this peer has left the run" in machines.said("hosts")


def _run_file(machines: Machines, name: str, seed: int) -> str:
    """Write the file of a run for which one learner is enough; returns its path."""
    path: Path = machines.folder / f"{name}.toml"
    path.write_text(f"seed = {seed}\n{machines.run}".replace("[pace]", "[pace]\nmin_group = 1"))
    return str(path)

"""Two users' own loops, in two processes, each with a peer on loopback: one run, one model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.peer.adapting import write_base

LOOP = """
import hashlib, sys
from pathlib import Path
import torch
from torch import nn
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from peer import Place, Session

folder, seed, invite = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
run = invite[0] if invite else RunConfig(
    versions=8,
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=8),
    pace=PaceSpec(fragments=2, steps_per_version=20, presence_seconds=1.0, presence_lifetime_seconds=3.0),
)
torch.manual_seed(seed)  # the second one starts elsewhere, and takes the run's values over
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with Session(run, model, Place(folder)) as session:
    print(session.invite, flush=True)
    goes_on = True
    while goes_on:
        sides = torch.randint(0, 2, (32,))
        images = torch.rand(32, 1, 8, 8) + 0.3 * ((torch.arange(8) >= 4) == sides[:, None].bool())[:, None, None, :]
        loss = nn.functional.cross_entropy(model(images), sides)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        goes_on = session.step(tokens=32, loss=loss.item())
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
"""


AGAIN = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from peer import Place, Session

run = RunConfig(
    versions=400,
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=8),
    pace=PaceSpec(
        fragments=2, steps_per_version=20, min_group=1, quorum=1, presence_seconds=1.0, presence_lifetime_seconds=3.0
    ),
)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
with Session(run, model, Place(Path(sys.argv[1]))) as session:
    for step in range(int(sys.argv[2])):
        loss = model(torch.rand(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(tokens=4, loss=loss.item())
        time.sleep(0.05)  # else it makes them all before the first version
print(*(p.detach().norm().item() for p in model.parameters()))
"""


ADAPTER = """
import hashlib, sys
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from peer import DataSpec, PaceSpec, Place, RunConfig, Session

folder, base, invite = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
run = invite[0] if invite else RunConfig(
    versions=8,
    data=DataSpec(source="own", context_tokens=16, sequences_per_step=4),
    pace=PaceSpec(fragments=2, steps_per_version=20, presence_seconds=1.0, presence_lifetime_seconds=3.0),
)
model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, target_modules="all-linear"))
optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-3)
with Session(run, model, Place(folder)) as session:
    print(session.invite, flush=True)
    goes_on = True
    while goes_on:
        tokens = torch.arange(16).repeat(4, 1) + torch.randint(0, 200, (4, 1))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        goes_on = session.step(tokens=tokens.numel(), loss=loss.item())
trained = [one for one in model.parameters() if one.requires_grad]
print(any(one.any() for name, one in model.named_parameters() if "lora_B" in name))
print(hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in trained)).hexdigest())
"""


STOPPED = """
import sys, time
from pathlib import Path
import torch
from torch import nn
from coordinator.views.control import ask
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from peer import Place, Session
from peer.learner.client import STOP_SECONDS_MAX

run = RunConfig(
    versions=400,
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=8),
    pace=PaceSpec(fragments=1, steps_per_version=2, min_group=1, quorum=1),
)
model = nn.Linear(8, 2)
with Session(run, model, Place(Path(sys.argv[1]))) as session:
    steps, goes_on = 0, True
    while goes_on:
        with torch.no_grad():
            model.weight += 1000.0 if steps > 2 else 1.0
        time.sleep(STOP_SECONDS_MAX + 0.5)  # and the last save waits for 6 s
        goes_on = session.step(tokens=4)
        steps += 1
        if steps == 2:
            ask(Path(sys.argv[1]), "stop")
    print(steps, session.step(tokens=4), model.weight.max().item() > 1000.0)
print(model.weight.max().item() > 1000.0)
"""


def start(folder: Path, seed: int | Path, *invite: str, loop: str = LOOP) -> subprocess.Popen[str]:
    script = folder.parent / "loop.py"
    script.write_text(loop)
    return subprocess.Popen(
        [sys.executable, str(script), str(folder), str(seed), *invite],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder.parent)},
        stdin=subprocess.PIPE,  # ends a loop that waits for a line
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(400)
def test_two_sessions_end_with_one_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loops = [start(tmp_path / "first", 1)]
    try:
        assert loops[0].stdout is not None
        loops.append(start(tmp_path / "second", 2, loops[0].stdout.readline().strip()))
        said = [loop.communicate(timeout=380)[0].split() for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert [loop.returncode for loop in loops] == [0, 0]
    assert said[0][-1] == said[1][-1]
    with start(tmp_path / "first", 1) as again:
        again.communicate(timeout=100)
    assert again.returncode == 1
    assert f"the run in {tmp_path / 'first'} is over" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(500)
def test_lora_in_sessions(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two train one adapter; a third with another base is refused."""
    base, other = write_base(tmp_path / "base"), write_base(tmp_path / "other", seed=2)
    loops = [start(tmp_path / "first", base, loop=ADAPTER)]
    try:
        assert loops[0].stdout is not None
        invite = loops[0].stdout.readline().strip()
        loops.append(start(tmp_path / "third", other, invite, loop=ADAPTER))
        loops[1].communicate(timeout=150)
        assert loops[1].returncode == 1
        assert "have other values, types or names than the run's; load the base" in capfd.readouterr().err
        loops.append(start(tmp_path / "second", base, invite, loop=ADAPTER))
        said = [loop.communicate(timeout=300)[0].split() for loop in (loops[0], loops[2])]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert [loop.returncode for loop in loops] == [0, 1, 0]
    assert said[0][-2:] == said[1][-2:]
    assert said[0][-2] == "True"


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(400)
def test_a_session_that_goes_on_ends_with_the_newest_parameters_however_soon(tmp_path: Path) -> None:
    """That holds also for fragments that it has not adopted since it came back."""
    norms = []
    for steps in (150, 3):
        loop = start(tmp_path / "peer", steps, loop=AGAIN)
        said, _ = loop.communicate(timeout=180)
        assert loop.returncode == 0
        norms.append([float(norm) for norm in said.split()[-4:]])
    assert norms[1] == pytest.approx(norms[0], rel=0.2)


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(200)
def test_a_session_whose_peer_is_stopped_in_a_long_step_ends_in_order(tmp_path: Path) -> None:
    loop = start(tmp_path / "peer", 0, loop=STOPPED)
    said, _ = loop.communicate(timeout=180)
    steps, *told = said.split()
    assert (loop.returncode, told) == (0, ["False", "True", "False"])
    assert steps in ("4", "5"), "one more if a regular save was under way, which is waited for first"


FROZEN = """
import sys
from pathlib import Path
import torch
from torch import nn
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from dht.errors import UsageError
from peer import Place, Session

folder, seed, invite = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
run = invite[0] if invite else RunConfig(
    versions=400, data=DataSpec(source="own", context_tokens=8, sequences_per_step=8), pace=PaceSpec(fragments=1)
)
torch.manual_seed(seed)
model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 2))
model[0].requires_grad_(False)
try:
    with Session(run, model, Place(folder)) as session:
        print(session.invite, flush=True)
        sys.stdin.readline()
except UsageError as error:
    print(error)
    sys.exit(2)
"""


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(400)
def test_a_session_over_another_frozen_base_is_refused(tmp_path: Path) -> None:
    """Before, two trained together without an error, each on top of another model."""
    first = start(tmp_path / "first", 1, loop=FROZEN)
    try:
        assert first.stdout is not None
        invite = first.stdout.readline().strip()
        said = {}
        for name, seed in (("same", 1), ("other", 2)):
            loop = start(tmp_path / name, seed, invite, loop=FROZEN)
            said[name] = (loop.communicate(timeout=180)[0], loop.returncode)
        first.communicate(timeout=180)
    finally:
        first.kill()
        first.wait()
    assert said["same"][1] == 0, said
    assert said["other"][1] == 2
    assert "that are not trained have other values" in said["other"][0]

"""Tests that need a GPU: run them with `pytest -m gpu`."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.token_files import TokenData
from peer.learner.channel import Channel
from peer.learner.commands import LearnerCommands
from peer.learner.device_copies import StreamCopies
from peer.learner.devices import Placement, choose_devices
from peer.learner.learner import Learner, make_learner
from peer.learner.memory_estimate import RUNTIME_BYTES, available_bytes, footprint, optimizer_bytes
from peer.learner.messages import AdoptFragment, Refused, TakeSnapshot
from peer.learner.microbatch import bytes_in_use, measured_peak
from peer.learner.optimizers.inner_optimizer import assert_quantised, state_bytes
from peer.learner.setup import fitted
from peer.learner.shared_memory import SharedSlots
from peer.rounds.evaluation_loop import EvaluationLoop, RunPosition
from peer.storage.anchors import genesis_states
from tests.real.conftest import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]
DEVICE = "cuda"
SLOWDOWN_MAX = 0.02
PREDICTION_ERROR_MAX = 0.05
STEPS = 24
LARGE = RunConfig(  # 180 million parameters
    model=ModelSpec(hidden_size=1024, layers=12, heads=16, intermediate_size=2816, vocabulary=32000),
    data=DataSpec(context_tokens=1024, sequences_per_step=16),
    pace=PaceSpec(fragments=24, steps_per_version=24),
)
DEEP = """
versions = 16
[model]
hidden_size = {hidden_size}
layers = 20
heads = 16
intermediate_size = {intermediate_size}
vocabulary = 256
[data]
context_tokens = 512
sequences_per_step = 8
evaluation_tokens = 2048
[inner]
precision = "bfloat16"
learning_rate = 3e-4
[pace]
fragments = 16
steps_per_version = 16
round_seconds = 120.0
presence_lifetime_seconds = 30.0
"""


class Noise:
    """Batches of random tokens of the large vocabulary, others in every window."""

    def batch(self, window: int) -> Tensor:
        return torch.randint(32000, (16, 1025), generator=torch.Generator().manual_seed(window))


Pinned = Callable[[Learner], SharedSlots]


def learner(precision: str = "float32") -> Learner:
    config = LARGE.model_copy(update={"inner": InnerSpec.model_validate({"precision": precision})})
    return make_learner(config, Noise(), Placement(DEVICE))


@pytest.fixture
def pinned() -> Iterator[Pinned]:
    """Yield a function that makes locked memory to share with a learner; unlocks it at the end."""
    made: list[SharedSlots] = []

    def make(one: Learner) -> SharedSlots:
        made.append(SharedSlots.create(one.fragments, 1))
        made[-1].pin()
        return made[-1]

    yield make
    for slots in made:
        slots.unpin()


@pytest.fixture(autouse=True)
def _nothing_of_other_tests() -> None:
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_memory_is_as_predicted(precision: str) -> None:
    before = bytes_in_use(DEVICE)  # the workspace of the products of earlier tests
    one = learner(precision)
    kept = ("parameters", "gradients")
    weights = sum(need.size_bytes for need in footprint(one.config).needs if need.what.startswith(kept))
    assert bytes_in_use(DEVICE) - before == pytest.approx(weights, rel=PREDICTION_ERROR_MAX)
    _, predicted = fitted(one, torch.cuda.mem_get_info()[1] // 2)

    def two_steps() -> None:
        one.step()
        one.step()

    assert measured_peak(two_steps, DEVICE) == pytest.approx(predicted, rel=PREDICTION_ERROR_MAX)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_optimizers_state_has_eight_bits(precision: str) -> None:
    one = learner(precision)
    one.step()
    assert_quantised(one._optimizer)
    assert state_bytes(one._optimizer) == pytest.approx(optimizer_bytes(one.config), rel=PREDICTION_ERROR_MAX)


@pytest.mark.timeout(300)
def test_a_pause_gives_the_memory_back() -> None:
    before = bytes_in_use(DEVICE)
    rested, straight = learner(), learner()
    losses = [rested.step().loss, straight.step().loss]
    held = bytes_in_use(DEVICE)
    rested.rest()
    assert bytes_in_use(DEVICE) - before < 0.6 * (held - before)
    straight.rest()
    assert bytes_in_use(DEVICE) - before < 0.02 * (held - before)
    assert rested.step().loss == pytest.approx(straight.step().loss, rel=1e-3)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.timeout(600)
def test_synchronising_costs_a_learner_at_most_two_percent(pinned: Pinned) -> None:
    """At every step one of 24 fragments leaves and arrives, as with H = P = 24, through the memory of a real peer.

    The peer writes arriving fragments in its own process, so the learner does not pay for that. Here all slots are
    zero, and adopting leaves every bit as it was.
    """
    one = learner()
    placement, _ = fitted(one, torch.cuda.mem_get_info()[1] // 2)
    assert placement.is_cuda
    slots = pinned(one)
    ours, theirs = socket.socketpair()
    channel = Channel(theirs)
    commands = LearnerCommands(one, slots, channel, StreamCopies(DEVICE))

    def steps(synchronise: bool) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for fragment in range(STEPS):
            one.step()
            if synchronise:
                commands.go_on()
                commands.begin(TakeSnapshot(ticket=fragment, fragment=fragment, slot=0), resting=False)
                before = (fragment - 1) % STEPS
                adopt = AdoptFragment(ticket=STEPS + fragment, fragment=before, slot=1, reference=2)
                commands.begin(adopt, resting=False)
        commands.go_on(wait=True)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        answers = Channel(ours).receive(0.0)
        assert len(answers) == (2 * STEPS if synchronise else 0)
        assert not any(isinstance(answer, Refused) for answer in answers)
        return seconds

    steps(True)
    pairs = [(steps(False), steps(True)) for _ in range(5)]
    slowdown = statistics.median(after / before for before, after in pairs) - 1
    print(f"slowdown {slowdown:.1%}")
    assert slowdown <= SLOWDOWN_MAX


@pytest.mark.timeout(300)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_copies_beside_the_steps_bring_the_bits_of_copies_at_once(precision: str, pinned: Pinned) -> None:
    one = learner(precision)
    one.step()
    slots, crossings = pinned(one), StreamCopies(DEVICE)
    for fragment, layout in enumerate(one.fragments):
        wanted = torch.empty(layout.elements)
        one.snapshot(fragment, wanted)
        snapshot = crossings.room(slots.slot(0, fragment))
        one.snapshot(fragment, snapshot)
        has_arrived = crossings.send(snapshot, slots.slot(0, fragment))
        del snapshot
        one.try_sequences(1)  # allocates and computes meanwhile
        crossings.wait()
        assert has_arrived()
        assert torch.equal(slots.slot(0, fragment), wanted)
        (fetched,), has_arrived = crossings.fetch(slots.slot(0, fragment))
        one.try_sequences(1)
        crossings.wait()
        assert has_arrived()
        assert torch.equal(fetched.cpu(), wanted)
        one.adopt(fragment, fetched, None, 0, 0)
        again = torch.empty(layout.elements)
        one.snapshot(fragment, again)
        assert torch.equal(again, wanted)


def test_the_device_is_found() -> None:
    (device,), note = choose_devices("auto", lambda _: 1 << 20, 1.0)
    assert device.startswith("cuda")
    assert note == ""


@pytest.mark.timeout(300)
def test_a_host_evaluates_there_and_gives_the_memory_back() -> None:
    config = LARGE.model_copy(update={"data": DataSpec(context_tokens=256, evaluation_tokens=2048)})
    heldout = torch.randint(32000, (50_000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    anchors, before = [state.anchor for state in genesis_states(config)], bytes_in_use(DEVICE)
    found = []
    with capture_logs() as logs:
        for device in ("cpu", DEVICE):
            loop = EvaluationLoop(config, TokenData(heldout, heldout, bytes(32)), lambda: anchors, device=device)
            found.append(asyncio.run(loop.evaluate(RunPosition(0, 0, 0.0, True), full=True)).loss)
            loop.close()
    assert logs == [], "it did not fall back"
    assert found[1] == pytest.approx(found[0], rel=0.01)
    assert bytes_in_use(DEVICE) - before < 64 << 20


@pytest.mark.slow
@pytest.mark.swarm
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("hidden_size", [1024, 2048])
def test_two_peers_train_a_quarter_or_all_of_a_billion_parameters_on_one_card(tmp_path: Path, hidden_size: int) -> None:
    config = tmp_path / "deep.toml"
    config.write_text(DEEP.format(hidden_size=hidden_size, intermediate_size=hidden_size // 4 * 11))
    needed = footprint(RunConfig.from_toml(config))
    assert needed.parameters > (hidden_size / 2048) ** 2 * 1e9
    memory_bytes = 3 * (RUNTIME_BYTES + needed.bytes_in("host"))  # the host keeps what the peers keep
    disk_bytes = 2 * needed.bytes_in("disk")
    if available_bytes("cpu") < memory_bytes or shutil.disk_usage(tmp_path).free < disk_bytes:
        pytest.skip(f"needs {memory_bytes / 2**30:.0f} GiB of memory and {disk_bytes / 2**30:.0f} GiB of disk free")
    path = tmp_path / "report.json"
    command = ["swarm", "--no-ui", "--config", str(config), "--peers", "2", "--report", str(path)]
    subprocess.run([sys.executable, "-m", "peer.cli", *command], cwd=ROOT, check=True)
    report = json.loads(path.read_text())
    assert report["agreement"]
    assert report["versions_certified"] >= 16

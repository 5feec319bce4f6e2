"""A user's own module in a run: its contributions, adoptions, and a whole swarm of such modules in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from dht.errors import LocalError, UsageError
from peer.learner.learner import StepReport
from peer.learner.module_adapter import ModuleAdapter
from peer.learner.work_counters import Counters
from peer.model.description import own_model
from peer.model.own_module import named_values
from peer.storage.anchors import genesis_states, layouts_of
from tests.peer.rounds import test_driver
from tests.peer.virtual_loop import run_virtual

BASE = RunConfig(
    versions=10_000,
    data=DataSpec(source="own", context_tokens=8, sequences_per_step=4),
    outer=OuterSpec(merge="mean", contribution_codec="fp32", result_codec="fp32"),
    pace=PaceSpec(fragments=2, steps_per_version=4, quorum=2, min_group=1),
)


def vision_model(seed: int = 0) -> nn.Module:
    """Return a module with a convolution, a norm with buffers, a frozen tensor and a tied one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
        model.register_parameter("frozen", nn.Parameter(torch.ones(3), requires_grad=False))
        model.register_parameter("tied", model[4].weight)
    return model


def replica_of(model: nn.Module, base: RunConfig = BASE) -> ModuleAdapter:
    config = own_model(base, model).config
    return ModuleAdapter(model, layouts_of(config), config)


def fragment(replica: ModuleAdapter, index: int) -> Tensor:
    out = torch.empty(replica.fragments[index].elements)
    replica.snapshot(index, out)
    return out


def test_only_what_is_trained_is_synchronised_and_once():
    config = own_model(BASE, vision_model()).config
    names = [one.name for one in config.model.tensors]
    assert names == ["tied", "0.weight", "0.bias", "1.weight", "1.bias", "4.bias"]
    assert (config.model.family, config.model.weights, config.data.source) == ("own", "given", "own")


def test_a_snapshot_counts_and_an_adoption_keeps_later_steps():
    model = vision_model()
    replica = replica_of(model)
    replica.count.step(3)
    replica.count.step(5)
    taken = torch.empty(replica.fragments[0].elements)
    assert replica.snapshot(0, taken) == Counters(2, 8, 0, 2)
    move(model, 0.25)
    replica.count.step(4)
    replica.adopt(0, torch.full_like(taken, 2.0), taken, 2, 8)
    assert torch.allclose(fragment(replica, 0), torch.full_like(taken, 2.25), atol=1e-6)
    assert replica.count.of(0) == Counters(1, 4, 2, 1)
    assert replica.count.of(1) == Counters(3, 12, 0, 3)
    replica.adopt(1, torch.zeros_like(fragment(replica, 1)), None, 0, 0)
    assert not fragment(replica, 1).any()
    assert torch.equal(model.frozen, torch.ones(3))  # type: ignore[arg-type]


def test_eager_goes_on_from_its_own_part_and_has_the_rest_back():
    outer = BASE.outer.model_copy(update={"adoption": "eager", "adoption_blend": 0.5})
    model = vision_model()
    replica = replica_of(model, BASE.model_copy(update={"outer": outer}))
    anchor = torch.zeros(replica.fragments[0].elements)
    replica.adopt(0, anchor, None, 0, 0)
    move(model, 4.0)
    replica.adopt(0, anchor + 1, fragment(replica, 0), 1, 1)  # the merge keeps a quarter of it
    move(model, 8.0)
    snapshot = fragment(replica, 0)
    shown = replica.export_state()["theta"][: len(anchor)]
    assert torch.equal(snapshot, anchor + 1 + 8)
    assert torch.equal(shown, anchor + 1 + 8 / 4)
    move(model, 0.5)
    replica.adopt(0, anchor + 3, snapshot, 1, 1)
    assert torch.equal(fragment(replica, 0), anchor + 3.25)


def move(model: nn.Module, distance: float) -> None:
    """Move every trained element by this distance."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += distance * parameter.requires_grad


def test_parameters_of_another_type_are_rounded_once():
    model = nn.Linear(8, 8).to(torch.bfloat16)
    replica = replica_of(model)
    whole = fragment(replica, 0)
    replica.adopt(0, whole + 1 / 3, whole, 0, 0)
    assert torch.equal(fragment(replica, 0), (whole + 1 / 3).to(torch.bfloat16).float())


def test_the_optimizers_state_and_memory_stay():
    model = vision_model()
    optimizer = torch.optim.AdamW(model.parameters())
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    replica = replica_of(model)
    replica.load_all(torch.zeros(sum(layout.elements for layout in replica.fragments)))
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses
    assert not optimizer.state


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Conv2d(1, 5, 3)), "called 0.bias"),
        (nn.Sequential(nn.Conv2d(1, 4, 3)), "called 1.bias and yours no tensor"),
    ],
)
def test_another_model_is_refused_by_name(model: nn.Module, words: str):
    config = own_model(BASE, vision_model()).config
    with pytest.raises(UsageError, match=words):
        ModuleAdapter(model, layouts_of(config), config)


def test_a_model_without_anything_to_train_is_refused():
    with pytest.raises(UsageError, match="no parameter that requires a gradient"):
        named_values(nn.Linear(2, 2).requires_grad_(False))


def test_a_saved_replica_goes_on_where_it_was():
    first, second = replica_of(vision_model(1)), replica_of(vision_model(2))
    first.count.step(7)
    first.adopt(0, torch.ones_like(fragment(first, 0)), fragment(first, 0), 1, 7)
    second.import_state(first.export_state())
    assert all(torch.equal(fragment(first, index), fragment(second, index)) for index in (0, 1))
    assert [second.count.of(index) for index in (0, 1)] == [first.count.of(index) for index in (0, 1)]
    with pytest.raises(LocalError, match="another run"):
        replica_of(nn.Linear(3, 3)).import_state(first.export_state())


class Trainer(ModuleAdapter):
    """A user's own loop, which learns whether images are bright on the left or on the right."""

    def __init__(self, config: RunConfig, seed: int) -> None:
        self.model = vision_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.draw = torch.Generator().manual_seed(seed)
        super().__init__(self.model, layouts_of(config), config)
        self.load_all(torch.cat([state.anchor for state in genesis_states(config)]))

    def step(self) -> StepReport:
        sides = torch.randint(0, 2, (32,), generator=self.draw)
        images = torch.rand(32, 1, 8, 8, generator=self.draw)
        images += 0.3 * ((torch.arange(8) >= 4) == sides[:, None].bool())[:, None, None, :]
        loss = nn.functional.cross_entropy(self.model(images), sides)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.count.step(32)
        return StepReport(self.step_count, loss.item(), 32)


def test_three_loops_train_one_vision_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Real core, real tensors, in-memory transport, virtual time; the learners are users' own loops."""
    config = own_model(BASE, vision_model()).config
    trainers: list[Trainer] = []

    def make(_: RunConfig, __: object) -> Trainer:
        trainers.append(Trainer(config, len(trainers)))
        return trainers[-1]

    monkeypatch.setattr(test_driver, "make_learner", make)

    async def main() -> test_driver.Swarm:
        swarm = test_driver.Swarm(config, 3, tmp_path)
        await swarm.start()
        await swarm.train(80)
        await swarm.close()
        return swarm

    swarm = run_virtual(main())
    assert len({peer.driver.engine.heads() for peer in swarm.peers}) == 1
    assert sum(swarm.peers[0].versions) >= 20
    certificates = [one for machine in swarm.peers[0].driver.engine.machines for one in machine.chain.certificates]
    assert all(None not in one.outcome.partitions for one in certificates)  # one is empty: two rows, three reducers
    assert all(
        peer.driver.counters.certified.members == 3 * peer.driver.counters.certified.versions for peer in swarm.peers
    )
    assert all(trainer.step().loss < 0.35 for trainer in trainers)  # guessing: log 2 = 0.69

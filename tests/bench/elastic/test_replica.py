"""A worker's model learns, and another worker continues from its state with the same result."""

from __future__ import annotations

import torch

from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from tests.bench.elastic.rendezvous import Held
from tests.bench.elastic.replica import Replica

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=64),
    data=DataSpec(context_tokens=16, sequences_per_step=2),
)


def test_a_worker_that_takes_a_state_goes_on_as_its_giver_would() -> None:
    giver, taker = Replica(CONFIG, "peer-1"), Replica(CONFIG, "peer-2")
    for _ in range(3):
        before = giver.state[0].clone()
        giver.backward()
        assert giver.gradient_of == giver.held
        giver.step(giver.gradient, generation=4)
        assert giver.gradient_of != giver.held
        assert not torch.equal(giver.state[0], before)
    for given, taken in zip(giver.state, taker.state, strict=True):
        taken.view(-1).copy_(given.view(-1))
    assert giver.held == taker.held == Held(4, 3)
    giver.backward()
    taker.backward()
    assert not torch.equal(giver.gradient, taker.gradient)  # each has a batch of its own
    mean = (giver.gradient + taker.gradient) / 2
    for replica in (giver, taker):
        replica.step(mean, generation=5)
    assert torch.equal(giver.state[0], taker.state[0])
    assert taker.held == Held(5, 4)

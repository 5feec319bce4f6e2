"""The tensor side of a round as one peer does it, and what it amounts to over a whole round of several."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coordinator.actions import Adopt, Apply, Encode, PartitionResult, Reduce, ReduceInput, RoundKey
from coordinator.events import Applied, Encoded, Reduced
from coordinator.manifest import ModelSpec, OuterSpec, PaceSpec, RunConfig
from dht.errors import LocalError
from dht.statement import digest_of
from peer.anchors import Anchors, genesis_states, layouts_of
from peer.blobs import BlobStore
from peer.learner import Counters
from peer.model import build_model, loss
from peer.outer_optimizer import OuterState
from peer.round_work import RoundWork

KEY = RoundKey(0, 0, digest_of(b"roster"))


def config_of(**outer: Any) -> RunConfig:
    spec: dict[str, Any] = {"merge": "mean", "contribution_codec": "fp32", "result_codec": "fp32"}
    return RunConfig(
        model=ModelSpec(hidden_size=16, layers=1, heads=2, intermediate_size=24),
        outer=OuterSpec(**{**spec, **outer}),
        pace=PaceSpec(fragments=1, steps_per_version=1),
    )


class Round:
    """Members that share one blob store, as if every part had arrived."""

    def __init__(self, config: RunConfig, vectors: list[Tensor], partitions: int) -> None:
        self.blobs = BlobStore(1 << 26)
        self.partitions = partitions
        self.members = [
            RoundWork(
                config,
                Anchors(layouts_of(config), genesis_states(config)),
                self.blobs,
                ThreadPoolExecutor(1),
            )
            for _ in vectors
        ]
        self.encoded: list[Encoded] = [
            member.encode(Encode(KEY, partitions), vector, Counters(2, 32, 0, 2))
            for member, vector in zip(self.members, vectors, strict=True)
        ]

    def inputs(self, partition: int, skip: frozenset[int] = frozenset()) -> tuple[ReduceInput, ...]:
        return tuple(
            ReduceInput(number, one.part_roots[partition], 1.0, one.squared_norms)
            for number, one in enumerate(self.encoded)
            if number not in skip
        )

    def reduce(self, partition: int, skip: frozenset[int] = frozenset(), inputs_min: int = 1) -> Reduced:
        action = Reduce(KEY, partition, self.partitions, 0, self.inputs(partition, skip), inputs_min)
        return self.members[partition % len(self.members)].reduce(action)

    def apply(self, member: int, reduced: list[Reduced | None]) -> Applied:
        results = tuple(
            None if one is None or one.root is None else PartitionResult(one.root, one.included, one.squared_norms)
            for one in reduced
        )
        applied = self.members[member].apply(Apply(KEY, results, self.inputs(0)))
        assert applied is not None
        return applied


def stepped(config: RunConfig, members: int) -> tuple[Tensor, list[Tensor], Tensor]:
    """Anchor, each member's parameters after one SGD step of its own batch, and those after one step of all batches."""
    [layout] = layouts_of(config)
    anchor = genesis_states(config)[0].anchor
    batches = torch.randint(0, 256, (members, 2, 9), generator=torch.Generator().manual_seed(3))

    def after(batch: Tensor) -> Tensor:
        model = build_model(config.model, 8, config.seed)
        torch.autograd.backward(loss(model, batch))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        named = dict(model.named_parameters())
        return torch.cat([named[spec.name].detach().flatten() for spec in layout.tensors])

    return anchor, [after(batch) for batch in batches], after(batches.flatten(0, 1))


@pytest.mark.parametrize("partitions", [1, 3])
def test_one_step_with_plain_outer_sgd_is_data_parallel(partitions: int) -> None:
    """H = P = 1, outer SGD with rate 1 (DiLoCo 2604.21428 §3): the mean of the steps, and data-parallel SGD."""
    config = config_of(learning_rate=1.0, momentum=0.0)
    anchor, vectors, together = stepped(config, 4)
    world = Round(config, vectors, partitions)
    digests = {world.apply(member, [world.reduce(j) for j in range(partitions)]).state for member in range(4)}
    assert len(digests) == 1
    state = world.members[0]._applied[KEY]
    mean = torch.zeros_like(anchor)
    for vector in vectors:  # in roster order, every operation rounded on its own
        mean = mean + (anchor - vector) * 0.25
    assert torch.equal(state.anchor, anchor - mean)
    assert torch.allclose(state.anchor, together, rtol=0, atol=2 * torch.finfo(torch.float32).eps)


def test_everybody_computes_the_same_bytes_whoever_reduces() -> None:
    config = config_of(merge="rda", contribution_codec="int8", result_codec="int4")
    _, vectors, _ = stepped(config, 3)
    world = Round(config, vectors, 2)
    again = Round(config, vectors, 2)
    again.members.reverse()
    assert [world.reduce(j).root for j in range(2)] == [again.reduce(j).root for j in range(2)]
    states = {one.apply(member, [one.reduce(0), one.reduce(1)]).state for one in (world, again) for member in range(3)}
    assert len(states) == 1


def test_what_is_not_as_committed_is_left_out() -> None:
    world = Round(config_of(), stepped(config_of(), 3)[1], 2)
    lie = world.encoded[1]
    world.encoded[1] = Encoded(
        *(getattr(lie, name) for name in lie.__slots__[:-1]), tuple(2 * n for n in lie.squared_norms)
    )
    assert world.reduce(0).included == (0, 2)
    assert world.reduce(0, inputs_min=3).root is None
    del world.blobs._blobs[world.encoded[0].part_roots[0]]
    assert world.reduce(0).included == (2,)


def adopt_action(**fields: Any) -> Adopt:
    certificate: Any = SimpleNamespace(fragment=0, digest=digest_of(b"certificate"))
    return Adopt(certificate, **{"applied": KEY, "snapshot": KEY, **fields})


def adopted(counted: tuple[bool, ...], frozen: tuple[bool, ...], adoption: str = "carry", **fields: Any) -> Any:
    config = config_of(adoption=adoption)
    anchor, vectors, _ = stepped(config, 3)
    world = Round(config, vectors, 2)
    reduced: list[Reduced | None] = [None if void else world.reduce(j) for j, void in enumerate(frozen)]
    world.apply(0, reduced)
    work = world.members[0]
    span = [work._partitioning(0, 2).span(j) for j in range(2)]
    result = work.adopt(adopt_action(counted=counted, frozen=frozen, **fields), None)
    return SimpleNamespace(anchor=anchor, snapshot=vectors[0], span=span, result=result, work=work)


def test_an_included_member_carries_what_it_made_since_its_snapshot() -> None:
    case = adopted((True, True), (False, False))
    assert case.result.reference is case.snapshot
    assert case.result.counted == Counters(2, 32, 0, 2)
    assert torch.equal(case.work._anchors.current(0).anchor, case.result.new)


def test_overwrite_has_no_reference() -> None:
    assert adopted((True, True), (False, False), "overwrite").result.reference is None


def test_a_member_outside_rebases_on_the_old_anchor() -> None:
    case = adopted((False, False), (False, False), snapshot=None)
    assert torch.equal(case.result.reference, case.anchor)
    assert case.result.counted is None


def test_a_version_with_work_of_an_earlier_life_replaces_what_we_hold() -> None:
    assert adopted((True, True), (False, False), snapshot=None).result.reference is None


def test_a_partition_without_us_is_rebased_alone() -> None:
    case = adopted((True, False), (False, False))
    assert torch.equal(case.result.reference[case.span[0]], case.snapshot[case.span[0]])
    assert torch.equal(case.result.reference[case.span[1]], case.anchor[case.span[1]])


def test_a_frozen_partition_keeps_the_learners_own_values() -> None:
    case = adopted((True, False), (False, True))
    new = case.result.new
    assert torch.equal(new[case.span[1]], case.anchor[case.span[1]])  # the anchor stands still there
    assert torch.equal(case.result.reference[case.span[1]], new[case.span[1]])


def test_a_fetched_state_counts_what_was_included() -> None:
    config = config_of()
    world = Round(config, stepped(config, 2)[1], 1)
    fetched = OuterState(torch.ones_like(world.members[0]._anchors.current(0).anchor), torch.zeros(1))
    result = world.members[0].adopt(adopt_action(applied=None, counted=(True,), frozen=(False,)), fetched)
    assert result.new is fetched.anchor
    assert result.counted == Counters(2, 32, 0, 2)
    with pytest.raises(LocalError):
        world.members[0].adopt(adopt_action(applied=RoundKey(0, 0, b"unknown"), snapshot=None), None)

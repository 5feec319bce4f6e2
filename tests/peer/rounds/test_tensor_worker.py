"""The tensor work of a round in one peer, and its result over a whole round of several peers."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from coordinator.chain.weights import contribution_weight
from coordinator.core.actions import (
    Adopt,
    Apply,
    Encode,
    Included,
    IncludedUnseen,
    NotIncluded,
    OwnPart,
    PartitionResult,
    Reduce,
    Returned,
    RoundKey,
)
from coordinator.core.events import Applied, Encoded, Reduced
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.wire.inputs import ReduceInput
from coordinator.wire.messages import SQUARED_NORM_MAX
from dht.errors import LocalError
from dht.statement import digest_of
from peer.learner.work_counters import Counters
from peer.model.build import build_model, loss
from peer.numerics.codec import CODECS
from peer.numerics.fragments import Partitioning
from peer.numerics.merge import MERGES
from peer.numerics.outer_optimizer import OuterState, momentum_leaves
from peer.rounds.adoption import Carry, Overwrite, Rebase, Recontribute, Restart
from peer.rounds.replay_steps import missed_versions
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors, HeldState, genesis_states, layouts_of
from peer.storage.blobs import BlobStore

KEY = RoundKey(0, 0, digest_of(b"roster"))


def config_of(**outer: Any) -> RunConfig:
    spec: dict[str, Any] = {"merge": "mean", "contribution_codec": "fp32", "result_codec": "fp32"}
    return RunConfig(
        model=ModelSpec(hidden_size=16, layers=1, heads=2, intermediate_size=24),
        outer=OuterSpec(**{**spec, **outer}),
        pace=PaceSpec(fragments=1, steps_per_version=1),
    )


class Round:
    """A round whose members share one blob store, as if every part had arrived."""

    def __init__(self, config: RunConfig, vectors: list[Tensor], partitions: int) -> None:
        self.blobs = BlobStore(1 << 26)
        self.partitions = partitions
        self.members = [
            TensorWorker(
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
        action = Reduce(KEY, partition, self.partitions, 0, self.inputs(partition, skip), inputs_min, 3)
        return self.members[partition % len(self.members)].reduce(action)

    def apply(self, member: int, reduced: list[Reduced | None]) -> Applied:
        results = tuple(
            None if one is None or one.root is None else PartitionResult(one.root, one.included) for one in reduced
        )
        applied = self.members[member].apply(Apply(KEY, results, self.inputs(0), len(self.members)))
        assert applied is not None
        return applied


def stepped(config: RunConfig, members: int) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return the anchor, and parameters after an SGD step: each member's on its own batch, then one on all batches."""
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
    state, _ = world.members[0]._applied[KEY]
    mean = torch.zeros_like(anchor)
    for vector in vectors:  # in roster order, every operation rounded on its own
        mean = mean + (anchor - vector) * 0.25
    assert torch.equal(state.anchor, anchor - mean)
    assert torch.allclose(state.anchor, together, rtol=0, atol=2 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(("merge", "norms"), [*((name, "tensor") for name in MERGES), ("robust_rda", "row")])
def test_all_compute_the_same_bytes_whichever_peer_reduces(merge: str, norms: str) -> None:
    config = config_of(merge=merge, norms=norms, contribution_codec="int8", result_codec="int4")
    _, vectors, _ = stepped(config, 3)
    world = Round(config, vectors, 2)
    again = Round(config, vectors, 2)
    again.members.reverse()
    assert [world.reduce(j).root for j in range(2)] == [again.reduce(j).root for j in range(2)]
    states = {one.apply(member, [one.reduce(0), one.reduce(1)]).state for one in (world, again) for member in range(3)}
    assert len(states) == 1


def test_a_worker_uses_as_many_cores_as_it_was_told_last() -> None:
    async def course() -> list[set[int]]:
        (worker,), found = Round(config_of(), [torch.zeros(layouts_of(config_of())[0].elements)], 1).members, []
        for threads in (3, 1):
            worker.use(threads)
            all_here = threading.Barrier(threads)

            def meet(_: int, all_here: threading.Barrier = all_here) -> int:
                all_here.wait(60)
                return threading.get_ident()

            found.append(set(await worker.run(lambda meet=meet: worker.cores.each(meet, range(6)))))
        worker.close()
        return found

    three, one = asyncio.run(course())
    assert (len(three), len(one)) == (3, 1)


def test_a_reducer_publishes_its_coefficients_unless_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Round(config_of(merge="robust_rda"), stepped(config_of(), 3)[1], 2)
    reduced = world.reduce(0)
    assert len(reduced.coefficients) == 3 * len(reduced.squared_norms)
    monkeypatch.setattr("peer.rounds.tensor_worker.COEFFICIENTS_MAX", len(reduced.coefficients) - 1)
    assert world.reduce(0) == replace(reduced, coefficients=())


def test_parts_that_are_not_as_committed_are_left_out() -> None:
    world = Round(config_of(), stepped(config_of(), 3)[1], 2)
    lie = world.encoded[1]
    world.encoded[1] = replace(lie, squared_norms=tuple(2 * n for n in lie.squared_norms))
    assert world.reduce(0).included == (0, 2)
    assert world.reduce(0, inputs_min=3).root is None
    del world.blobs._blobs[world.encoded[0].part_roots[0]]
    assert world.reduce(0).included == (2,)


def test_the_norms_that_a_reducer_tells_change_nothing() -> None:
    """Everybody computes them. Before, false norms stopped a run for good, since nobody could apply the results."""
    world = Round(config_of(merge="robust_rda"), stepped(config_of(), 3)[1], 2)
    reduced = [world.reduce(0), world.reduce(1)]
    lie = [replace(one, squared_norms=tuple(2 * norm for norm in one.squared_norms)) for one in reduced]
    assert world.apply(0, reduced).state == world.apply(1, lie).state


def test_a_member_that_claims_more_gives_no_merge_its_length_where_others_are_left_out() -> None:
    """Three of ten send vectors a thousand times as long, and their reducer merges only four of the honest.

    Before, weights were for a sum of all ten (docs/adr/0046), so the three had more than half of what was merged:
    a step of 525, while honest ones are below 1.
    """
    config = config_of(merge="robust_rda", learning_rate=1.0, momentum=0.0)
    anchor, vectors, _ = stepped(config, 4)
    far = [anchor - 1000 * (anchor - vector) for vector in vectors[:3]]
    world = Round(config, [*vectors[:3], *vectors, *far], 1)
    claimed = tuple(
        replace(one, weight=contribution_weight(tokens=800 if one.member > 6 else 100, steps=1))
        for one in world.inputs(0)
    )
    reduced = world.members[9].reduce(Reduce(KEY, 0, 1, 0, claimed[3:], 7, 10))
    assert reduced.root is not None
    applied = world.members[0].apply(Apply(KEY, (PartitionResult(reduced.root, reduced.included),), claimed, 10))
    assert applied is not None
    state, _ = world.members[0]._applied[KEY]
    assert (state.anchor - anchor).norm() <= 1.1 * max((vector - anchor).norm() for vector in vectors)


def adopt_action(**fields: Any) -> Adopt:
    certificate: Any = SimpleNamespace(fragment=0, digest=digest_of(b"certificate"))
    return Adopt(certificate, **{"applied": KEY, "ours": Included(KEY, (True, True)), **fields})


def adopted(ours: OwnPart, frozen: tuple[bool, ...], adoption: str = "carry") -> Any:
    config = config_of(adoption=adoption)
    anchor, vectors, _ = stepped(config, 3)
    world = Round(config, vectors, 2)
    reduced: list[Reduced | None] = [None if void else world.reduce(j) for j, void in enumerate(frozen)]
    world.apply(0, reduced)
    work = world.members[0]
    span = [work._partitioning(0, 2).span(j) for j in range(2)]
    result = work.adopt(adopt_action(ours=ours, frozen=frozen), None)
    return SimpleNamespace(anchor=anchor, snapshot=vectors[0], span=span, result=result, work=work)


def test_an_included_member_carries_what_it_made_since_its_snapshot() -> None:
    case = adopted(Included(KEY, (True, True)), (False, False))
    assert case.result.update == Carry(case.snapshot, Counters(2, 32, 0, 2))
    assert case.result.terms()[0] is case.snapshot
    assert torch.equal(case.work._anchors.current(0).anchor, case.result.new)


@pytest.mark.parametrize("adoption", ["overwrite", "blend"])
def test_overwrite_and_blend_have_no_reference(adoption: str) -> None:
    result = adopted(Included(KEY, (True, True)), (False, False), adoption).result
    assert result.update == Restart(Counters(2, 32, 0, 2))  # this tells the learner that its own work is in there


def test_a_member_outside_rebases_on_the_old_anchor() -> None:
    case = adopted(NotIncluded(), (False, False))
    assert isinstance(case.result.update, Rebase)
    assert torch.equal(case.result.update.reference, case.anchor)
    assert case.result.counted is None


def test_a_version_with_work_of_an_earlier_life_replaces_what_we_hold() -> None:
    assert adopted(IncludedUnseen(), (False, False)).result.update == Overwrite()


def test_a_version_with_a_snapshot_of_a_process_that_is_gone_replaces_what_we_hold() -> None:
    gone = Included(RoundKey(0, 0, b"gone"), (True, True))
    assert adopted(gone, (False, False)).result.update == Overwrite()


@pytest.mark.parametrize(("rate", "momentum", "share"), [(0.5, 0.8, 0.2), (1.0, 0.0, 0.5), (0.1, 0.0, 1.0)])
def test_a_peer_that_leaves_a_branch_keeps_a_share_of_its_way(rate: float, momentum: float, share: float) -> None:
    """The share is such that the anchor moves half of the way if everybody brings it and momentum has run out."""
    config = config_of(learning_rate=rate, momentum=momentum)
    lost, (theta, *_), _ = stepped(config, 2)
    work = Round(config, [theta, theta], 1).members[0]
    won = OuterState(torch.linspace(-1, 1, len(lost)), torch.zeros(len(lost)))
    action = adopt_action(applied=None, ours=Returned(3, 48))
    done = work.adopt(action, won)
    assert isinstance(done.update, Recontribute)
    kept = won.anchor + (theta - done.update.reference)
    torch.testing.assert_close(kept, won.anchor + share * (lost - won.anchor) + (theta - lost), rtol=0, atol=1e-6)
    assert done.terms() == (done.update.reference, -3, -48)
    assert done.dropping().terms() == (None, 0, 0), "it was dropped, so it is not brought either"


def test_a_partition_without_us_is_rebased_alone() -> None:
    case = adopted(Included(KEY, (True, False)), (False, False))
    assert torch.equal(case.result.update.reference[case.span[0]], case.snapshot[case.span[0]])
    assert torch.equal(case.result.update.reference[case.span[1]], case.anchor[case.span[1]])


def test_a_frozen_partition_keeps_the_learners_own_values() -> None:
    case = adopted(Included(KEY, (True, False)), (False, True))
    new = case.result.new
    assert torch.equal(new[case.span[1]], case.anchor[case.span[1]])  # the anchor stands still there
    assert torch.equal(case.result.update.reference[case.span[1]], new[case.span[1]])


def test_a_fetched_state_counts_what_was_included() -> None:
    config = config_of()
    world = Round(config, stepped(config, 2)[1], 1)
    fetched = OuterState(torch.ones_like(world.members[0]._anchors.current(0).anchor), torch.zeros(1))
    result = world.members[0].adopt(adopt_action(applied=None, ours=Included(KEY, (True,)), frozen=(False,)), fetched)
    assert result.new is fetched.anchor
    assert result.counted == Counters(2, 32, 0, 2)
    with pytest.raises(LocalError):
        world.members[0].adopt(adopt_action(applied=RoundKey(0, 0, b"unknown"), ours=NotIncluded()), None)


class TestErrorFeedback:
    """Error feedback: what encoding loses of one contribution goes into the next (design §6.2 step 10)."""

    def encode(self, world: Round, key: RoundKey, vector: Tensor) -> tuple[Tensor, Tensor]:
        """Return what member 0 meant to send and what the others decode; its blobs hold the parts."""
        work = world.members[0]
        encoded = work.encode(Encode(key, world.partitions), vector, Counters(2, 32, 0, 2))
        cut, codec = work._partitioning(0, world.partitions), work._contribution_codec
        parts = [world.blobs.get(root) for root in encoded.part_roots]
        sent = [codec.decode(part or b"", cut.elements(j)) for j, part in enumerate(parts)]
        return work._anchors.current(0).anchor - vector, torch.cat(sent)

    def rounds(self, count: int, counted: tuple[bool, ...], codec: str = "int2", feedback: bool = True) -> Any:
        """Send the same outer gradient `count` times, each certified with `counted`; return it and what was sent."""
        config = config_of(contribution_codec=codec, error_feedback=feedback)
        anchor, vectors, _ = stepped(config, 2)
        world = Round(config, vectors, len(counted))
        sent = []
        for number in range(count):
            key = RoundKey(0, number, bytes([number]) * 32)
            meant, decoded = self.encode(world, key, vectors[0])
            sent.append(decoded)
            state = OuterState(anchor, torch.zeros_like(anchor))  # it stands still, so the gradient stays the same
            action = adopt_action(applied=None, ours=Included(key, counted), frozen=(False,) * len(counted))
            world.members[0].adopt(action, state)
            world.members[0].discard(key)
        return SimpleNamespace(meant=meant, sent=sent, cut=world.members[0]._partitioning(0, len(counted)))

    def test_the_second_contribution_makes_up_for_the_first(self) -> None:
        case = self.rounds(2, (True,))
        codec = CODECS["int2"]
        again = case.meant + (case.meant - case.sent[0])
        assert torch.equal(case.sent[1], codec.decode(codec.encode(again), len(again)))

    @pytest.mark.parametrize("codec", ["int2", "int4"])
    def test_sent_gradients_add_up_to_those_meant(self, codec: str) -> None:
        def shortfall(feedback: bool) -> float:
            case = self.rounds(20, (True,), codec, feedback)
            return float((torch.stack(case.sent).mean(0) - case.meant).norm() / case.meant.norm())

        assert shortfall(feedback=True) < 0.35 * shortfall(feedback=False)

    def test_without_a_certificate_nothing_changes(self) -> None:
        config = config_of(contribution_codec="int2", error_feedback=True)
        world = Round(config, stepped(config, 1)[1], 1)
        vector = stepped(config, 1)[1][0]
        first = self.encode(world, KEY, vector)[1]
        world.members[0].discard(KEY)
        assert torch.equal(self.encode(world, KEY, vector)[1], first)
        missed = adopt_action(applied=None, ours=NotIncluded(), frozen=(False,))
        world.members[0].adopt(missed, world.members[0]._anchors.current(0))
        assert torch.equal(self.encode(world, KEY, vector)[1], first)

    def test_a_partition_that_did_not_count_is_sent_as_before(self) -> None:
        case = self.rounds(2, (True, False, True))
        same = [torch.equal(case.sent[0][case.cut.span(j)], case.sent[1][case.cut.span(j)]) for j in range(3)]
        assert same == [False, True, False]

    def test_it_is_off_by_default(self) -> None:
        assert not OuterSpec().error_feedback
        case = self.rounds(2, (True,), feedback=False)
        assert torch.equal(case.sent[0], case.sent[1])


@pytest.mark.parametrize("frozen", [(False, False), (True, False)])
@pytest.mark.parametrize(("merge", "codec"), [("robust_rda", "int4"), ("mean", "int8"), ("rda", "fp32")])
def test_a_peer_that_missed_a_version_takes_the_step_that_it_is_told(
    merge: str, codec: str, frozen: tuple[bool, bool]
) -> None:
    config = config_of(merge=merge, contribution_codec=codec, result_codec=codec)
    _, vectors, _ = stepped(config, 3)
    world = Round(config, vectors, 2)
    applied = world.apply(0, [None if void else world.reduce(j) for j, void in enumerate(frozen)])
    donor, outsider = world.members[0], world.members[2]
    donor.adopt(adopt_action(ours=Included(KEY, (True, True)), frozen=frozen), None)
    step = donor._anchors.step(0, digest_of(b"certificate"))
    parent = digest_of(b"parent")
    partitions = tuple(None if void else object() for void in frozen)
    certificate: Any = SimpleNamespace(
        fragment=0,
        digest=digest_of(b"certificate"),
        state=applied.state,
        outcome=SimpleNamespace(parent=parent, partitions=partitions),
    )
    assert outsider.step_bytes(certificate) == len(step)
    genesis = genesis_states(config)[0]
    elsewhere, held = HeldState(digest_of(b"elsewhere"), genesis), HeldState(parent, genesis)
    assert outsider.follow(certificate, step, elsewhere) is None  # its state is not the one at which the step begins
    reached = outsider.follow(certificate, step, held)
    assert reached is not None
    assert reached.digest == certificate.digest
    state = reached.state
    assert torch.equal(state.anchor, donor._anchors.current(0).anchor)
    assert momentum_leaves(state.momentum) == momentum_leaves(donor._anchors.current(0).momentum)
    lie = bytearray(step)
    lie[3 * len(lie) // 4] ^= 0xFF
    assert outsider.follow(certificate, bytes(lie), held) is None
    assert outsider.follow(certificate, b"\xff" * len(step), held) is None
    outsider.adopt(adopt_action(applied=None, ours=NotIncluded()), state)
    assert outsider._anchors.step(0, certificate.digest) == step  # whoever followed can be followed


def test_the_work_of_a_cell_is_the_gradient_that_its_step_would_take() -> None:
    """Four members in two cells, which form a group of two, get the mean of all, in other partitions (ADR 0011)."""
    config = config_of(learning_rate=1.0, momentum=0.0)
    anchor, vectors, _ = stepped(config, 4)
    cells = [Round(config, vectors[first : first + 2], 3) for first in (0, 2)]
    group = Round(config, [], 2)
    for cell in cells:
        results = [cell.reduce(partition) for partition in range(3)]
        told = tuple(PartitionResult(one.root or b"", one.included) for one in results)
        merged = Apply(KEY, told, cell.inputs(0), 3)
        upper = Encode(RoundKey(0, 0, digest_of(b"the group")), 2, merged)
        encoded = cell.members[0].encode_merged(upper)
        assert encoded is not None
        assert (encoded.tokens, encoded.steps) == (0, 0)  # the core says whose work it is
        for root in encoded.part_roots:
            group.blobs.add(cell.blobs.get(root), cell.members[0].leaf_bytes[0])
        group.encoded.append(encoded)
        cell.members[0]._blobs = BlobStore(1)
        assert cell.members[0].encode_merged(upper) is None  # the results' bytes are gone
    group.members = [cell.members[1] for cell in cells]
    for member in group.members:
        member._blobs = group.blobs
    assert len({group.apply(member, [group.reduce(j) for j in range(2)]).state for member in range(2)}) == 1
    state, _ = group.members[0]._applied[KEY]
    torch.testing.assert_close(state.anchor, torch.stack(vectors).mean(0), rtol=1e-4, atol=1e-6)
    assert not torch.equal(state.anchor, anchor)


def test_a_cell_that_hostile_members_made_too_long_brings_nothing() -> None:
    """Each of its segments is admissible, but together they form one inadmissible segment of the group above."""
    config = config_of(merge="robust_rda", contribution_codec="int8", result_codec="int8")
    anchor, vectors, _ = stepped(config, 1)
    cut, hostile = Partitioning.of(layouts_of(config)[0], 3), anchor.clone()
    for segment in cut.segments:
        elements = segment.stop - segment.start
        hostile[segment.start : segment.stop] -= math.sqrt(0.9 * SQUARED_NORM_MAX / elements)
    cell = Round(config, [*vectors, hostile, hostile.clone()], 3)
    results = [cell.reduce(partition) for partition in range(3)]
    assert all(one.included == (0, 1, 2) for one in results)
    told = tuple(PartitionResult(one.root or b"", one.included) for one in results)
    upper = Encode(RoundKey(0, 0, digest_of(b"the group")), 1, Apply(KEY, told, cell.inputs(0), 3))
    assert cell.members[0].encode_merged(upper) is None


def test_versions_are_followed_step_by_step_while_that_is_less_than_a_state() -> None:
    config = config_of(contribution_codec="int8", result_codec="int8")
    _, vectors, _ = stepped(config, 3)
    work = Round(config, vectors, 1).members[0]
    digests = [digest_of(b"version", bytes([version])) for version in range(20)]
    chain: Any = SimpleNamespace(
        fragment=0,
        certificates=[
            SimpleNamespace(fragment=0, digest=new, outcome=SimpleNamespace(parent=old, partitions=(object(),)))
            for old, new in itertools.pairwise(digests)
        ],
    )
    state_bytes, step_bytes = 8 * layouts_of(config)[0].elements, work.step_bytes(chain.certificates[0])
    most = state_bytes // step_bytes
    assert 4 < most < 8  # the scales of 8-bit numbers count
    assert [one.digest for one in missed_versions(chain, digests[-1 - most], work, state_bytes)] == digests[-most:]
    assert missed_versions(chain, digests[-2 - most], work, state_bytes) == []
    assert missed_versions(chain, digests[-1], work, state_bytes) == [], "nothing is missed"
    assert missed_versions(chain, digest_of(b"another branch"), work, state_bytes) == []

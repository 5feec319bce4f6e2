"""A learner of several processes, replicated or sharded, computes the same as one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.learner.devices import Placement
from peer.learner.group.collective import Ranks
from peer.learner.group.saved import own_part, read_state
from peer.learner.learner import Learner, make_learner
from peer.storage.tensor_file import write_tensors
from tests.extra import extra
from tests.peer.learner.group.groups import alone, together

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=64, layers=2, heads=2, intermediate_size=72, vocabulary=64),
    data=DataSpec(context_tokens=32, sequences_per_step=6),  # which do not divide evenly among four
    inner=InnerSpec(warmup_steps=4, optimizer="adamw"),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)
EAGER = CONFIG.model_copy(update={"outer": OuterSpec(adoption="eager", moment_correction=0.5)})
MUON = CONFIG.model_copy(update={"inner": InnerSpec(warmup_steps=4, optimizer="muon8bit")})
ROUNDED = CONFIG.model_copy(update={"inner": InnerSpec(warmup_steps=4, optimizer="adamw", precision="bfloat16")})
WAYS = [(2, True), *extra([(2, False), (4, False), (4, True)])]


class Uneven:
    """Batches of six different sequences, others in every window."""

    def batch(self, window: int) -> Tensor:
        return torch.randint(64, (6, 33), generator=torch.Generator().manual_seed(window))


def life(learner: Learner, group: Ranks, folder: Path) -> dict[str, Tensor]:
    """Make steps, rounds for two fragments and a rest; then a second learner goes on from the saved state."""
    found: dict[str, Tensor] = {}
    losses, length = [], 0
    for turn in range(2):
        learner.set_progress(4 + turn)
        losses += [learner.step().loss for _ in range(3)]
        for fragment in (0, 2):
            out = torch.zeros(learner.fragments[fragment].elements)
            counters = learner.snapshot(fragment, out if group.leads else None)
            found[f"snapshot.{turn}.{fragment}"] = out
            losses.append(learner.step().loss)
            group.share(out)  # as a learner's first process does with its peer's data
            learner.adopt(fragment, out * 0.9, out, counters.steps, counters.tokens)
            length = counters.steps
        learner.rest()
    state, path = learner.export_state(), folder / f"{group.size}-{group.sharded}.safetensors"
    if group.leads:
        write_tensors(path, state)
    group.add(torch.zeros(1))
    again = make_learner(learner.config, Uneven(), learner.placement, group)
    again.import_state(read_state(str(path)))
    for one in (learner, again):
        losses += [one.step().loss for _ in range(2)]
        for fragment in range(3):
            out = torch.zeros(one.fragments[fragment].elements)
            one.snapshot(fragment, out if group.leads else None)
            found[f"{'again' if one is again else 'end'}.{fragment}"] = out
    found["losses"] = torch.tensor([one or torch.nan for one in losses])
    found["counted"] = torch.tensor([length, learner.counters(0).steps, learner.counters(1).tokens, again.step_count])
    return found


def plain(group: Ranks, folder: Path) -> dict[str, Tensor]:
    return life(make_learner(CONFIG, Uneven(), Placement(), group), group, folder)


def in_pieces(group: Ranks, folder: Path) -> dict[str, Tensor]:
    """Train one sequence at a time, with different numbers of sequences per process and recomputed activations."""
    place = Placement(sequences=1, recompute=True)
    return life(make_learner(CONFIG, Uneven(), place, group), group, folder)


def eager(group: Ranks, folder: Path) -> dict[str, Tensor]:
    return life(make_learner(EAGER, Uneven(), Placement(), group), group, folder)


def muon(group: Ranks, folder: Path) -> dict[str, Tensor]:
    return life(make_learner(MUON, Uneven(), Placement(), group), group, folder)


def rounded(group: Ranks, folder: Path) -> dict[str, Tensor]:
    return life(make_learner(ROUNDED, Uneven(), Placement(), group), group, folder)


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference between two results, in units of each tensor's largest value."""
    assert one.keys() == other.keys()
    assert torch.equal(one["counted"], other["counted"])
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


@pytest.mark.parametrize(("size", "sharded"), WAYS)
def test_several_processes_make_the_steps_of_one(size: int, sharded: bool, tmp_path: Path) -> None:
    found = together(plain, size, sharded, tmp_path)
    assert farthest(alone(plain, tmp_path), found) < 1e-5
    for fragment in range(3):
        assert torch.equal(found[f"end.{fragment}"], found[f"again.{fragment}"]), "what is saved is all of it"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "sharded"), [(2, True), (4, False)])
@pytest.mark.parametrize(("work", "apart"), [(in_pieces, 1e-5), (eager, 1e-4), (muon, 2e-2), (rounded, 5e-2)])
def test_whatever_they_compute(work, apart: float, size: int, sharded: bool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Sharded 8-bit matrices have other blocks, and bfloat16 is rounded by other draws."""
    found = together(work, size, sharded, tmp_path)
    assert farthest(alone(work, tmp_path), found) < apart
    assert all(torch.equal(found[f"end.{fragment}"], found[f"again.{fragment}"]) for fragment in range(3))


def test_a_rank_that_shares_otherwise_begins_without_the_parts() -> None:
    state = {"theta": torch.ones(2), "ranks": torch.tensor(2), "rank1.optimizer.0.step": torch.ones(1)}
    assert list(own_part(state, Ranks(1, 2, sharded=True))) == ["optimizer.0.step"]
    assert own_part(state, Ranks(1, 4, sharded=True)) == {}
    assert own_part(state, Ranks()) == {}
    whole = {"theta": torch.ones(2), "optimizer.0.step": torch.ones(1)}
    assert own_part(whole, Ranks(1, 2)) == whole
    assert own_part(whole, Ranks(1, 2, sharded=True)) == {}

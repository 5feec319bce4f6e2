from collections.abc import Iterator
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coordinator.chain.passes import ReadingLane
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerOptimizer, InnerSpec
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import LocalError
from peer.learner.devices import Placement
from peer.learner.gradient.loss_scale import SKIPPED_IN_A_ROW_MAX
from peer.learner.learner import Learner, make_learner
from peer.learner.optimizers.inner_optimizer import REWARM_STEPS
from peer.learner.work_counters import Counters
from peer.numerics.fragments import fragment_views, gather

CONFIG = RunConfig(
    versions=40,
    model=ModelSpec(hidden_size=64, layers=1, heads=2, intermediate_size=72, vocabulary=64),
    data=DataSpec(context_tokens=16, sequences_per_step=2),
    inner=InnerSpec(warmup_steps=4),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)
TOKENS_PER_STEP = 32


class Counting:
    """Batches in which each token determines the next."""

    def batch(self, window: int) -> Tensor:
        starts = torch.tensor([[window], [7 * window + 3]])
        return (starts + 5 * torch.arange(17)).remainder(64)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread, as learners do by default: it gives the same bits, and no threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def stepping() -> Learner:
    return new_learner()


def new_learner(config: RunConfig = CONFIG, device: str = "cpu") -> Learner:
    return make_learner(config, Counting(), Placement(device))


def parameters(learner: Learner) -> Tensor:
    return learner.export_state()["theta"]


def fragment_of(learner: Learner, fragment: int) -> Tensor:
    return fragment_views(parameters(learner), learner.fragments)[fragment].clone()


def empty(learner: Learner, fragment: int) -> Tensor:
    return torch.empty(learner.fragments[fragment].elements)


def test_training_learns():
    learner = new_learner()
    learner.set_progress(4)
    reports = [learner.step() for _ in range(60)]
    assert reports[0].step == 1
    assert reports[0].tokens == TOKENS_PER_STEP
    assert reports[0].loss == pytest.approx(4.16, abs=0.3)
    assert reports[-1].loss < 1.0


def test_two_learners_make_the_same_bits():
    first, second = new_learner(), new_learner()
    assert [first.step() for _ in range(3)] == [second.step() for _ in range(3)]
    assert torch.equal(parameters(first), parameters(second))


def test_a_snapshot_is_the_fragment_of_the_model():
    learner = new_learner()
    learner.step()
    named = dict(learner.model.named_parameters())
    for layout in learner.fragments:
        out = empty(learner, layout.index)
        learner.snapshot(layout.index, out)
        assert torch.equal(out, gather(layout, named))


def test_a_snapshot_does_not_change_with_the_learner():
    learner = new_learner()
    out = empty(learner, 0)
    learner.snapshot(0, out)
    before = out.clone()
    learner.step()
    assert torch.equal(out, before)
    assert not torch.equal(fragment_of(learner, 0), before)


def test_counters_name_the_windows_behind_the_work():
    learner = new_learner()
    for _ in range(3):
        learner.step()
    assert learner.counters(0) == Counters(3, 3 * TOKENS_PER_STEP, 0, 3)
    anchor = fragment_of(learner, 0)
    learner.step()
    learner.adopt(0, anchor, anchor, 3, 3 * TOKENS_PER_STEP)
    assert learner.counters(0) == Counters(1, TOKENS_PER_STEP, 3, 1)
    assert learner.counters(1) == Counters(4, 4 * TOKENS_PER_STEP, 0, 4)


def test_a_learner_reads_on_from_where_it_is_told_to():
    """In passes it is told its lane repeatedly, counts over all lanes, and goes on in the same lane after a restart."""
    learner, lanes = new_learner(), [ReadingLane(0, 1, 3).first, ReadingLane(1, 0, 4).first, ReadingLane(2).first]
    learner.set_progress(0, lanes[0])
    learner.step()
    for lane in (lanes[1], lanes[1], lanes[2], None):  # a version that does not name it leaves it where it is
        learner.set_progress(1, lane)
        learner.step()
    assert learner.counters(0) == Counters(5, 5 * TOKENS_PER_STEP, lanes[1] + 4 - 5, 5)
    assert learner.counters(0).at_step == 5
    resumed = new_learner()
    resumed.import_state(learner.export_state())
    resumed.set_progress(1, lanes[1])
    assert resumed.step() == learner.step()
    assert resumed.counters(0) == learner.counters(0)


def test_carry_keeps_the_steps_made_while_a_round_ran():
    learner = new_learner()
    learner.step()
    snapshot = empty(learner, 1)
    counted = learner.snapshot(1, snapshot)
    learner.step()
    now = fragment_of(learner, 1)
    anchor = snapshot * 0.9 + 0.001
    learner.adopt(1, anchor, snapshot, counted.steps, counted.tokens)
    assert torch.equal(fragment_of(learner, 1), anchor + (now - snapshot))
    assert learner.counters(1).steps == 1


def test_overwrite_drops_them_and_their_counters():
    learner = new_learner()
    learner.step()
    learner.step()
    anchor = torch.full_like(fragment_of(learner, 2), 0.5)
    others = [fragment_of(learner, fragment) for fragment in (0, 1)]
    learner.adopt(2, anchor, None, 1, TOKENS_PER_STEP)
    assert torch.equal(fragment_of(learner, 2), anchor)
    assert learner.counters(2) == Counters(0, 0, 2, 0)
    assert all(torch.equal(fragment_of(learner, fragment), others[fragment]) for fragment in (0, 1))


def eager_learner(moment_correction: float | None = None) -> tuple[Learner, Tensor]:
    """Return a learner one step after a merge that kept a quarter of its work in fragment 1, and the merge's anchor."""
    outer = OuterSpec(adoption="eager", adoption_blend=0.75, moment_correction=moment_correction)
    inner = CONFIG.inner.model_copy(update={"optimizer": "adamw8bit"})  # its first moment can be corrected
    learner = new_learner(CONFIG.model_copy(update={"outer": outer, "inner": inner}))
    before = fragment_of(learner, 1)
    learner.adopt(1, before, None, 0, 0)
    learner.step()
    snapshot = empty(learner, 1)
    counted = learner.snapshot(1, snapshot)
    assert torch.equal(fragment_of(learner, 1), snapshot)  # it is not known yet what a merge keeps
    anchor = before + (snapshot - before) / 4
    learner.adopt(1, anchor, snapshot, counted.steps, counted.tokens)
    learner.step()
    return learner, anchor


def test_eager_trains_where_its_own_part_of_the_merge_will_be():
    learner, anchor = eager_learner()
    whole = fragment_of(learner, 1)
    snapshot = empty(learner, 1)
    counted = learner.snapshot(1, snapshot)
    assert torch.equal(snapshot, whole)  # all of it is contributed
    shown = fragment_of(learner, 1)
    torch.testing.assert_close(shown, anchor + (whole - anchor) / 4, rtol=0, atol=1e-6)
    learner.step()
    later = fragment_of(learner, 1) - shown
    newer = anchor * 0.9 + 0.001
    learner.adopt(1, newer, snapshot, counted.steps, counted.tokens)
    torch.testing.assert_close(fragment_of(learner, 1), newer + 0.75 * later, rtol=0, atol=1e-6)
    assert learner.counters(1).steps == 1


def test_eager_has_everything_back_where_a_round_came_to_nothing():
    learner, anchor = eager_learner()
    first, second = empty(learner, 1), empty(learner, 1)
    learner.snapshot(1, first)
    shown = fragment_of(learner, 1)
    learner.step()
    later = fragment_of(learner, 1) - shown
    assert learner.snapshot(1, second).steps == 2
    torch.testing.assert_close(second, first + later, rtol=0, atol=1e-6)
    learner.adopt(1, anchor + 1, anchor, 0, 0)
    torch.testing.assert_close(fragment_of(learner, 1), second + 1, rtol=0, atol=1e-6)


def test_a_corrected_first_moment_goes_where_the_merge_went():
    (plain, anchor), (corrected, _) = eager_learner(), eager_learner(0.5)
    more = fragment_of(corrected, 1) - fragment_of(plain, 1)
    before = fragment_of(new_learner(), 1)
    missed = (anchor - before) - (anchor - before) * 4  # the merge went a quarter of the learner's own way
    assert float(more @ missed / (more.norm() * missed.norm())) > 0.5
    for other in (0, 2):
        torch.testing.assert_close(fragment_of(corrected, other), fragment_of(plain, other), rtol=0, atol=1e-3)


@pytest.mark.parametrize("moment_correction", [None, 0.5])
def test_eager_resumes_with_the_same_bits(moment_correction: float | None):
    learner, anchor = eager_learner(moment_correction)
    snapshot = empty(learner, 1)
    learner.snapshot(1, snapshot)
    learner.step()
    resumed = new_learner(learner.config)
    resumed.import_state(learner.export_state())
    for one in (learner, resumed):
        one.adopt(1, anchor * 0.5, snapshot, 1, TOKENS_PER_STEP)
        one.step()
        one.snapshot(1, empty(one, 1))
    assert torch.equal(parameters(learner), parameters(resumed))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_blend_keeps_a_share_of_its_own(share: float):
    """θ ← αθ + (1 - α)Θ, Streaming DiLoCo (2501.18512); with α = 0 it is overwrite."""
    outer = OuterSpec(adoption="blend", adoption_blend=share)
    learner = new_learner(CONFIG.model_copy(update={"outer": outer}))
    for _ in range(3):
        learner.step()
    own = fragment_of(learner, 1)
    anchor = torch.linspace(-1, 1, len(own))
    learner.adopt(1, anchor, None, 2, 2 * TOKENS_PER_STEP)
    expected = share * own.double() + (1 - share) * anchor.double()
    torch.testing.assert_close(fragment_of(learner, 1).double(), expected, rtol=0, atol=2e-7)
    if share in (0.0, 1.0):
        assert torch.equal(fragment_of(learner, 1), own if share else anchor)
    assert learner.counters(1) == Counters(0, 0, 3, 0)


def test_a_version_that_replaces_us_is_not_blended():
    """Such a version has none of our work to keep: after a crash, or at the start."""
    learner = new_learner(CONFIG.model_copy(update={"outer": OuterSpec(adoption="blend")}))
    learner.step()
    anchor = torch.full_like(fragment_of(learner, 1), 0.5)
    learner.adopt(1, anchor, None, 0, 0)
    assert torch.equal(fragment_of(learner, 1), anchor)
    learner.adopt(1, anchor * 2, anchor, 0, 0)
    assert torch.equal(fragment_of(learner, 1), anchor * 2)


def test_a_missed_round_costs_nothing():
    learner = new_learner()
    old_anchor = fragment_of(learner, 0)
    learner.step()
    new_anchor = old_anchor * 1.01
    work = fragment_of(learner, 0) - old_anchor
    learner.adopt(0, new_anchor, old_anchor, 0, 0)
    assert torch.equal(fragment_of(learner, 0), new_anchor + work)
    assert learner.counters(0).steps == 1


def test_work_that_no_version_holds_any_more_is_brought_again():
    learner = new_learner()
    for _ in range(3):
        learner.step()
    anchor = fragment_of(learner, 0)
    learner.adopt(0, anchor, anchor, 2, 2 * TOKENS_PER_STEP)
    learner.step()
    learner.adopt(0, anchor, anchor, -2, -2 * TOKENS_PER_STEP)
    assert learner.counters(0) == Counters(4, 4 * TOKENS_PER_STEP, 0, 4)
    assert learner.counters(1) == Counters(4, 4 * TOKENS_PER_STEP, 0, 4)


def test_adopting_reaches_the_model_and_keeps_the_optimizer():
    learner = new_learner()
    learner.step()
    state = {name: value for name, value in learner.export_state().items() if name.startswith("optimizer.")}
    for layout in learner.fragments:
        learner.adopt(layout.index, torch.full((layout.elements,), 0.25), None, 0, 0)
    assert all((parameter == 0.25).all() for parameter in learner.model.parameters())
    assert all(torch.equal(value, learner.export_state()[name]) for name, value in state.items())


@settings(max_examples=20)
@given(counted=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 200)), max_size=8))
def test_counters_never_go_below_zero(stepping: Learner, counted: list[tuple[int, int]]):
    learner = stepping
    learner.step()
    theta = fragment_of(learner, 0)
    for steps, tokens in counted:
        before = learner.counters(0)
        learner.adopt(0, theta, theta, steps, tokens)
        after = learner.counters(0)
        assert after.steps == max(0, before.steps - steps)
        assert after.tokens == max(0, before.tokens - tokens)
        assert after.window_first + after.window_count == before.window_first + before.window_count


@pytest.mark.parametrize("optimizer", get_args(InnerOptimizer))
def test_a_resumed_learner_makes_the_same_bits(optimizer: str):
    config = CONFIG.model_copy(update={"inner": InnerSpec(optimizer=optimizer, warmup_steps=4)})
    straight, resumed = new_learner(config), new_learner(config)
    straight.set_progress(9)
    for _ in range(10):
        straight.step()
    straight.adopt(1, fragment_of(straight, 1), fragment_of(straight, 1), 4, 4 * TOKENS_PER_STEP)
    saved = straight.export_state()
    rest = [straight.step() for _ in range(10)]
    resumed.import_state(saved)
    assert [resumed.step() for _ in range(10)] == rest
    expected, actual = straight.export_state(), resumed.export_state()
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    assert resumed.counters(1) == straight.counters(1)


def test_state_of_another_run_is_refused_and_changes_nothing():
    wider = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"intermediate_size": 80})})
    other = new_learner(wider)
    other.step()
    learner = new_learner()
    before = parameters(learner)
    with pytest.raises(LocalError, match="another"):
        learner.import_state(other.export_state())
    assert torch.equal(parameters(learner), before)


def test_a_joiner_takes_the_whole_model():
    trained, joiner = new_learner(), new_learner()
    trained.step()
    joiner.step()
    joiner.load_all(parameters(trained))
    assert torch.equal(parameters(joiner), parameters(trained))
    assert all(joiner.counters(layout.index).steps == 0 for layout in joiner.fragments)


def test_the_rate_follows_certified_progress():
    learner = new_learner()
    for _ in range(REWARM_STEPS):
        learner.step()
    local = learner.rate
    learner.step()
    assert learner.rate == local
    learner.set_progress(4)
    assert learner.rate == pytest.approx(CONFIG.inner.learning_rate)
    learner.set_progress(80)
    assert learner.rate == pytest.approx(CONFIG.inner.learning_rate * CONFIG.inner.final_rate_share)


def test_gradients_are_clipped_to_the_global_norm():
    def moved(clip_norm: float) -> Tensor:
        inner = InnerSpec(optimizer="adamw", clip_norm=clip_norm, weight_decay=0.0)
        learner = new_learner(CONFIG.model_copy(update={"inner": inner}))
        learner.step()
        return torch.linalg.vector_norm(learner.gradient)

    assert moved(1e-3) == pytest.approx(1e-3, rel=1e-2)
    assert moved(1e6) > 1e-2


def test_divergence_ends_training_before_it_reaches_the_model():
    learner = new_learner()
    layout = learner.fragments[0]
    learner.adopt(0, torch.full((layout.elements,), float("nan")), None, 0, 0)
    rest = fragment_of(learner, 1)
    skipped = [learner.step() for _ in range(SKIPPED_IN_A_ROW_MAX - 1)]
    assert {report.loss for report in skipped} == {None}
    assert learner.skipped == learner.step_count == len(skipped), "their windows are read, and count"
    with pytest.raises(LocalError, match="learning_rate"):
        learner.step()
    assert torch.equal(fragment_of(learner, 1), rest)


def test_one_step_that_is_not_finite_changes_nothing():
    learner = new_learner()
    learner.step()
    before = learner.export_state()
    (bad,) = fragment_views(learner.export_state()["theta"], learner.fragments)[:1]
    learner.adopt(0, torch.full_like(bad, float("inf")), None, 0, 0)
    assert learner.step().loss is None
    learner.adopt(0, bad, None, 0, 0)
    after = learner.export_state()
    same = [name for name in before if name not in ("position", "counted_from")]
    assert all(torch.equal(before[name], after[name]) for name in same)
    assert learner.step().loss is not None
    assert learner.skipped == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_learns_and_resumes():
    learner, resumed = new_learner(device="cuda"), new_learner(device="cuda")
    learner.set_progress(4)
    losses = [learner.step().loss for _ in range(60)]
    assert losses[-1] < 1.0
    resumed.import_state(learner.export_state())
    assert resumed.step().loss == pytest.approx(learner.step().loss, rel=1e-3)
    out = empty(learner, 0)
    learner.snapshot(0, out)
    learner.adopt(0, out, out, 1, TOKENS_PER_STEP)
    assert torch.equal(fragment_of(learner, 0), out)

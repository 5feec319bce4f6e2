import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Event

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor, nn

from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.data.token_files import TokenData
from peer.data.windows import evaluation_windows
from peer.learner.evaluation import AbandonedError, Estimate, Evaluator, heldout_loss
from peer.learner.gradient.objective import Objective
from peer.learner.learner import make_learner
from peer.machine.heap import give_back_freed
from peer.model.build import initial_parameters, loss
from peer.numerics.fragments import FragmentLayout, fragment_views, gather
from peer.rounds import evaluation_loop

CONFIG = RunConfig(
    seed=3,
    model=ModelSpec(hidden_size=32, layers=1, heads=2, intermediate_size=48),
    data=DataSpec(context_tokens=16, sequences_per_step=8, evaluation_tokens=2048),
    inner=InnerSpec(warmup_steps=0, learning_rate=0.01),
    pace=PaceSpec(fragments=3),
)
TEXT = torch.frombuffer(bytearray(b"abcdefgh" * 500), dtype=torch.uint8)


class Alphabet:
    def batch(self, window: int) -> Tensor:
        starts = torch.arange(8)[:, None] + window
        return TEXT[(starts + torch.arange(17)).remainder(8)].long()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread, as learners do by default: it gives the same bits, and no threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    return Evaluator(CONFIG, TEXT)


@pytest.fixture(scope="module")
def trained() -> tuple[Tensor, ...]:
    learner = make_learner(CONFIG, Alphabet())
    for _ in range(60):
        learner.step()
    return fragment_views(learner.export_state()["theta"], learner.fragments)


def untrained(fragments: Sequence[FragmentLayout]) -> list[Tensor]:
    return [gather(layout, initial_parameters(CONFIG.model, CONFIG.seed)) for layout in fragments]


def test_the_loss_is_that_of_the_given_parameters(evaluator: Evaluator, trained: tuple[Tensor, ...]):
    before = evaluator.loss(untrained(evaluator.fragments))
    assert before == pytest.approx(math.log(256), abs=0.4)
    after = evaluator.loss(trained)
    assert after < 0.1
    assert evaluator.loss(untrained(evaluator.fragments)) == before


def test_the_loss_is_a_mean_over_all_windows(evaluator: Evaluator, trained: tuple[Tensor, ...]):
    evaluator.loss(trained)
    model = make_learner(CONFIG, Alphabet()).model
    windows = evaluation_windows(TEXT, CONFIG.data, CONFIG.seed)[:70]
    assert len(windows) == 70
    assert heldout_loss(model, windows) == pytest.approx(loss(model, windows).item(), rel=1e-5)


def test_a_loss_of_a_part_of_the_text_comes_with_its_error():
    noise = torch.randint(256, (4000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    evaluator = Evaluator(CONFIG, noise)
    anchors = untrained(evaluator.fragments)
    whole, part = evaluator.estimate(anchors, lambda: False), evaluator.estimate(anchors, lambda: True)
    assert whole == Estimate(evaluator.loss(anchors))
    assert part.error is not None
    assert 0 < abs(part.loss - whole.loss) < 4 * part.error + 1e-6


@pytest.fixture
def looking() -> Iterator[Callable[..., evaluation_loop.EvaluationLoop]]:
    """Yield a function that makes a host's evaluation loop, with a clock."""
    made: list[evaluation_loop.EvaluationLoop] = []

    def make(
        anchors: Callable[[], list[Tensor]], seconds_a_look: float, begins: Callable[[], object] = bool
    ) -> evaluation_loop.EvaluationLoop:
        config = CONFIG.model_copy(update={"model": CONFIG.model.model_copy(update={"vocabulary": 256})})
        ticks = itertools.count()

        def clock() -> float:
            begins()
            return seconds_a_look * next(ticks)

        made.append(evaluation_loop.EvaluationLoop(config, TokenData(TEXT, TEXT, bytes(32)), anchors, clock))
        made[-1].use(1)
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_the_last_words_of_a_host_take_no_longer_with_a_slow_model(looking, evaluator: Evaluator):
    anchors, here = untrained(evaluator.fragments), evaluation_loop.RunPosition(0, 0, 0.0, True)
    quick, slow = looking(lambda: anchors, 0.0), looking(lambda: anchors, evaluation_loop.SAMPLE_SECONDS / 4)
    assert asyncio.run(quick.evaluate(here, full=True)).error is None
    assert len(asyncio.run(quick.sample()).encode()) > 100
    assert asyncio.run(slow.evaluate(here, full=True)).error is None, "three passes take less than it may take"
    assert asyncio.run(slow.sample()) == "", "four bytes say nothing"
    slow.newest_text = "def earlier():"
    assert asyncio.run(slow.sample()) == slow.newest_text == "def earlier():"
    assert asyncio.run(looking(lambda: anchors, 0.0).sample(0.0)) == "", "no core has time for it"
    slower = looking(lambda: anchors, evaluation_loop.LOOK_SECONDS)
    assert asyncio.run(slower.evaluate(here, full=True)).error is not None


def test_an_evaluation_under_way_gives_way_to_the_last_look(looking, evaluator: Evaluator):
    anchors, here = untrained(evaluator.fragments), evaluation_loop.RunPosition(0, 0, 0.0, True)
    begins = Event()
    loop = looking(lambda: anchors, 0.0, begins.wait)

    async def main() -> None:
        under_way = asyncio.create_task(loop.evaluate(here, full=True))
        last = asyncio.create_task(loop.look_last(here))
        await asyncio.sleep(0)
        begins.set()
        assert (await under_way).error is not None, "it has seen two passes of three"
        await last

    asyncio.run(main())
    assert loop.found[-1].error is None
    assert loop.newest_text
    found = loop.found.copy()
    asyncio.run(loop.look_last(here))
    assert loop.found == found, "it has looked at these versions"
    asyncio.run(loop.look_last(evaluation_loop.RunPosition(1, 0, 0.0, True)))
    assert len(loop.found) == len(found) + 1


def test_a_host_that_cannot_look_any_more_says_what_it_found_before(looking, evaluator: Evaluator):
    """Otherwise the host of a busy machine would report nothing at all."""
    anchors, here = untrained(evaluator.fragments), evaluation_loop.RunPosition(0, 0, 0.0, True)
    begins = Event()
    loop = looking(lambda: anchors, 0.0, begins.wait)
    with capture_logs() as logs:
        asyncio.run(loop.look_last(here, 0.01))
    begins.set()
    assert loop.found == []
    assert [entry["event"] for entry in logs] == ["last_evaluation_given_up"]


@pytest.mark.parametrize(("operations", "used"), [(0.0, [1, 3]), (evaluation_loop.ONE_CORE_OPERATIONS, [1, 1])])
def test_a_host_evaluates_on_as_many_cores_as_its_owner_allows_and_a_model_fills(
    operations: float, used: list[int], evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
):
    """Where others had the cores, two threads took two seconds for a byte of a small model, and one 30 ms."""
    monkeypatch.setattr(evaluation_loop, "ONE_CORE_OPERATIONS", operations)
    found: list[int] = []
    anchors = untrained(evaluator.fragments)
    loop = evaluation_loop.EvaluationLoop(
        CONFIG,
        TokenData(TEXT, TEXT, bytes(32)),
        lambda: anchors,
        text_codec=lambda: found.append(torch.get_num_threads()),
    )
    for threads in (1, 3):
        loop.use(threads)
        assert asyncio.run(loop.sample()) == ""
    loop.close()
    assert found == used


def test_a_host_goes_on_without_a_device_that_fails(evaluator: Evaluator):
    """The device `meta` accepts tensors and returns no values, so it fails like a GPU whose memory is taken."""
    anchors, here, data = (
        untrained(evaluator.fragments),
        evaluation_loop.RunPosition(0, 0, 0.0, True),
        TokenData(TEXT, TEXT, bytes(32)),
    )
    failing = evaluation_loop.EvaluationLoop(CONFIG, data, lambda: anchors, device="meta")
    with capture_logs() as logs:
        found = [asyncio.run(failing.evaluate(here, full=full)) for full in (False, True)]
    failing.close()
    assert [entry["event"] for entry in logs] == ["evaluates_on_the_processor"], "once for good"
    assert found[1].loss == evaluator.loss(anchors)
    assert math.isfinite(found[0].loss)


def test_a_host_writes_while_the_run_goes_on(looking, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch):
    for name in ("SAMPLE_EVERY_SECONDS", "REST_SECONDS_MIN"):
        monkeypatch.setattr(evaluation_loop, name, 0.0)
    monkeypatch.setattr(evaluation_loop, "BUSY_SHARE", 1e9)
    loop, versions = looking(lambda: untrained(evaluator.fragments), 0.0), iter((0, 1000))

    def mark() -> evaluation_loop.RunPosition:
        assert not loop.newest_text, "until then"
        return evaluation_loop.RunPosition(next(versions), 0, 0.0, True)

    with pytest.raises(AssertionError, match="until then"):
        asyncio.run(loop.run(mark))
    assert [one.versions for one in loop.found] == [0, 1000]


def test_a_host_rests_for_what_it_took_and_not_for_what_it_waited(
    looking, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
):
    """A busy machine grants a core late. A rest of ten times that wait would leave the run few evaluations."""
    anchors, versions, rests = untrained(evaluator.fragments), iter((0, 1000)), list[float]()
    loop = looking(lambda: anchors, 0.0, lambda: time.sleep(0.1))

    async def note(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(evaluation_loop, "REST_SECONDS_MIN", 0.0)
    began = time.monotonic()
    with pytest.raises(RuntimeError):  # there are no further versions
        asyncio.run(loop.run(lambda: evaluation_loop.RunPosition(next(versions), 0, 0.0, True)))
    assert len(rests) == 1
    assert 0 < rests[0] < time.monotonic() - began


def test_a_busy_machine_writes_a_text_all_the_same(looking, evaluator: Evaluator):
    """It waits for a core longer than it may use one; a run on a busy machine never showed what its model writes."""
    waits_seconds = evaluation_loop.LIVE_SAMPLE_SECONDS / 8
    loop = looking(lambda: untrained(evaluator.fragments), waits_seconds)
    assert asyncio.run(loop.sample(evaluation_loop.LIVE_SAMPLE_SECONDS))


def test_an_evaluation_keeps_no_second_model_in_memory(looking, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch):
    here = evaluation_loop.RunPosition(0, 0, 0.0, True)
    moving = looking(lambda: untrained(evaluator.fragments), 0.0)
    assert asyncio.run(moving.evaluate(here, full=True)).error is None, "one as small as this may be there twice"
    monkeypatch.setattr(evaluation_loop, "STALE_BYTES_MIN", 0)
    assert asyncio.run(moving.evaluate(here, full=True)).error is not None


def test_an_evaluation_that_is_given_up_ends_with_the_pass_under_way(monkeypatch: pytest.MonkeyPatch):
    closed, passes = Event(), list[int]()

    real = Objective.value

    def closing(objective: Objective, windows: Tensor) -> Tensor:
        passes.append(len(windows))
        found = real(objective, windows)
        closed.set()
        return found

    evaluator = Evaluator(CONFIG, TEXT, abandoned=closed)
    monkeypatch.setattr(Objective, "value", closing)
    with pytest.raises(AbandonedError):
        evaluator.loss(untrained(evaluator.fragments))
    assert len(passes) == 2


def test_a_model_that_looks_takes_no_copy_and_lets_go(evaluator: Evaluator):
    anchors = untrained(evaluator.fragments)

    def look(model: nn.Module, _: Tensor) -> float:
        within = {one.untyped_storage().data_ptr() for one in model.parameters()}
        return float(within == {anchor.untyped_storage().data_ptr() for anchor in anchors})

    models: list[nn.Module] = []
    assert evaluator.judge(anchors, look) == 1.0
    assert evaluator.judge(anchors, lambda model, _: float(models.append(model) or 0)) == 0.0
    assert sum(parameter.numel() for parameter in models[0].parameters()) == 0
    other = evaluator.on_other(CONFIG)
    assert other.loss(anchors) == evaluator.loss(anchors)


def test_a_trained_model_continues_the_text(evaluator: Evaluator, trained: tuple[Tensor, ...]):
    written = evaluator.sample(trained, list(b"abcd"), 24, torch.Generator().manual_seed(0))
    assert bytes(written) == b"efghabcdefghabcdefghabcd"


def test_a_sample_is_a_pure_function_of_its_generator(evaluator: Evaluator):
    anchors = untrained(evaluator.fragments)
    samples = [evaluator.sample(anchors, list(b"x"), 20, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert samples[0] == samples[1] != samples[2]


def test_a_host_keeps_few_evaluations_however_long_its_run_is(monkeypatch: pytest.MonkeyPatch):
    kept = 16
    given_back = []
    monkeypatch.setattr(evaluation_loop, "EVALUATIONS_KEPT", kept)
    monkeypatch.setattr(evaluation_loop, "give_back_freed", lambda: given_back.append(give_back_freed()))
    data = TokenData(TEXT, TEXT, bytes(32))
    anchors = untrained(Evaluator(CONFIG, TEXT).fragments)

    async def main() -> list[list[int]]:
        loop = evaluation_loop.EvaluationLoop(CONFIG, data, lambda: anchors)
        seen = []
        for versions in range(5 * kept):
            await loop.evaluate(evaluation_loop.RunPosition(versions, 0, float(versions), True), full=False)
            seen.append([one.versions for one in loop.found])
        assert len(given_back) == 5 * kept, "nor does it keep what each of them has freed"
        loop.close()
        return seen

    for versions, found in enumerate(asyncio.run(main())):
        assert (found[0], found[-1]) == (0, versions)  # what reports compare
        assert found == sorted(set(found))
        assert len(found) == versions + 1 if versions < kept else kept // 2 <= len(found) <= kept

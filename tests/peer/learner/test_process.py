import asyncio
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.chain.passes import ReadingLane
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from dht.errors import LocalError, NetworkError, PeerError, UsageError
from peer.data.tally import Loading, Tell, tell_nobody
from peer.data.windows import TrainingWindows, load_tokens
from peer.learner.channel import UNSENT_BYTES_MAX, Channel, PeerGoneError
from peer.learner.client import STOP_SECONDS_MAX, LearnerClient, LearnerStoppedError
from peer.learner.commands import LearnerCommands
from peer.learner.group.saved import read_state
from peer.learner.imports import import_ahead
from peer.learner.learner import make_learner
from peer.learner.loop import CommandLoop, train
from peer.learner.messages import (
    FRAME_BYTES_MAX,
    LENGTH_BYTES,
    AdoptFragment,
    CertifiedProgress,
    Done,
    Failed,
    LearnerSettings,
    Message,
    Obeyed,
    PauseSteps,
    Ready,
    SnapshotTaken,
    Start,
    StepEntry,
    Steps,
    Stop,
    TakeSnapshot,
    Threads,
    decode_frame,
    encode_frame,
    frame_length,
)
from peer.learner.ranks.first_rank import cpu_seconds_of
from peer.learner.shared_memory import FreeSlots, SharedSlots
from peer.learner.spawn import LEARNER_PROGRAM, LearnerSpawn, learner_ahead
from peer.learner.work_counters import Counters, LearnerProgress
from peer.machine.local_files import LocalFiles
from peer.machine.tasks import Tasks
from peer.model.build import parameter_specs
from peer.node.checkpointer import LEARNER_SECONDS_MAX
from peer.node.learner_start import start_learner
from peer.node.options import NodeOptions
from peer.numerics.fragments import fragment_views, split_fragments
from peer.service import process as service
from peer.service.retry import retry_join
from tests.peer.homely import ORGANISER, manifest

CONFIG = RunConfig(
    model=ModelSpec(hidden_size=64, layers=1, heads=2, intermediate_size=72),
    data=DataSpec(context_tokens=16, sequences_per_step=2),
    inner=InnerSpec(warmup_steps=4),
    pace=PaceSpec(fragments=3, steps_per_version=6),
)
TOKENS_PER_STEP = 32
LANE = ReadingLane(1, 0, 2).first  # a lane in which a run that reads in passes may let it begin
FRAGMENTS = split_fragments(parameter_specs(CONFIG.model), 3)
ENDING_SECONDS = 30.0
PLAIN = LearnerSettings()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread, as learners do by default: it gives the same bits, and no threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ignore(steps: Steps) -> None:
    del steps


def start_of(settings: LearnerSettings = PLAIN, config: RunConfig = CONFIG, **fields: Any) -> Start:
    return Start(config=config, run_key=b"run", peer_id="peer", settings=settings, paused=True, **fields)


async def started(start: Start, tell: Tell = tell_nobody, program: str = LEARNER_PROGRAM) -> LearnerClient:
    return await LearnerClient.start(start, LearnerSpawn.begin(program), ignore, tell=tell)


@pytest.mark.slow
def test_a_learner_tells_of_its_text_and_leaves_the_tokens_to_the_next(tmp_path: Path):
    """Its process makes them of the owner's file in the shared cache, where this process finds them."""
    corpus, told = tmp_path / "rows.jsonl", list[str]()
    corpus.write_text("".join(f'{{"text": "line {number}"}}\n\n' for number in range(2000)))
    files = LocalFiles(str(corpus), cache=str(tmp_path / "cache"))
    data = CONFIG.data.model_copy(update={"source": "jsonl", "end_token": 0, "evaluation_tokens": 256})
    config = CONFIG.model_copy(update={"data": data})

    async def start() -> Ready:
        settings = LearnerSettings(corpus=files.corpus, cache=files.cache, loading_threads=2)
        learner = await started(start_of(settings, config), lambda doing, _: told.append(doing))
        await learner.stop()
        return learner.ready

    ready = asyncio.run(start())
    assert {"making tokens of the text", "building the model"} <= set(told)
    assert ready.data_note == "left out 2,000 empty lines"
    again = list[str]()
    found = load_tokens(data, 256, files, loading=Loading(lambda doing, _: again.append(doing)))
    assert ready.data_digest == found.digest
    assert "making tokens of the text" not in again


def test_a_learner_that_takes_more_than_its_owner_allows_ends_in_a_sentence():
    start = start_of(LearnerSettings(memory_bytes=1 << 30), attack="greedy")
    with pytest.raises(UsageError, match=r"the learner needs more memory .* raise the limit"):
        asyncio.run(started(start, program="tests.peer.learner.greedy"))


def test_a_conversation_with_a_learner(tmp_path: Path):
    """One process serves all checks, because each takes seconds to start; its numbers are an in-process learner's."""
    twin = make_learner(CONFIG, TrainingWindows(load_tokens(CONFIG.data).train, CONFIG.data, b"run", "peer"))
    state_path = tmp_path / "inner.safetensors"

    async def converse() -> None:
        entries: list[StepEntry] = []
        heard = asyncio.Event()

        def on_steps(steps: Steps) -> None:
            entries.extend(steps.entries)
            heard.set()

        learner = await LearnerClient.start(start_of(LearnerSettings(niceness=1)), LearnerSpawn.begin(), on_steps)
        assert learner.ready.data_digest == load_tokens(CONFIG.data).digest
        assert learner.ready.parameters == sum(layout.elements for layout in FRAGMENTS)
        assert await learner.snapshot(1) == (pytest.approx(twin_fragment(1)), Counters(0, 0, 0, 0))

        learner.follow(2, LANE)  # four steps
        learner.resume()
        await asyncio.wait_for(heard.wait(), ENDING_SECONDS)
        vector, counters = await learner.snapshot(0)
        assert counters.steps >= 1
        assert counters == Counters(counters.steps, counters.steps * TOKENS_PER_STEP, LANE, counters.steps)
        twin.set_progress(4, LANE)
        losses = [twin.step().loss for _ in range(counters.steps)]
        assert torch.equal(vector, twin_fragment(0))

        learner.pause()
        anchors = [torch.full((layout.elements,), 0.01) for layout in FRAGMENTS]
        at_step = await learner.adopt(0, anchors[0], vector, counters.steps, counters.tokens)
        assert at_step >= counters.steps
        for _ in range(counters.steps, at_step):
            twin.step()
        twin.adopt(0, anchors[0], vector, counters.steps, counters.tokens)
        rebased, remaining = await learner.snapshot(0)
        assert torch.equal(rebased, twin_fragment(0))
        assert remaining.steps == at_step - counters.steps

        await asyncio.gather(*(learner.adopt(index, anchors[index], None) for index in (1, 2)))
        taken = await asyncio.gather(*(learner.snapshot(index) for index in (1, 2, 1, 2)))
        assert all(torch.equal(vector, anchors[1 + turn % 2]) for turn, (vector, _) in enumerate(taken))
        with pytest.raises(LocalError, match="refused"):
            await learner.save(tmp_path / "missing" / "inner.safetensors")
        assert (await learner.save(state_path)).at_step == at_step
        await learner.load(dict(enumerate(anchors)))
        assert torch.equal((await learner.snapshot(0))[0], anchors[0])
        with pytest.raises(ValueError, match="another size"):
            await learner.adopt(0, anchors[0][:-1], None)
        await learner.stop()
        assert learner.failure is None
        assert [entry.step for entry in entries] == list(range(1, at_step + 1))
        assert [entry.loss for entry in entries[: len(losses)]] == pytest.approx(losses)
        with pytest.raises(LocalError, match="stopped"):
            await learner.snapshot(0)

    def twin_fragment(index: int) -> torch.Tensor:
        return fragment_views(twin.export_state()["theta"], FRAGMENTS)[index]

    asyncio.run(converse())


def test_a_learner_that_dies_is_noticed_by_whoever_waits():
    async def lose() -> None:
        learner = await started(start_of())
        os.kill(learner.pid, signal.SIGSTOP)
        waiting = [asyncio.ensure_future(learner.snapshot(0)) for _ in range(2)]
        await asyncio.sleep(0)
        os.kill(learner.pid, signal.SIGKILL)
        for future in waiting:
            with pytest.raises(LocalError, match="was killed"):
                await future
        with pytest.raises(LocalError, match="was killed"):
            await learner.wait()
        await learner.stop()

    asyncio.run(lose())


def test_a_learner_that_hangs_does_not_keep_its_peer_from_ending(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("peer.learner.client.STOP_SECONDS_MAX", 0.5)

    async def stop() -> None:
        learner = await started(start_of())
        os.kill(learner.pid, signal.SIGSTOP)
        waiting = [asyncio.ensure_future(work) for work in (learner.snapshot(0), learner.save(Path("nowhere")))]
        await asyncio.wait_for(learner.stop(), ENDING_SECONDS)
        for future in waiting:
            with pytest.raises(LearnerStoppedError):
                await future

    asyncio.run(stop())
    assert LEARNER_SECONDS_MAX + STOP_SECONDS_MAX < service.STOP_SECONDS_MAX, "the rest takes time, too"


def test_a_peer_does_not_wait_for_a_process_that_not_even_a_kill_ends(monkeypatch: pytest.MonkeyPatch):
    """Such a process waits in the kernel for a disk or a GPU."""
    monkeypatch.setattr("peer.learner.spawn.EXIT_SECONDS_MAX", 0.05)
    with learner_ahead() as spawned:
        with monkeypatch.context() as deaf:
            deaf.setattr(spawned.process, "kill", lambda: None)
            assert spawned.reap() == -signal.SIGKILL
        assert spawned.process.poll() is None


@pytest.mark.slow
def test_a_run_that_does_not_fit_says_so():
    model = CONFIG.model.model_copy(update={"vocabulary": 1 << 15})
    huge = CONFIG.model_copy(update={"model": model, "data": DataSpec(context_tokens=1 << 17)})

    async def fail() -> None:
        with pytest.raises(UsageError, match="shorter sequences"):
            await started(start_of(LearnerSettings(memory_bytes=1 << 30), config=huge))
        with pytest.raises(UsageError, match="and only 0 MiB"):
            await started(start_of(LearnerSettings(memory_bytes=1 << 20)))

    asyncio.run(fail())


def test_a_learner_that_ended_before_it_was_told_what_to_train_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it sent is lost when its peer writes to it before reading: the kernel resets the connection."""
    (tmp_path / "transformers.py").write_text('raise RuntimeError("these are broken")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    async def fail(spawned: LearnerSpawn) -> None:
        with pytest.raises(LocalError, match="these are broken"):
            await LearnerClient.start(start_of(), spawned, ignore)

    with learner_ahead() as spawned:
        assert spawned.process.wait(ENDING_SECONDS) == 1
        asyncio.run(fail(spawned))


def test_a_package_that_imports_scipy_does_not_stop_a_learner(monkeypatch: pytest.MonkeyPatch):
    """scikit-learn is such a package; earlier transformers import it with the models if it is installed."""
    monkeypatch.delitem(sys.modules, "scipy", raising=False)
    hidden: list[bool] = []

    def import_llama() -> None:
        hidden.append("scipy" in sys.modules)
        if hidden[-1]:
            raise ModuleNotFoundError("import of scipy halted")

    monkeypatch.setattr("peer.model.build.import_llama", import_llama)
    import_ahead()
    assert hidden == [True, False]


@pytest.mark.slow
def test_a_learner_that_was_started_ahead_is_gone_in_the_end():
    """That holds whether it waits to be told what to train, or runs."""
    gc.collect()  # what earlier learners have mapped
    open_before = len(os.listdir("/proc/self/fd"))

    async def use(spawned: LearnerSpawn) -> None:
        learner = await LearnerClient.start(start_of(), spawned, ignore)
        assert learner.pid == spawned.pid
        await learner.stop()

    with learner_ahead() as unused, learner_ahead() as used:
        asyncio.run(use(used))
        assert (unused.process.poll(), used.process.poll()) == (None, 0)
    assert unused.process.poll() == -signal.SIGKILL
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_damaged_state_is_named(tmp_path: Path):
    damaged = tmp_path / "inner.safetensors"
    damaged.write_bytes(b"not a state")
    with pytest.raises(LocalError, match="cannot be read"):
        read_state(str(damaged))
    with pytest.raises(LocalError, match="cannot be read"):
        read_state(str(tmp_path / "missing"))


@pytest.mark.slow
def test_no_learner_outlives_its_peer():
    """The peer is killed without a chance to clean up; the learner is paused, so it would wait for ever."""
    program = f"""
import asyncio, sys
from coordinator.run.manifest import RunConfig
from peer.learner.client import LearnerClient
from peer.learner.messages import Start
from peer.learner.spawn import LearnerSpawn
async def main():
    config = RunConfig.from_wire(bytes.fromhex("{CONFIG.to_wire().hex()}"))
    start = Start(config=config, run_key=b"run", peer_id="peer", paused=True)
    learner = await LearnerClient.start(start, LearnerSpawn.begin(), lambda steps: None)
    sys.stdout.write(f"{{learner.pid}}\\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None
        learner = os.pidfd_open(int(peer.stdout.readline()))
        try:
            assert select.select([learner], [], [], 0)[0] == []
            peer.kill()
            assert select.select([learner], [], [], ENDING_SECONDS)[0] == [learner]
        finally:
            os.close(learner)


def test_frames_survive_and_strangers_do_not():
    messages = [
        Start(config=CONFIG, run_key=b"run", peer_id="peer", state_path="a/b"),
        Steps(entries=(StepEntry(step=1, loss=2.5, tokens=3),), cpu_seconds=1.0, busy_seconds=0.5),
        AdoptFragment(ticket=7, fragment=1, slot=0, reference=None),
        Failed(reason="no"),
    ]
    for message in messages:
        frame = encode_frame(message)
        assert frame_length(frame[:LENGTH_BYTES]) == len(frame) - LENGTH_BYTES
        assert decode_frame(frame[LENGTH_BYTES:]) == message
    with pytest.raises(LocalError, match="different versions"):
        decode_frame(b"\xff")
    with pytest.raises(PeerError):
        decode_frame(encode_frame(messages[2])[LENGTH_BYTES : LENGTH_BYTES + 1])
    with pytest.raises(LocalError, match="limit"):
        frame_length((FRAME_BYTES_MAX + 1).to_bytes(4, "big"))


def test_the_channel_takes_what_has_arrived_and_never_waits():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        assert channel.receive(0.0) == []
        frames = encode_frame(PauseSteps(paused=True)) + encode_frame(TakeSnapshot(ticket=1, fragment=2, slot=0))
        theirs.sendall(frames[:-3])
        assert channel.receive(None) == [PauseSteps(paused=True)]
        theirs.sendall(frames[-3:])
        assert channel.receive(None) == [TakeSnapshot(ticket=1, fragment=2, slot=0)]
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerGoneError):
            channel.receive(0.0)


def test_a_peer_that_was_killed_with_something_unread_is_gone_like_any_other():
    ours, theirs = socket.socketpair()
    with ours:
        channel = Channel(ours)
        channel.send(PauseSteps(paused=True))
        theirs.close()
        with pytest.raises(PeerGoneError):
            channel.receive(None)


def test_cpu_time_of_another_process_is_what_it_says_itself():
    assert cpu_seconds_of(os.getpid()) == pytest.approx(time.process_time(), abs=0.1)
    assert cpu_seconds_of(1 << 30) == 0


def test_a_learner_says_from_which_step_on_it_follows():
    """It says so for commands without a ticket too, because a tape needs it."""
    learner = make_learner(CONFIG, TrainingWindows(load_tokens(CONFIG.data).train, CONFIG.data, b"run", "peer"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(theirs)
        commands = LearnerCommands(learner, SharedSlots.create(FRAGMENTS, 1), channel)
        command_loop = CommandLoop(learner, commands, channel, Start(config=CONFIG, run_key=b"run", peer_id="peer"))
        learner.step()
        told = CertifiedProgress(steps=4, window=LANE)
        command_loop.obey(told)
        learner.step()
        command_loop.obey(Threads(threads=1))
        assert Channel(ours).receive(None) == [Obeyed(at_step=1, progress=told), Obeyed(at_step=2, threads=1)]


@pytest.mark.parametrize("pace", [{"step_seconds": 3600.0}, {"compute_share": 1e-6}])
def test_commands_are_obeyed_while_the_pace_rests(pace: dict[str, float]):
    """The learner makes one step in hours; if it did not listen while it rests, this test would take hours."""
    learner = make_learner(CONFIG, TrainingWindows(load_tokens(CONFIG.data).train, CONFIG.data, b"run", "peer"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        start = Start(config=CONFIG, run_key=b"run", peer_id="peer", settings=LearnerSettings(**pace))
        theirs_end = Channel(theirs)
        command_loop = CommandLoop(
            learner, LearnerCommands(learner, SharedSlots.create(FRAGMENTS, 1), theirs_end), theirs_end, start
        )
        running = threading.Thread(target=train, args=(learner, command_loop, ()))
        running.start()
        heard: list[Message] = []
        channel = Channel(ours)
        while not any(isinstance(message, Steps) for message in heard):
            heard += channel.receive(ENDING_SECONDS)
        for message in (PauseSteps(paused=True), TakeSnapshot(ticket=7, fragment=0, slot=0), Stop()):
            channel.send(message)
        running.join(ENDING_SECONDS)
        assert not running.is_alive()
        heard += channel.receive(0.0)
    assert [message.steps for message in heard if isinstance(message, SnapshotTaken)] == [1]


def test_a_peer_that_does_not_read_costs_bounded_memory():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = Channel(ours)
        assert channel.is_idle

        def answer_for_ever() -> None:
            for ticket in range(UNSENT_BYTES_MAX):
                channel.send(Done(ticket=ticket, at_step=0))

        with pytest.raises(LocalError, match="does not read"):
            answer_for_ever()
        assert not channel.is_idle
        received = bytearray()
        theirs.setblocking(False)
        while not channel.is_idle:
            received += theirs.recv(1 << 20)
            channel.flush()
        assert decode_frame(
            bytes(received[LENGTH_BYTES : LENGTH_BYTES + frame_length(received[:LENGTH_BYTES])])
        ) == Done(ticket=0, at_step=0)


def test_both_ends_of_the_slots_see_the_same_memory():
    ours = SharedSlots.create(FRAGMENTS, 2)
    theirs = SharedSlots(os.dup(ours.descriptor), FRAGMENTS, 2)
    ours.close_descriptor()
    assert ours.count == theirs.count == 6
    for slot in range(6):
        view = ours.slot(slot, slot % 3)
        assert view.shape == (FRAGMENTS[slot % 3].elements,)
        view.fill_(slot)
    for slot in range(6):
        assert (theirs.slot(slot, slot % 3) == slot).all()
    for slot in (-1, 6):
        with pytest.raises(ValueError, match="no slot"):
            theirs.slot(slot, 0)
    other = split_fragments(parameter_specs(CONFIG.model.model_copy(update={"intermediate_size": 80})), 3)
    with pytest.raises(LocalError, match="size"):
        SharedSlots(theirs.descriptor, other, 2)
    theirs.close_descriptor()


def test_a_whole_model_lies_behind_the_slots_until_they_are_made_anew():
    ours = SharedSlots.create(FRAGMENTS, 1)
    assert ours.laid_out() is None
    vectors = [torch.full((layout.elements,), float(layout.index)) for layout in FRAGMENTS]
    ours.lay_out(vectors[:2])
    assert ours.laid_out() is None, "that is not all"
    ours.lay_out(vectors)
    ours.slot(2, 0).fill_(7)
    theirs = SharedSlots(os.dup(ours.descriptor), FRAGMENTS, 1)
    found = theirs.laid_out()
    assert found is not None
    assert all(map(torch.equal, found, vectors))
    SharedSlots.behind(ours.descriptor, FRAGMENTS, 1)
    assert theirs.laid_out() is None
    theirs.close_descriptor()
    ours.close_descriptor()


def test_slots_go_to_who_came_first():
    async def main() -> None:
        free, taken = FreeSlots(3), list[int]()

        async def take(name: int, count: int) -> tuple[int, ...]:
            slots = await free.take(count)
            taken.append(name)
            return slots

        first = await take(1, 2)
        second, third = (asyncio.create_task(take(name, count)) for name, count in ((2, 2), (3, 1)))
        await asyncio.sleep(0)
        second_gone = asyncio.create_task(take(4, 3))
        await asyncio.sleep(0)
        second_gone.cancel()
        assert taken == [1], "one is free, and whoever needs two comes first"
        free.give_back(first)
        assert sorted([*await second, *await third]) == [0, 1, 2]
        assert taken == [1, 2, 3]
        free.give_back([0, 1, 2])
        assert len(await take(5, 3)) == 3

    asyncio.run(main())


@pytest.mark.slow
def test_imports_ahead_of_a_learner_leave_scipy_out_and_the_way_to_it_open():
    program = """
import sys
from peer.learner.process import import_ahead
import_ahead()
print("transformers" in sys.modules, "scipy" in sys.modules)
import scipy
print(scipy.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "scipy"]


@pytest.mark.slow
def test_a_peer_that_joins_at_the_second_try_has_a_learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try ends the process that was started ahead."""
    monkeypatch.setattr("peer.service.retry.PAUSES_SECONDS", (0.1,))
    begun: list[asyncio.Task[LearnerClient]] = []

    async def main(spawned: LearnerSpawn) -> None:
        options = NodeOptions(tmp_path, device="cpu", spawned=spawned)

        async def join() -> LearnerClient:
            tasks = Tasks(lambda error: None)
            begun.append(
                tasks.begin(start_learner(manifest(CONFIG), ORGANISER, options, None, LearnerProgress(), ignore))
            )
            if len(begun) > 1:
                return await begun[-1]
            await asyncio.sleep(0)
            await tasks.end()
            raise NetworkError("ask for a fresh invite")

        learner = await retry_join(join, print)
        await learner.stop()

    with learner_ahead() as spawned:
        asyncio.run(main(spawned))
    assert len(begun) == 2

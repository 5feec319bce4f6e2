"""A peer as a process: what ends it, and in which order. The node is a fake here; `tests/real` has real ones."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from coordinator.views.control import SOCKET_NAME, Command, EndingError, StartingError, ask, limits, snapshot
from coordinator.views.credit import CreditReport
from coordinator.views.owner_limits import OwnerLimits
from coordinator.views.snapshot import PeerSnapshot
from dht.addresses import PeerAddress
from dht.errors import LocalError, MusterError, NetworkError, UsageError
from dht.identity import Identity
from dht.invite import Invite
from dht.locks import RuntimeDirectory
from peer.cli.credit import newest_report
from peer.machine.limits import Limits
from peer.machine.settings_file import shown
from peer.service import process
from peer.service.process import ServiceOptions
from peer.service.served import Start
from peer.service.shutdown import ALARM_SECONDS, ShutdownRequests
from tests.coordinator.rigs import manifest

KEY = Identity(bytes(32)).peer_id
INVITE = str(Invite(bytes(32), KEY, (PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{KEY}"),)))


class Stand:
    """A fake node that trains nothing, ends once drained, and records what happens to it."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.over = asyncio.get_running_loop().create_future()
        self.manifest = manifest()

    def invite(self, _: object = ()) -> str:
        return INVITE

    def snapshot(self) -> PeerSnapshot:
        state = "finished" if self.over.done() else "training"
        return PeerSnapshot(peer_id="me", run_id="run", name="", role="learner", state=state, pid=1, wall_seconds=2.0)

    async def final_snapshot(self) -> PeerSnapshot:
        return self.snapshot().model_copy(update={"digests_from_tensors": ("d",)})

    @property
    def checkpointer(self) -> Stand:
        return self

    async def save_now(self) -> Path:
        self.happened.append("save")
        return Path("/run-1")

    async def credit(self) -> CreditReport:
        return CreditReport(run_id="ab", from_versions=(1,), to_versions=(2,), missed=0, tokens=7, contributors=())

    @property
    def limits(self) -> Stand:
        return self

    def view(self) -> OwnerLimits:
        return shown(Limits())

    async def change(self, changes: Sequence[str]) -> OwnerLimits:
        self.happened += changes
        return shown(Limits().changed(changes))

    async def pause(self) -> None:
        self.happened.append("pause")

    async def resume(self) -> None:
        raise LocalError("the learner is gone")

    def drain(self) -> None:
        self.happened.append("drain")
        if not self.over.done():
            self.over.set_result(None)

    def end_run(self) -> None:
        """End the run; callable from another thread."""
        self.over.get_loop().call_soon_threadsafe(self.over.set_result, None)

    def closing_advice(self) -> Sequence[str]:
        return ("the newest export is in models/latest",)

    async def wait(self) -> None:
        await asyncio.shield(self.over)

    async def save_last(self) -> None:
        pass

    async def stop(self) -> None:
        self.happened.append("stop")


class Stubborn(Stand):
    """A node whose rounds never end."""

    def drain(self) -> None:
        self.happened.append("drain")


class Listed(Stand):
    """A node of a run that admits only named peers."""

    def invite(self, _: object = ()) -> str:
        raise UsageError("name one")


class OnSlowDisk(Stand):
    """A node whose last save takes longer than stopping may."""

    async def save_last(self) -> None:
        await asyncio.sleep(3 * process.STOP_SECONDS_MAX)
        self.happened.append("saved")


class OnDeadDisk(Stand):
    """A node whose last save never ends."""

    async def save_last(self) -> None:
        await asyncio.Event().wait()


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the alarms that are set, as real ones would hit the test run; restore signal handlers afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    seen: list[int] = []
    monkeypatch.setattr(signal, "alarm", seen.append)
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


class Run:
    """One service run with its output; `driver` acts on it from another thread once its socket exists."""

    def __init__(self, directory: Path, stay: bool = False, kind: type[Stand] = Stand) -> None:
        self.options = ServiceOptions(directory, stay=stay, show_invite=True)
        self.kind = kind
        self.lines: list[str] = []
        self.nodes: list[Stand] = []

    def __call__(self, driver: Callable[[], None]) -> list[str]:
        ready = threading.Event()
        failures: list[Exception] = []

        def drive() -> None:
            try:
                assert ready.wait(20)
                driver()
            except (AssertionError, MusterError) as error:
                failures.append(error)
                os.kill(os.getpid(), signal.SIGTERM)

        async def start() -> Stand:
            self.nodes.append(self.kind())
            return self.nodes[0]

        def say(line: str) -> None:
            self.lines.append(line)
            ready.set()

        thread = threading.Thread(target=drive)
        thread.start()
        try:
            process.run(lambda: start, self.options, say)
        finally:
            thread.join()
        assert failures == []
        return self.nodes[0].happened

    def wait_for(self, text: str) -> None:
        """Wait until its last line contains the text."""
        until = time.monotonic() + 20
        while text not in self.lines[-1]:
            assert time.monotonic() < until

    def tell(self, command: Command) -> None:
        ask(self.options.data_directory, command)


@pytest.mark.usefixtures("alarms")
def test_a_peer_whose_output_nobody_takes_goes_on(tmp_path: Path) -> None:
    taken = []

    def say(line: str) -> None:
        taken.append(line)
        if len(taken) > 1:
            os.kill(os.getpid(), signal.SIGTERM)
        raise OSError(errno.ENOSPC, "no space left on device")

    async def start() -> Stand:
        return Stand()

    process.run(lambda: start, ServiceOptions(tmp_path, show_invite=True, status_seconds=0.01), say)
    assert taken[0].startswith("invite: ")
    assert taken[-2].startswith("this peer has left the run after ")


def test_a_host_without_an_invite_for_anybody_says_why_and_goes_on(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path, kind=Listed)
    assert run(lambda: os.kill(os.getpid(), signal.SIGTERM)) == ["drain", "stop"]
    assert run.lines[0] == "name one"


def test_an_invite_is_shown_only_once_the_metrics_have_their_port(tmp_path: Path, alarms: list[int]) -> None:
    """The port may have been taken since the start, or be the one on which this peer listens."""
    said: list[str] = []

    async def start() -> Stand:
        return Stand()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ServiceOptions(tmp_path, show_invite=True, metrics_port=taken.getsockname()[1])
        with pytest.raises(UsageError, match="metrics cannot be served at"):
            process.run(lambda: start, options, said.append)
    assert said == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_drains_and_then_stops(tmp_path: Path, alarms: list[int], number: signal.Signals) -> None:
    run = Run(tmp_path)
    assert run(lambda: os.kill(os.getpid(), number)) == ["drain", "stop"]
    assert run.lines[0] == f"invite: {INVITE}"
    assert run.lines[1].startswith("this invite works on the host's own machine only")
    assert any("press Ctrl-C again" in line for line in run.lines)
    assert alarms == []


def test_two_signals_stop_at_once_with_a_bound(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path, kind=Stubborn)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while "drain" not in run.nodes[0].happened:
            assert snapshot(tmp_path).state == "training"
        os.kill(os.getpid(), signal.SIGINT)

    assert run(twice) == ["drain", "stop"]
    assert alarms == [ALARM_SECONDS, 0, ALARM_SECONDS], "the disk may take its time"


def test_the_end_of_the_run_ends_the_peer(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path)
    assert run(lambda: run.nodes[0].end_run()) == ["stop"]
    assert run.lines[-2].startswith("the run is over")
    assert run.lines[-1] == "the newest export is in models/latest"
    assert not (tmp_path / SOCKET_NAME).exists()


def test_a_last_save_that_takes_longer_than_stopping_may_is_no_failure(
    tmp_path: Path, alarms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOP_SECONDS_MAX", 0.01)
    monkeypatch.setattr(process, "SAVE_SECONDS_QUIET", 0.01)
    run = Run(tmp_path, kind=OnSlowDisk)
    assert run(lambda: run.nodes[0].end_run()) == ["saved", "stop"]
    saving, over, export = run.lines[-3:]
    assert saving == "still writing the last checkpoint; press Ctrl-C twice to leave without it"
    assert over.startswith("the run is over"), "the goodbye comes last"
    assert export == "the newest export is in models/latest"


def test_a_first_signal_does_not_cost_the_last_save() -> None:
    """A service may be stopped while its peer, whose run is over, still saves."""
    requests, lines = ShutdownRequests(), list[str]()

    class OnBusyDisk(Stand):
        async def save_last(self) -> None:
            requests.on_signal(signal.SIGTERM)
            for _ in range(10):
                await asyncio.sleep(0)
            self.happened.append("saved")

    async def main() -> list[str]:
        node = OnBusyDisk()
        await process._save_last(node, requests, lines.append)
        return node.happened

    assert asyncio.run(main()) == ["saved"]
    assert lines == []


def test_an_owner_that_will_not_wait_for_the_last_save_presses_again(
    tmp_path: Path, alarms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SAVE_SECONDS_QUIET", 0.01)
    run = Run(tmp_path, kind=OnDeadDisk)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        run.wait_for("still writing")
        os.kill(os.getpid(), signal.SIGINT)

    assert run(twice) == ["drain", "stop"]
    assert run.lines[-3].startswith("leaving without the last checkpoint")
    assert run.lines[-2].startswith("this peer has left the run after ")
    assert alarms == [ALARM_SECONDS] * 2


def test_a_peer_that_writes_its_last_checkpoint_says_that_it_is_ending(
    tmp_path: Path, alarms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SAVE_SECONDS_QUIET", 0.01)
    run = Run(tmp_path, kind=OnDeadDisk)

    def ending() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        run.wait_for("still writing")
        with pytest.raises(EndingError, match="the peer here is ending: it writes its last checkpoint"):
            snapshot(tmp_path)
        with pytest.raises(EndingError):
            ask(tmp_path, "pause")
        run.tell("stop")  # which it does
        os.kill(os.getpid(), signal.SIGINT)

    assert run(ending) == ["drain", "stop"]
    assert not (tmp_path / SOCKET_NAME).exists()


def test_a_peer_that_drains_has_left_a_run_that_goes_on(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path)
    assert run(lambda: run.tell("drain")) == ["drain", "stop"]
    assert any(re.match(r"this peer has left the run after \d+:\d\d, at step \d+, loss ", line) for line in run.lines)


def test_a_peer_that_stays_answers_after_the_end_until_it_is_told_to_stop(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path, stay=True)

    def after_the_end() -> None:
        run.tell("drain")
        until = time.monotonic() + 20
        while not run.lines[-2].startswith("this peer has left the run after "):
            assert time.monotonic() < until
        assert snapshot(tmp_path).state == "finished"
        assert snapshot(tmp_path, "final").digests_from_tensors == ("d",)
        run.tell("stop")

    assert run(after_the_end) == ["drain", "stop"]
    assert sum(line.startswith("this peer has left") for line in run.lines) == 1


def test_commands_reach_the_node_and_their_failures_come_back(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path)

    def commands() -> None:
        assert ask(tmp_path, "invite") == {"invite": INVITE}
        assert ask(tmp_path, "save") == {"folder": "/run-1"}
        assert newest_report(tmp_path, "").tokens == 7
        assert limits(tmp_path).limits[0].value == 0.0
        assert limits(tmp_path, ["upload_mbit=2"]).limits[0].value == 2.0
        with pytest.raises(UsageError, match="upload_mbit"):
            limits(tmp_path, ["upload_mbit=fast"])
        run.tell("pause")
        with pytest.raises(LocalError, match="the learner is gone"):
            run.tell("resume")
        run.tell("stop")

    assert run(commands) == ["save", "upload_mbit=2", "upload_mbit=fast", "pause", "stop"]


def test_a_node_that_fails_is_stopped_and_the_reason_raised(tmp_path: Path, alarms: list[int]) -> None:
    run = Run(tmp_path)

    def fail() -> None:
        over = run.nodes[0].over
        over.get_loop().call_soon_threadsafe(over.set_exception, LocalError("the learner process was killed"))

    with pytest.raises(LocalError, match="was killed"):
        run(fail)
    assert run.nodes[0].happened == ["stop"]
    assert not (tmp_path / SOCKET_NAME).exists()


def test_a_node_that_cannot_start_leaves_no_socket(tmp_path: Path, alarms: list[int]) -> None:
    async def start() -> Stand:
        raise NetworkError("nobody answers")

    with pytest.raises(MusterError, match="nobody answers"):
        process.run(lambda: start, ServiceOptions(tmp_path), lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_during_the_start_ends_it(tmp_path: Path, alarms: list[int]) -> None:
    happened: list[str] = []

    async def start() -> Stand:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            happened.append("cancelled")
            raise
        raise AssertionError

    process.run(lambda: start, ServiceOptions(tmp_path), happened.append)
    assert happened == ["cancelled"]


def test_a_caller_of_a_starting_peer_is_told_what_it_does(tmp_path: Path, alarms: list[int]) -> None:
    async def start() -> Stand:
        with pytest.raises(StartingError, match="the peer here is still starting: it reads the text"):
            await asyncio.to_thread(snapshot, tmp_path)
        await asyncio.to_thread(ask, tmp_path, "stop")
        await asyncio.Event().wait()
        raise AssertionError

    process.run(lambda: start, ServiceOptions(tmp_path, doing=lambda: "reads the text"), lambda line: None)
    assert list(tmp_path.iterdir()) == [], "it has ended"


def test_a_signal_during_the_imports_ends_quietly(tmp_path: Path, alarms: list[int]) -> None:
    def prepare() -> Start:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal comes first")

    lines: list[str] = []
    process.run(prepare, ServiceOptions(tmp_path), lines.append)
    assert lines == []


def test_a_peer_on_a_tether_stops_at_the_first_sigterm_without_saving(alarms: list[int]) -> None:
    requests = ShutdownRequests(tethered=True)
    requests.on_signal(signal.SIGINT)
    assert not requests.stop.is_set()
    assert not requests.abandoned
    requests = ShutdownRequests(tethered=True)
    requests.on_signal(signal.SIGTERM)
    assert requests.stop.is_set()
    assert requests.abandoned
    assert alarms == [ALARM_SECONDS]


def test_folders_of_killed_processes_are_removed_and_those_in_use_stay(short_folder: Path) -> None:
    mine = RuntimeDirectory(short_folder)
    abandoned = mine.path.with_name("abandoned")
    (abandoned / "data").mkdir(parents=True)
    process.remove_abandoned(short_folder)
    assert not abandoned.exists()
    assert mine.path.exists()
    mine.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a folder with a path short enough for sockets, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)

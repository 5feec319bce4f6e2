"""An observer: a process that reads a run and takes no part in it.

`python -m peer.observer.process --invite INVITE --out FILE` joins the network as a client under its own key. It reads
presence records and asks peers for certificates and their status. Every two seconds it replaces the view in the file,
whether or not the network answers. It announces nothing, trains nothing, votes for nothing and writes no record.
`peer.observer.state` turns what it reads into views.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog

from coordinator.chain.chain import Chain
from coordinator.run.manifest import Manifest
from coordinator.views.network_view import SENTENCE_CHARACTERS_MAX, NetworkView
from coordinator.views.view_file import write_view
from coordinator.wire.shards import Survey
from dht.daemon.config import DaemonConfig
from dht.door import Door
from dht.errors import LocalError, MusterError, NetworkError, PeerError, UsageError
from dht.identity import Identity, KeyVerifier, PeerId
from dht.invite import Invite
from peer.machine import log
from peer.machine.clock import unix_seconds
from peer.machine.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from peer.machine.paths import OBSERVER_KEY_NAME, runtime_directory
from peer.machine.tasks import Tasks
from peer.machine.text import plain
from peer.net.frames import decode_header, encode_header
from peer.net.network import Network
from peer.net.presence_loop import distinct, presences, read_places
from peer.observer.chains import Chains
from peer.observer.peers import HeardPresence
from peer.observer.state import Observation, Question
from peer.observer.view import run_facts
from peer.sync.bootstrap import fetch_chains, fetch_manifest
from peer.sync.introduction import Introduction, empty_chains, observer_rules, waypoint_of

VIEW_SECONDS = 2.0
READ_SECONDS_MAX = 2.0  # between two reads of the record store
READS_PER_PRESENCE = 3  # reads per interval between presence records, so that silence is noticed soon
RETRY_SECONDS = 5.0
Show = Callable[[NetworkView], Awaitable[None]]

logger = structlog.get_logger(__name__)


class Observer:
    """One observer of one run, which runs until cancelled and calls `show` with every view.

    If no peer answers at the beginning, it tries again if `patient`, else it fails.
    """

    def __init__(self, invite: Invite, key: Path, show: Show, patient: bool = True) -> None:
        self._invite = invite
        self._patient = patient
        self._identity = Identity.load_or_create(key)
        self._config = DaemonConfig(
            key,
            initial_peers=invite.addresses,
            client_only=True,
            runtime_parent=runtime_directory(),
            door=Door(invite.pass_for),
            fresh_key=invite.named is None,  # then its key is its own and new
        )
        self._show = show
        self._observation: Observation | None = None
        self._network: Network | None = None
        self._note = "looking for the network"
        self._tasks = Tasks(self._fail)
        self._broken: asyncio.Future[None]

    async def run(self) -> None:
        """Observe and show views until cancelled; closes the network at the end.

        Raises LocalError if this machine cannot do it, NetworkError if it is not patient and no peer answers.
        """
        self._broken = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._look())
        self._tasks.spawn(self._view())
        try:
            await self._broken
        finally:
            await self._tasks.end()
            if self._network is not None:
                await self._network.close()

    def _fail(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    async def _look(self) -> None:
        while self._network is None:
            try:
                await self._connect()
            except NetworkError as error:
                if not self._patient:
                    raise
                self._note = str(error)
                await asyncio.sleep(RETRY_SECONDS)
        await self._read()

    async def _connect(self) -> None:
        network = await Network.open(self._config, self._invite.run_id, self._addresses_of)
        try:
            manifest = await fetch_manifest(network, self._invite.run_id, self._invite.peers)
            chains = Chains(manifest, self._identity.peer_id, KeyVerifier(), await self._begin(network, manifest))
        except BaseException:
            await network.close()
            raise
        self._set_clock(chains)
        observation = Observation(manifest, run_facts(manifest), chains)
        await network.start(self._on_frame, lambda peer: None)
        self._network, self._observation = network, observation
        self._tasks.spawn(network.watch())

    async def _begin(self, network: Network, manifest: Manifest) -> Sequence[Chain]:
        """Fetch the chains up to the invite's waypoint, if it has one."""
        waypoint = waypoint_of(self._invite)
        if waypoint is None:
            return ()
        empty = empty_chains(manifest, observer_rules(manifest, KeyVerifier()))
        return await fetch_chains(network, self._invite.peers, Introduction(waypoint, empty))

    def _addresses_of(self, peer: PeerId) -> list[str]:
        known = None if self._observation is None else self._observation.known.peers.get(peer)
        return [] if known is None else list(known.presence.addresses)

    def _on_frame(self, sender: PeerId, header: bytes, _: bytes) -> None:
        if self._observation is None:
            return
        with suppress(PeerError):  # a frame of another version, or nonsense
            self._observation.hear(sender, decode_header(header), self._now())
            self._ask(self._observation.chains.take_questions())

    def _ask(self, questions: Sequence[Question]) -> None:
        for peer, message in questions:
            if self._network is not None:
                self._network.post(peer, encode_header(message))

    async def _read(self) -> None:
        """Read the record store again and again, and ask about what is new there."""
        observation, network = self._observation, self._network
        assert observation is not None
        assert network is not None
        pace = observation.manifest.config.pace
        interval, survey = min(READ_SECONDS_MAX, pace.presence_seconds / READS_PER_PRESENCE), Survey()
        while True:
            try:
                read = await read_places(network.dht.store, self._invite.run_id, survey.read())
                self._note = ""
            except NetworkError as error:
                read, self._note = {}, str(error)
            found = await presences(distinct(read), network.dht.daemon, await network.dht.daemon.hosts())
            survey.found([presence.shard_depth for _, presence in found])
            heard = [HeardPresence(record.sender, one, record.issued_unix_seconds) for record, one in found]
            self._set_clock(observation.chains)
            observation.read(heard, self._now())
            self._ask(observation.questions(self._now()))
            await asyncio.sleep(interval)

    async def _view(self) -> None:
        while True:
            note = plain(self._note, SENTENCE_CHARACTERS_MAX)
            if self._observation is None:
                view = NetworkView(run_id=self._invite.run_id.hex(), note=note, taken_unix_seconds=unix_seconds())
            else:
                self._set_clock(self._observation.chains)
                view = self._observation.view(self._now(), note)
            await self._show(view)
            await asyncio.sleep(VIEW_SECONDS)

    def _set_clock(self, chains: Chains) -> None:
        """Renew the offset of Unix time: the clock may be set, and monotonic time stands still in sleep."""
        chains.set_clock(unix_seconds() - self._now())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class ViewFile:
    """Writes views to a file. Raises LocalError if the first cannot be written; a disk may be full for a while."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = False
        self._trouble = ""

    async def __call__(self, view: NetworkView) -> None:
        trouble = ""
        try:
            await asyncio.to_thread(write_view, self._path, view)
            self._written = True
        except LocalError as error:
            if not self._written:
                raise
            trouble = str(error)
        if trouble and not self._trouble:
            logger.warning("view_not_written", reason=trouble)
        self._trouble = trouble


async def observe(invite: Invite, key: Path, show: Show, patient: bool = True) -> None:
    """Show views of a run until SIGINT or SIGTERM; raises what `Observer.run` does."""
    observing = asyncio.create_task(Observer(invite, key, show, patient).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, observing.cancel)
    with suppress(asyncio.CancelledError):
        await observing


def main(arguments: list[str]) -> int:
    """Write views to a file; returns an exit code of `muster`."""
    parser = argparse.ArgumentParser("python -m peer.observer.process", description="Write views of a run into a file.")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--invite", help="the line that the host printed")
    given.add_argument("--invite-file", type=Path, help="a file with that line: anybody here could read an argument")
    parser.add_argument("--out", required=True, type=Path, help="the file that always holds the newest view (JSON)")
    parser.add_argument("--data", type=Path, help="folder of this observer's key and log; default: a temporary one")
    parser.add_argument("--key", type=Path, help="this observer's key; default: one in its folder")
    options = parser.parse_args(arguments)

    try:
        with ExitStack() as stack:
            directory = options.data or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-observer-"))
            )
            log.configure(directory)
            log.silence_libraries()
            key = options.key or directory / OBSERVER_KEY_NAME
            text = options.invite if options.invite_file is None else options.invite_file.read_text()
            asyncio.run(observe(Invite.parse(text), key, ViewFile(options.out)))
    except MusterError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

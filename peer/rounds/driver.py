"""The thin shell around the protocol core: carries out its actions, and brings it the results and the time.

Everything here runs in one event loop. The core is called with one event at a time. Slow work (the learner's step
boundary, tensors, the disk, other peers) is awaited in tasks that end by feeding an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from coordinator.core.actions import (
    Action,
    Adopt,
    Apply,
    Discard,
    Encode,
    FetchState,
    Inspect,
    KeepEvidence,
    Open,
    RecordVote,
    Reduce,
    RoundKey,
    Send,
    Tell,
    VersionCertified,
)
from coordinator.core.events import Encoded, Event, PeerGone, Received, Tick, VoteRecorded
from coordinator.engine.engine import Engine
from coordinator.engine.fragment import roots_needed
from coordinator.views.round_traces import RoundTraces
from coordinator.wire.messages import Message, PartNote
from dht.errors import LocalError, PeerError
from dht.identity import PeerId
from dht.statement import Statement
from peer.learner.client import LearnerClient
from peer.learner.spawn import LearnerGoneError
from peer.machine.fault_points import Fault
from peer.net.frames import Transfer, decode_header, encode_header
from peer.net.transport import Payload, Transport
from peer.rounds.adoption import Adoption
from peer.rounds.adoption_queue import AdoptionQueue
from peer.rounds.catch_up import CatchUp
from peer.rounds.counters import RunCounters
from peer.rounds.requests import PeerRequests
from peer.rounds.stale_work import StaleWork
from peer.rounds.tape_recorder import TapeRecorder
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors
from peer.storage.blobs import BlobStore
from peer.storage.record_log import RecordLog
from peer.storage.stored_vote import encode_vote

log = structlog.get_logger(__name__)

CLOCK_EPSILON_SECONDS = 0.001
NO_TAPE = TapeRecorder(PeerId(""))


def _raise(error: BaseException) -> None:
    raise error


def _log(told: Tell) -> None:
    """Log an event of the core; refusals at debug level, so that their sender cannot fill the log. All are counted."""
    level = logging.DEBUG if told.event == "refused" else logging.INFO
    log.log(level, told.event, fragment=told.fragment, version=told.version, **told.details)


def _tell(driver: RoundDriver, told: Tell) -> None:
    driver.counters.tell(told, driver.engine.core.unix_seconds(driver.now))
    _log(told)


def _leaf_bytes(message: Message, work: TensorWorker) -> int | None:
    """Return the Merkle leaf size of the payload beside this message, in bytes; None if it has no payload."""
    contribution_leaf, result_leaf = work.leaf_bytes
    if isinstance(message, PartNote):
        return contribution_leaf
    return result_leaf if isinstance(message, Statement) and message.context.kind == "result" else None


def _keep_quiet(_: KeepEvidence) -> None:
    """Drop the evidence: the default until `keep` is set."""


def _go_on() -> None:
    """Do nothing: the default for a run without a last version."""


@dataclass
class RoundDriver:
    """One engine with its surroundings. `failed` is called with every error that must end this peer."""

    engine: Engine
    transport: Transport
    work: TensorWorker
    anchors: Anchors
    blobs: BlobStore
    votes: RecordLog
    counters: RunCounters
    failed: Callable[[BaseException], None] = _raise
    keep: Callable[[KeepEvidence], None] = _keep_quiet
    certified: Callable[[], None] = _go_on  # at every version, before an event can open another round
    learner: LearnerClient | None = None
    fault: Fault | None = None
    tape: TapeRecorder = NO_TAPE

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        core = self.engine.core
        self.requests = PeerRequests(
            self.anchors, core.manifest.to_wire(), lambda: self.engine.chains, self.post, core.answering
        )
        self.traces = RoundTraces(self.engine)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_is_due = False
        self._open_rounds: set[RoundKey] = set()
        self.catch_up = CatchUp(self.requests.states, self.work, lambda: self.engine.chains, self._start, self.feed)
        self.local_work = StaleWork(len(self.engine.machines), core.pace.max_stale)
        self.counters.follow(self.engine.machines)
        self.adoptions = AdoptionQueue(len(self.engine.machines), core.pace.max_stale + 1, self.local_work)
        self._closed = False

    # -- events in

    @property
    def now(self) -> float:
        return self._loop.time()

    def feed(self, event: Event) -> None:
        """Hand an event to the core and start the actions that it returns."""
        if self._closed:
            return
        try:
            actions = self.engine.handle(event, self.now)
            self.traces.follow(actions, self.now)
            for action in actions:
                self._perform(action)
            self.counters.follow(self.engine.machines)
        except BaseException as error:  # noqa: BLE001 - a bug in the core must end the peer, not one callback
            self.failed(error)
            return
        if not self._timer_is_due:  # only once for all events of one turn of the loop
            self._timer_is_due = True
            self._loop.call_soon(self._set_timer)

    def on_frame(self, sender: PeerId, header: bytes, payload: bytes) -> None:
        """Handle a frame from the transport; drop it if it cannot be decoded."""
        try:
            message = decode_header(header)
        except PeerError as error:
            self.counters.events["unreadable"] += 1
            log.debug("unreadable_message", peer=sender, reason=str(error))
            return
        if isinstance(message, Transfer):
            self.requests.handle(sender, message, payload, self.now)
        else:
            self._receive(sender, message, payload)

    def on_gone(self, peer: PeerId) -> None:
        """Handle that the transport lost a peer."""
        self.requests.gone(peer)
        self.feed(PeerGone(peer))

    def _receive(self, sender: PeerId, message: Message, payload: bytes) -> None:
        leaf_bytes, root = _leaf_bytes(message, self.work), None
        if leaf_bytes is not None and len(payload) <= self.work.payload_bytes_max:
            self.blobs.needed = frozenset[bytes]().union(*map(roots_needed, self.engine.machines))
            root = self.blobs.add(payload, leaf_bytes, sender)
        self.feed(Received(sender, message, root))

    # -- actions out

    def post(self, peer: PeerId, message: Message | Transfer, payload: Payload) -> None:
        """Send a frame; the protocol repeats lost ones."""
        self.transport.post(peer, encode_header(message), payload)

    def _perform(self, action: Action) -> None:
        match action:
            case Send() | Tell() | KeepEvidence():
                self._say(action)
            case VersionCertified():
                self.certified()
            case Adopt():
                self._adopt(action)
            case FetchState():
                self.catch_up.start(action)
            case Discard():
                self._open_rounds.discard(action.key)
                self.work.submit(partial(self.work.discard, action.key))
            case Reduce() | Open() | Inspect() | Apply():
                # submitted now, so that it runs before later requests to the worker, such as discarding the round
                if isinstance(action, Reduce):
                    self._hit("reduce")
                self._start(self._report(self.work.submit(_job(self.work, action))))
            case Encode():
                self._open_rounds.add(action.key)
                self._start(self._answer(action))
            case RecordVote():
                self._start(self._answer(action))

    def _say(self, action: Send | Tell | KeepEvidence) -> None:
        match action:
            case Send():
                self._send(action)
            case Tell():
                _tell(self, action)
            case KeepEvidence():
                self.keep(action)

    async def _report(self, work: asyncio.Future[Event | None]) -> None:
        if (event := await work) is not None:
            self.feed(event)

    async def _answer(self, action: Encode | RecordVote) -> None:
        """Carry out a slow action, then tell the core."""
        event: Event | None
        match action:
            case Encode() if action.merged is not None:
                event = await self.work.run(partial(self.work.encode_merged, action))
            case Encode():
                event = await self._encode(action)
            case RecordVote():
                self._hit("record")
                event = await self._record_vote(action)
        if event is not None:
            self.feed(event)

    def _send(self, action: Send) -> None:
        message = action.message
        if isinstance(message, Statement):
            self._hit(message.context.kind)
        if isinstance(message, PartNote):
            self._hit("scatter")
        payload = b"" if action.payload is None else self.blobs.get(action.payload)
        if payload is not None:  # else it is too old: a peer that needs it asks another one
            self.post(action.to, message, payload)

    def _hit(self, point: str) -> None:
        if self.fault is not None and self.fault.strikes(point):
            self.fault.strike()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not (error is None or self._closed or isinstance(error, LearnerGoneError)):
            self.failed(error)

    async def _encode(self, action: Encode) -> Encoded | None:
        async with self.adoptions.turns[action.key.fragment]:
            if self.learner is None or action.key not in self._open_rounds:
                return None
            vector, counters = await self.learner.snapshot(action.key.fragment)
        if counters.steps == 0 or action.key not in self._open_rounds:
            return None
        self.tape.snapshot(action, counters.at_step)
        encoded = await self.work.run(partial(self.work.encode, action, vector, counters))
        if action.key not in self._open_rounds:
            self.work.submit(partial(self.work.discard, action.key))
        return encoded

    async def _record_vote(self, action: RecordVote) -> VoteRecorded:
        record = action.record
        key = RoundKey(record.fragment, record.version, record.roster_id)
        try:
            await self.work.run(partial(self.votes.append, encode_vote(record)))
        except LocalError as error:  # a full disk costs our vote, never the training
            self.counters.refuse("vote", str(error))
            return VoteRecorded(key, written=False)
        self.counters.take("vote")
        return VoteRecorded(key)

    def _adopt(self, action: Adopt) -> None:
        self._hit("adopt")
        fetched = self.catch_up.take(action.certificate) if action.applied is None else None
        # submitted now, so that it runs before the next version's requests to the worker
        adoption = self.work.submit(partial(self.work.adopt, action, fetched))
        self.tape.version(action.certificate)
        self.adoptions.add(action.certificate.fragment, self._start(self._update_learner(action, adoption)))

    async def _update_learner(self, action: Adopt, adoption: asyncio.Future[Adoption]) -> None:
        fragment = action.certificate.fragment
        async with self.adoptions.turns[fragment]:
            done = await asyncio.shield(adoption)  # not cancelled with this task: others are served from it
            if self.learner is None:
                self.traces.adopted(fragment, action.certificate.version, self.now)
                return
            dropped = action.snapshot is None and self.local_work.is_dropped(fragment)
            counted = done.counted
            if counted is not None:
                self.local_work.included(fragment)
            terms = (done.dropping() if dropped else done).terms()
            at_step = await self.learner.adopt(fragment, done.new, *terms)
            self.tape.adoption(action, at_step, dropped)
        self.traces.adopted(fragment, action.certificate.version, self.now)
        self.counters.adopted(action, None if counted is None else at_step - counted.at_step)

    def withdraw(self, withdrawn: bool) -> None:
        """Open no rounds and fetch no states while withdrawn; afterwards fetch what was missed."""
        self.engine.withdraw(withdrawn)
        self.catch_up.hold(withdrawn)
        self.feed(Tick())

    # -- time

    def _set_timer(self) -> None:
        self._timer_is_due = False
        if self._timer is not None:
            self._timer.cancel()
        if self._closed:
            return
        due = self.engine.next_deadline(self.now)
        if due != float("inf"):
            self._timer = self._loop.call_at(due + CLOCK_EPSILON_SECONDS, self.feed, Tick())

    async def close(self) -> None:
        """Stop everything. No event is fed after this."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.requests.close()
        self.work.close()


def _job(work: TensorWorker, action: Reduce | Open | Inspect | Apply) -> Callable[[], Event | None]:
    match action:
        case Reduce():
            return partial(work.reduce, action)
        case Open():
            return partial(work.inspector.open, action)
        case Inspect():
            return partial(work.inspector.inspect, action)
        case Apply():
            return partial(work.apply, action)

"""Hostile wards, heads and leaders of cells: they stop no peer, and no honest peer is banned for their acts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest

from coordinator.cells.assignment import heads_of
from coordinator.cells.cell_group import CellGroup, read_cell
from coordinator.cells.cell_rounds import CellRounds
from coordinator.chain.certificate import COUNT_MAX
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.core.events import Received
from coordinator.round.outcome import nonce_hash
from coordinator.simulator.peer import VirtualPeer
from coordinator.wire.messages import (
    Bundle,
    CellRoster,
    CertificateNote,
    Commit,
    Message,
    PartNote,
    WardNote,
    YieldNote,
)
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Context, Statement, digest_of, make_statement
from dht.wire import Wire
from tests.coordinator.builders import Club
from tests.extra import extra
from tests.sim.crowds import PEERS, Scene, says, scene, two_tiers
from tests.sim.crowds import small_groups as small_groups

NONCE = bytes(16)


@dataclass(slots=True)
class Outsider:
    """A hostile peer without a seat, which asks every head and claims these tokens and steps in each cell."""

    crowd: Scene
    tokens: int
    steps: int
    peer: VirtualPeer = field(init=False)
    own: list[Message] = field(default_factory=list)
    cells: dict[int, set[PeerId]] = field(default_factory=dict)  # heads that took it in, by version
    seen: set[bytes] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.peer = self.crowd.peers[-1]
        self.crowd.network.filter = self._meet
        self._ask()

    def _ask(self) -> None:
        """Ask every head, and again every second while the run lasts."""
        chains = [] if self.peer.engine is None else [self.peer.engine.machines[0].chain]
        for chain in chains:
            for head in sorted(heads_of(chain)):
                self._send(head, WardNote(fragment=0, base=chain.digest, boot=NONCE, dialable=False))
        self.crowd.clock.after(1.0, self._ask)

    def _meet(self, sender: PeerId, to: PeerId, message: Message) -> bool:
        """Suppress its honest core's messages, and read the messages that it gets."""
        if to == self.peer.me and self.peer.engine is not None:
            self._hear(message, self.peer.engine.core, self.peer.engine.machines[0].chain)
        said = isinstance(message, PartNote | WardNote) or (isinstance(message, Statement) and message.sender == sender)
        return sender != self.peer.me or not said or any(one is message for one in self.own)

    def _hear(self, message: Message, core: Core, chain: Chain) -> None:
        if isinstance(message, Statement) and message.context.kind == "cell" and message.digest not in self.seen:
            try:
                group = read_cell(message, chain)
            except PeerError:
                return
            if self.peer.me in group.contributors:
                self.seen.add(message.digest)
                self.cells.setdefault(chain.version + 1, set()).add(group.head)
                self.crowd.clock.after(0.2, partial(self._take_part, group, core.codec))

    def _take_part(self, group: CellGroup, codec: str) -> None:
        roster_id = group.key.roster_id
        roots = tuple(digest_of(b"hostile", roster_id, bytes([one])) for one in range(group.partitions))
        body = Commit(
            tokens=self.tokens,
            steps=self.steps,
            window_first=0,
            window_count=self.steps,
            codec=codec,
            part_roots=roots,
            squared_norms=(1.0,) * group.partitions,
            nonce_hashes=(nonce_hash(NONCE), nonce_hash(NONCE)),
        )
        self._say(group.leader, "commit", body, group.key.version, roster_id)
        for partition, reducer in enumerate(group.reducers):
            self._send(reducer, PartNote(group=roster_id, partition=partition, turn=0), roots[partition])

    def _say(self, to: PeerId, kind: str, body: Wire, version: int, group: bytes) -> None:
        run_id = self.peer.world.manifest.run_id
        context = Context(run_id=run_id, kind=kind, fragment=0, version=version, group=group)
        self._send(to, make_statement(self.peer.signer, context, body))

    def _send(self, to: PeerId, message: Message, payload: bytes | None = None) -> None:
        self.own.append(message)
        self.crowd.network.send(self.peer.me, to, message, payload)


def test_a_claim_beyond_all_bounds_ends_no_heads_process() -> None:
    """The sum of a cell's claims may be more than one commitment can hold."""
    crowd = scene()
    outsider = Outsider(crowd, tokens=1, steps=COUNT_MAX)
    crowd.until(3)
    assert outsider.cells


def test_a_ward_that_claims_hardly_any_tokens_takes_no_weight_from_its_cell() -> None:
    crowd = scene()
    outsider = Outsider(crowd, tokens=1, steps=1 << 40)
    certificates = crowd.until(4)
    taken = [(one, line) for one in certificates for line in one.outcome.included() if line.cell is not None]
    hurt = [line for one, line in taken if line.peer in outsider.cells.get(one.version, ())]
    step = crowd.peers[0].world.manifest.config.tokens_per_step
    assert hurt
    assert all(line.tokens > 0.9 * step * line.steps for line in hurt)
    counted = [crowd.workers(one) for one in certificates]
    for peer in crowd.peers[:-1]:
        assert peer.tensors.learner.counted == [sum(one.get(peer.me, 0) for one in counted)]


def test_a_head_that_names_too_many_cells_ends_no_sub_leaders_process() -> None:
    crowd = scene(34)
    cheats: list[VirtualPeer] = []  # the first head of two tiers, once there is one

    def names_two(peer: VirtualPeer, action: Action) -> bool:
        led = None if peer.engine is None else peer.engine.machines[0].cells.leading
        note = action.message if isinstance(action, Send) else None
        if isinstance(note, YieldNote) and led is not None and led.group.height == 2 and peer in (cheats or [peer]):
            cheats[:] = [peer]
            object.__setattr__(action, "message", note.model_copy(update={"cells": 2 * note.cells}))
        return False

    crowd.trap = names_two
    with two_tiers():
        certificates = crowd.until(3)
    assert cheats
    assert crowd.meter.told["refused"]
    assert len(crowd.workers(certificates[-1])) > 0.6 * 34


def test_a_ward_that_asks_every_head_gets_into_the_cell_of_one() -> None:
    crowd = scene()
    step = crowd.peers[0].world.manifest.config.tokens_per_step
    outsider = Outsider(crowd, tokens=12 * step, steps=12)
    crowd.until(3)
    assert len(outsider.cells) >= 2
    assert {len(heads) for heads in outsider.cells.values()} == {1}


def test_a_peer_cannot_ask_for_another_ward() -> None:
    """A peer that kept a ward's request from an earlier stay at this base could get it into a cell that it refuses."""
    crowd = scene()
    relay, relayed = crowd.peers[0].me, list[PeerId]()

    def divert(sender: PeerId, to: PeerId, message: Message) -> bool:
        if isinstance(message, WardNote) and sender != relay and not relayed:
            relayed.append(sender)
            crowd.network.send(relay, to, message, None)
            return False
        return True

    crowd.network.filter = divert
    certificates = crowd.until(3)
    assert crowd.meter.told["refused"] == len(relayed) == 1
    assert set(relayed) == {one.me for one in crowd.peers} - crowd.workers(certificates[1]).keys()


@pytest.mark.parametrize("seed", [3, *extra([1, 4])])
def test_a_peer_that_comes_back_to_a_base_says_nothing_twice_in_a_cell(seed: int) -> None:
    """No attack: a version's state is lost, so all peers go on from the version before it."""
    crowd = scene(seed=seed)
    world = crowd.peers[0].world
    club = Club([one.signer for one in crowd.peers], world.verifier, world.manifest)

    def is_lost(chain: Chain) -> None:
        certificate = club.certify(chain, [club.number(one) for one in sorted(chain.newest_roster())])
        crowd.lost.add(certificate.digest)
        for peer, other in zip(crowd.peers, reversed(crowd.peers), strict=True):
            peer.handle(Received(other.me, CertificateNote(certificate=certificate), None))

    def watch(peer: VirtualPeer, action: Action) -> bool:
        told = isinstance(action, Send) and isinstance(action.message, YieldNote)
        if told and peer.engine is not None and peer.engine.machines[0].chain.version == 2:
            crowd.trap = None
            crowd.clock.after(0.2, partial(is_lost, peer.engine.machines[0].chain.truncated(2)))
        return False

    crowd.trap = watch
    certificates = crowd.until(8)
    assert crowd.lost
    assert crowd.meter.told["version_unserved"] == PEERS
    assert not crowd.banned
    assert len(crowd.workers(certificates[-1])) > 0.7 * PEERS


def test_a_head_that_restarts_does_not_go_on_with_a_cell_of_its_earlier_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ward shows it that cell with two of its three commitments: a second, different bundle would convict it."""
    crowd = scene()
    head = crowd.peers[0]  # which peers become heads follows the digests of this scene
    contributes = CellRounds._contributes
    monkeypatch.setattr(
        CellRounds, "_contributes", lambda rounds, now: rounds.core.me != head.me and contributes(rounds, now)
    )
    shown: list[Statement] = []

    def show(cell: Statement, bundle: Statement) -> None:
        head.start()
        ward = PeerId(cell.read(CellRoster).wards[-1].peer)
        for delay, one in ((0.0, cell), *((0.2, commit) for commit in bundle.read(Bundle).commits[:2])):
            crowd.clock.after(delay, partial(crowd.network.send, ward, head.me, one, None))
        shown.append(cell)

    def restart(bundle: Statement, cell: Statement) -> None:
        head.crash()
        crowd.clock.after(0.1, partial(show, cell, bundle))

    def watch(peer: VirtualPeer, action: Action) -> bool:
        led = None if peer.engine is None else peer.engine.machines[0].cells.leading
        if peer is head and led is not None and isinstance(action, Send) and says(action, "bundle"):
            crowd.trap = None
            assert isinstance(action.message, Statement)
            head.checkpoint()
            crowd.clock.after(0.12, partial(restart, action.message, led.group.statement))
        return False

    crowd.trap = watch
    crowd.until(8)
    assert shown
    assert crowd.meter.told["refused"]
    assert not crowd.banned

"""Steps 4–7 of a round for one member: commit, scatter, reduce, return (design §6.2).

Sans-IO and idempotent: the messages that `JointReduction` passes on may come twice and in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field

from coordinator.chain.chain import Chain
from coordinator.chain.weights import most_hostile, outweighed
from coordinator.core.actions import Action, Apply, Encode, Send
from coordinator.core.context import Core
from coordinator.core.events import Encoded, Reduced
from coordinator.core.timeline import INPUTS_SHARE, REDO_INPUTS_SHARE, Timeline
from coordinator.group.group import Group, InputSet, read_input_set
from coordinator.round.nonces import Nonces
from coordinator.round.reducer import ReducerDuty
from coordinator.round.stage_waits import Waits
from coordinator.wire.messages import NONCE_BYTES, Commit, NeedNote, PartNote, Result
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement

GIVEN_MAX = 16  # how often a member gets the same part or result: reminders also ask for bytes that are on their way


@dataclass(frozen=True, slots=True)
class HeldResult:
    """A merged partition whose bytes we hold."""

    reducer: PeerId
    result: Result
    statement: Statement


@dataclass(slots=True)
class Exchange:
    """The commitments, parts and results that a member has sent and received so far.

    `redone` are the partitions in their second turn. `named` are the results in a proposal, by statement digest.
    `left_out` is the number of active members that asked and would have a seat, but are not in the roster.
    """

    core: Core
    chain: Chain
    group: Group
    timeline: Timeline
    left_out: int = 0
    nonces: Nonces = field(init=False)
    encoded: Encoded | None = None
    commit: Statement | None = None
    inputs: InputSet | None = None
    duties: dict[tuple[int, int], ReducerDuty] = field(default_factory=dict)
    results: dict[tuple[int, int], HeldResult] = field(default_factory=dict)
    redone: frozenset[int] = frozenset()
    named: frozenset[bytes] = frozenset()
    given: Counter[tuple[PeerId, NeedNote]] = field(default_factory=Counter)  # answers sent, by member and request
    waits: Waits = field(init=False)

    def __post_init__(self) -> None:
        self.waits = Waits(self.core.me, self.core.lateness, self.group)
        self.nonces = Nonces((self.core.random_bytes(NONCE_BYTES), self.core.random_bytes(NONCE_BYTES)))

    def start(self, merged: Apply | None = None) -> list[Action]:
        """Ask the shell for our contribution, if we make one: our own, or the merged work of our cell."""
        if self.core.me not in self.group.contributors:
            return []
        return [Encode(self.group.key, self.group.partitions, merged, self.group.expected)]

    def on_encoded(self, event: Encoded) -> list[Action]:
        """Commit to our encoded contribution."""
        if self.commit is not None or event.steps == 0:
            return []
        self.encoded = event
        body = Commit(
            tokens=event.tokens,
            steps=event.steps,
            window_first=event.window_first,
            window_count=event.window_count,
            codec=self.core.codec,
            part_roots=event.part_roots,
            squared_norms=event.squared_norms,
            nonce_hashes=self.nonces.hashes,
            probation=self.core.me in self.group.probation,
            cell=event.cell,
        )
        self.commit = self.core.sign_statement("commit", self.group.key, self.group.key.roster_id, body)
        return [Send(self.group.leader, self.commit)]

    def on_bundle(self, statement: Statement, gone: Set[PeerId]) -> list[Action]:
        """Accept the first valid input set: scatter our parts, take up our reducer's duties.

        A valid input set is ignored if too many contributors are missing in it. It is also ignored if a leader and
        others, fewer than a third, could have half of its weight. No result of it could be accepted.
        """
        if self.inputs is not None:
            return []
        inputs = read_input_set(statement, self.group, self.core.codec, self.chain)
        if not self.suffices(inputs.peers) or _outweighed(
            self.group, self.left_out, inputs, 0, range(len(inputs.peers))
        ):
            return []
        self.inputs = inputs
        self.waits.give_up(self.group.contributors.difference(inputs.peers))
        return self._take_up(range(self.group.partitions), 0, gone)

    def suffices(self, peers: Collection[PeerId]) -> bool:
        """Whether the commitments of these peers make an input set."""
        enough = self.group.counted(peers) >= self.group.inputs_needed(self.left_out)
        return enough and len(peers) >= self.core.pace.min_group

    def _counted_min(self, inputs: InputSet) -> int:
        return self.group.merged_needed(len(inputs.peers), self.left_out)

    def on_redo(self, partitions: tuple[int, ...], gone: Set[PeerId]) -> list[Action]:
        """Begin the second turn of these partitions, with other reducers."""
        self.redone = frozenset(partitions)
        return self._take_up(partitions, 1, gone)

    def _take_up(self, partitions: Sequence[int], turn: int, gone: Set[PeerId]) -> list[Action]:
        """Begin a turn of these partitions; do not wait for members that are `gone`."""
        assert self.inputs is not None
        deadline = self.timeline.at(REDO_INPUTS_SHARE if turn else INPUTS_SHARE)
        actions: list[Action] = []
        for partition in partitions:
            if self._reducer(partition, turn) == self.core.me:
                patience = self.waits.at(("part", turn), self.timeline, partition)
                least = self.core.pace.min_group
                counted = self._counted_min(self.inputs)
                duty = ReducerDuty(self.group, self.inputs, partition, turn, (least, counted), deadline, patience)
                self.duties[partition, turn] = duty
                for peer in gone:
                    duty.lose(peer)
            actions += self._part(partition, turn)
        return actions

    def _reducer(self, partition: int, turn: int) -> PeerId:
        return self.group.reducer(partition, self.redone if turn else ())

    def _part(self, partition: int, turn: int) -> list[Action]:
        """Send our part of a partition to its reducer; nothing if the input set lacks our commitment."""
        if self.inputs is None or self.encoded is None or self.inputs.index(self.core.me) is None:
            return []
        note = PartNote(group=self.group.key.roster_id, partition=partition, turn=turn)
        return [Send(self._reducer(partition, turn), note, self.encoded.part_roots[partition])]

    def on_part(self, sender: PeerId, note: PartNote, root: bytes | None) -> None:
        """Take a contributor's part of a partition that we reduce; raises PeerError if it is not one."""
        duty = self.duties.get((note.partition, note.turn))
        member = self.inputs.index(sender) if self.inputs is not None else None
        if duty is None or member is None:
            raise PeerError("a part that we do not reduce")
        duty.arrive(member, root)
        self.waits.note_arrival(("part", note.turn), sender)

    def decide(self, now: float) -> list[Action]:
        """Start every reduction that is due."""
        return [action for duty in self.duties.values() if (action := duty.decide(now)) is not None]

    def on_reduced(self, event: Reduced) -> list[Action]:
        """Send our merged partition to all its receivers, including ourselves."""
        if event.root is None or self.inputs is None:
            return []
        body = Result(
            partition=event.partition,
            turn=event.turn,
            root=event.root,
            included=event.included,
            coefficients=event.coefficients,
            squared_norms=event.squared_norms,
            encoding_error=event.encoding_error,
        )
        statement = self.core.sign_statement("result", self.group.key, self.inputs.digest, body)
        return list(self.core.to_all(self.group.receivers(self.core.me), statement, event.root))

    def on_result(self, statement: Statement, root: bytes | None) -> None:
        """Keep the first valid result of each partition and turn; raises PeerError if it is not valid."""
        result = statement.read(Result)
        slot = (result.partition, result.turn)
        if slot not in self.results:
            self._check_result(statement, result, root)
            self.results[slot] = HeldResult(PeerId(statement.sender), result, statement)
        held = self.results[slot]
        self.waits.note_result_arrival(("result", result.turn), held.reducer, held.statement.digest)

    def _check_result(self, statement: Statement, result: Result, root: bytes | None) -> None:
        """Raise PeerError if the result does not belong to this group or is not valid.

        If a proposal names it, more than two thirds of the voters know that its sender was the reducer to make it.
        """
        if result.partition >= self.group.partitions or self.inputs is None:
            raise PeerError("a result of another group")
        if statement.context.group != self.inputs.digest:
            raise PeerError("a result of other inputs")
        if not self.awaits(statement, result) or (
            statement.digest not in self.named and statement.sender != self._reducer(result.partition, result.turn)
        ):
            raise PeerError("a result from somebody who does not reduce it")
        indices = set(result.included)
        if not indices <= set(range(len(self.inputs.peers))):
            raise PeerError("a result of inputs that do not exist")
        counted = self.group.counted(self.inputs.peers[member] for member in indices)
        few = len(indices) < self.core.pace.min_group or counted < self._counted_min(self.inputs)
        repeated = len(indices) != len(result.included)
        if few or repeated or _outweighed(self.group, self.left_out, self.inputs, result.partition, result.included):
            raise PeerError("a result of too few inputs")
        if root != result.root:
            raise PeerError("result bytes that do not match their signed root")

    def awaits(self, statement: Statement, result: Result) -> bool:
        """Whether we can judge a result yet: in a second turn only once we follow the redo or a proposal names it."""
        return result.turn <= self.turn_of(result.partition) or statement.digest in self.named

    @property
    def progress(self) -> tuple[bool, frozenset[int], frozenset[bytes]]:
        """The state that has to change before messages that came too early can be read."""
        return self.inputs is not None, self.redone, self.named

    @property
    def roots(self) -> frozenset[bytes]:
        """Roots of the bytes to keep for this group: our parts, the parts that we reduce, the accepted results."""
        own = () if self.encoded is None else self.encoded.part_roots
        commits = () if self.inputs is None else self.inputs.commits
        parts = (commits[member].part_roots[duty.partition] for duty in self.duties.values() for member in duty.arrived)
        return frozenset(own).union(parts, (held.result.root for held in self.results.values()))

    @property
    def phase(self) -> int:
        """1 once a redo has been ordered, else 0."""
        return 1 if self.redone else 0

    def turn_of(self, partition: int) -> int:
        return 1 if partition in self.redone else 0

    def held(self) -> tuple[HeldResult | None, ...]:
        """Return, per partition, the result of its current turn, if we hold it."""
        return tuple(map(self.held_of, range(self.group.partitions)))

    def held_of(self, partition: int) -> HeldResult | None:
        """Return the result of the partition's current turn, if we hold it."""
        return self.results.get((partition, self.turn_of(partition)))

    def by_digest(self) -> dict[bytes, HeldResult]:
        """Return the results of both turns by the digest of their statement."""
        return {held.statement.digest: held for held in self.results.values()}

    def known_results(self) -> dict[bytes, Result]:
        """Return the results of both turns by statement digest, without reducer and statement."""
        return {digest: held.result for digest, held in self.by_digest().items()}

    def lose(self, peer: PeerId) -> None:
        for duty in self.duties.values():
            duty.lose(peer)

    def remind(self, results: bool = True) -> list[Action]:
        """Ask again for late parts, and for late `results` if we are to get them; repeat our commitment before that."""
        if self.inputs is None:
            return [Send(self.group.leader, self.commit)] if self.commit is not None else []
        actions: list[Action] = []
        for (partition, turn), duty in self.duties.items():
            if not duty.started:
                actions += [Send(peer, self._need("part", partition, turn)) for peer in duty.missing()]
        for partition, held in enumerate(self.held()):
            if held is None and results:
                turn = self.turn_of(partition)
                actions.append(Send(self._reducer(partition, turn), self._need("result", partition, turn)))
        return actions

    def _need(self, what: str, partition: int, turn: int) -> NeedNote:
        return NeedNote(what=what, group=self.group.key.roster_id, partition=partition, turn=turn)

    def answer(self, sender: PeerId, need: NeedNote) -> list[Action]:
        """Send a member the part or result that it asks for, if we have it; at most GIVEN_MAX times."""
        if need.partition >= self.group.partitions or self.given[sender, need] >= GIVEN_MAX:
            return []
        self.given[sender, need] += 1
        if need.what == "part":
            followed = need.turn <= self.turn_of(need.partition)
            if followed and sender == self._reducer(need.partition, need.turn):
                return self._part(need.partition, need.turn)
            return []
        held = self.results.get((need.partition, need.turn))
        if held is None:
            return []
        return [Send(sender, held.statement, held.result.root)]


def _outweighed(group: Group, left_out: int, inputs: InputSet, partition: int, merged: Collection[int]) -> bool:
    """Whether the roster leaves peers out, and its leader with others, fewer than a third, may have half of the weight.

    The group of suspects always includes the leader, as only a hostile leader leaves peers out. Under an honest one a
    left-out peer is no reason to refuse anything. Else a peer that asks a moment too late on purpose would stop a
    swarm of unlike machines (docs/adr/0046).
    """
    if not left_out:
        return False
    everybody = max(len(group.members) + left_out, len(group.active))
    weights = {inputs.peers[one.member]: one.weight for one in inputs.partition(partition, merged)}
    its = weights.pop(group.leader, 0.0)
    return outweighed(its, weights.values(), most_hostile(everybody))

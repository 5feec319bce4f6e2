"""Our part in cells at one base (docs/adr/0011): wards ask, heads assign cells, cells merge, leaders report.

We are a head, the ward of a head, or the leader of a cell below a head's cell. Such a leader merges its own cell first
and contributes the result to the cell above. A `CellRounds` lives as long as its base is the newest version here. If a
cell fails, this version lacks its work, but nothing is lost: the work comes with the next version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.cells.assignment import heads_for, heads_of
from coordinator.cells.cell import Cell
from coordinator.cells.cell_group import CellGroup, read_cell
from coordinator.cells.subordinates import Subordinates
from coordinator.chain.chain import Chain
from coordinator.core.actions import Action, Send
from coordinator.core.context import Core
from coordinator.core.events import Encoded
from coordinator.core.own_work import OwnWork
from coordinator.core.state_sync import StateSync
from coordinator.core.timeline import JOIN_SHARE, RECHECK_SHARE
from coordinator.group.eligibility import hindrance_to_start
from coordinator.round.cell_input import CellInput
from coordinator.wire.messages import NONCE_BYTES, AgainNote, CellYield, WardNote, YieldNote
from dht.errors import PeerError
from dht.identity import PeerId
from dht.statement import Statement


@dataclass(slots=True)
class CellRounds:
    """Our cells at one base.

    `since` is when we asked or began to gather. `over` says that there is nothing more to wait for at this base.
    `nonce` names our stay at this base. A cell without it is from before a restart or from an earlier stay: we could
    contradict our statements there.
    """

    core: Core
    chain: Chain
    state_sync: StateSync
    own_work: OwnWork
    since: float | None = None
    over: bool = False
    nonce: bytes | None = None  # None until we have used it
    head: PeerId | None = None  # the head whose ward we are
    subordinates: Subordinates = field(init=False)
    leading: Cell | None = None
    joined: Cell | None = None
    told: tuple[CellYield, ...] = ()  # the cells that hold our work, as the leader of our cell reported them
    announced: bool = False  # whether we, as a head, have reported our cell's contribution
    handed_over: bool = False
    _heads_here: frozenset[PeerId] | None = None

    def __post_init__(self) -> None:
        self.subordinates = Subordinates(self.core, self.chain)

    # -- where we stand

    @property
    def busy(self) -> bool:
        """Whether our work at this base is under way."""
        return self.since is not None and not self.over

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has begun here, as always in a small swarm, so that time alone changes nothing."""
        return self.since is None and not self.over and self.leading is None and self.joined is None

    @property
    def cell_input(self) -> CellInput | None:
        """The merged work of our cell that we contribute to the group as a head, if any."""
        return None if self.leading is None or self.leading.group.head != self.core.me else self.leading.cell_input

    @property
    def given(self) -> bool:
        """Whether our head's contribution holds our work, so that we must not contribute it elsewhere."""
        return bool(self.told)

    def hand_over(self) -> bool:
        """Return True once, when there is nothing more to wait for: the group is next."""
        first = self.over and not self.handed_over
        self.handed_over = self.over
        return first

    def cells(self) -> list[Cell]:
        """Return the cells that we are in."""
        return [cell for cell in (self.leading, self.joined) if cell is not None]

    def find(self, roster_id: bytes) -> Cell | None:
        """Return our cell with this roster, if any."""
        return next((cell for cell in self.cells() if cell.group.key.roster_id == roster_id), None)

    def find_by_group(self, group: bytes) -> Cell | None:
        """Return our cell with this roster or input set, if any."""
        for cell in self.cells():
            inputs = cell.exchange.inputs
            if group == cell.group.key.roster_id or (inputs is not None and group == inputs.digest):
                return cell
        return None

    def needed(self, now: float) -> bool:
        """Whether more peers train than there are seats, and the run may have cells."""
        return self.core.manifest.config.uses_cells and self.core.crowded(self.chain, now)

    def _heads(self, now: float) -> frozenset[PeerId]:
        """Return the heads through which other peers contribute; none if cells are not needed."""
        return self._seated() if self.needed(now) else frozenset()

    def _seated(self) -> frozenset[PeerId]:
        if self._heads_here is None:
            self._heads_here = heads_of(self.chain)
        return self._heads_here

    def _free(self, now: float) -> bool:
        return self.state_sync.complete and hindrance_to_start(self.core, now) is None

    def _contributes(self, now: float) -> bool:
        return self.core.contributes and self.own_work.has_new_steps(self.core.steps_now(now))

    def _head_of(self, ward: PeerId, now: float) -> PeerId | None:
        """Return the head of a peer among the heads that seem to be live; a head is its own head."""
        heads = self._seated()
        ranked = (ward,) if ward in heads else heads_for(self.chain.beacon(), ward, heads)
        live = (one for one in ranked if one == self.core.me or self.core.presence.is_training(one, now))
        return next(live, None)

    def may_open(self, now: float) -> bool:
        """Whether we may begin our part here, as a head or as a ward with work."""
        if self.since is not None or self.over or not self._free(now):
            return False
        heads = self._heads(now)
        return bool(heads) and (self.core.me in heads or self._contributes(now))

    # -- asking, gathering, dealing out

    def open(self, now: float) -> list[Action]:
        """Ask our head, or gather our wards if we are a head."""
        self.since, self.head = now, self._head_of(self.core.me, now)
        self.over = self.head is None
        if self.head == self.core.me:
            self.subordinates.gather(now)
            return []
        return [] if self.head is None else [Send(self.head, self._make_ward_note())]

    def _make_ward_note(self) -> WardNote:
        self.nonce = self.nonce or self.core.random_bytes(NONCE_BYTES)
        base, dialable = self.chain.digest, self.core.dialable
        return WardNote(fragment=self.chain.fragment, base=base, boot=self.nonce, dialable=dialable)

    def on_ward(self, sender: PeerId, note: WardNote, now: float) -> list[Action]:
        """Take a ward's request, perhaps before we are due; a late ward contributes to the next version instead."""
        me, heads = self.core.me, self._heads(now)
        if me not in heads or me not in heads_for(self.chain.beacon(), sender, heads):
            raise PeerError("is no ward of ours")
        if self.since is None or self.subordinates.closes_at is not None:
            self.subordinates.add(sender, note)
        return []

    def _deal(self, now: float) -> list[Action]:
        """Fix our own cell and the cells below it. Wards with another live head, as far as we know, are not ours."""
        ours = {ward for ward in self.subordinates.gathered if self._head_of(ward, now) == self.core.me}
        self.subordinates.keep(ours)
        rosters = self.subordinates.assign(self._make_ward_note())
        self.over = not rosters
        return rosters

    def _on_cell(self, statement: Statement, now: float) -> list[Action]:
        """Enter a cell that lists us; as its leader, pass the roster on to its members."""
        if (known := self.find(statement.digest)) is not None:
            return known.shown_again()
        if not self._free(now):
            return []
        group, me = read_cell(statement, self.chain), self.core.me
        if self.nonce is None or group.boots.get(me) != self.nonce or group.head != self.head:
            raise PeerError("a cell without us in this life")
        if not all(group.fits(one.group) for one in self.cells()):
            raise PeerError("a cell beside another one of ours")
        if group.leader == me:
            return self._lead(group, now)
        if self.joined is not None:
            return []
        self.joined = Cell(self.core, self.chain, group, began=now)
        return self.joined.start(None) if group.height == 1 else []

    def _lead(self, group: CellGroup, now: float) -> list[Action]:
        if self.leading is not None or (group.height > 1 and group.head != self.core.me):
            return []
        self.leading = Cell(self.core, self.chain, group, began=now)
        others = tuple(member for member in group.members if member != self.core.me)
        own = self.leading.start(None) if self._contributes(now) else self.leading.abstain()
        return [*self.core.to_all(others, group.statement), *own]

    # -- messages

    def receive(self, statement: Statement, root: bytes | None, now: float) -> list[Action]:
        """Take a roster or a statement of our cells; raises PeerError if it is false or out of place."""
        if statement.context.kind == "cell":
            return self._on_cell(statement, now)
        cell = self.find_by_group(statement.context.group)
        return [] if cell is None else cell.receive(PeerId(statement.sender), statement, root, now)

    def on_note(self, sender: PeerId, note: AgainNote | YieldNote, now: float) -> list[Action]:
        """Take a leader's note: it reduces partitions of our cell itself, or reports the cell's contribution."""
        cell = self.find(note.group)
        if cell is None:
            return []
        if isinstance(note, AgainNote):
            return cell.on_again(sender, note, now)
        if cell is not self.joined or sender != cell.group.leader or self.told:
            return []
        if len(note.cells) != cell.group.tiers:
            raise PeerError("names other cells than those through which our work goes")
        self.told, self.over = note.cells, True
        return self._tell(note.cells)

    def _tell(self, above: Sequence[CellYield]) -> list[Action]:
        """Tell all members of the cell that we lead its contribution and the cells above that hold it."""
        led = self.leading
        if led is None or led.cell_input is None:
            return []
        note = YieldNote(group=led.group.key.roster_id, cells=(led.cell_input.cell, *above))
        return list(self.core.to_all(tuple(one for one in led.group.members if one != self.core.me), note))

    def on_encoded(self, event: Encoded, now: float) -> list[Action]:
        """Take our encoded contribution to a cell."""
        cell = self.find(event.key.roster_id)
        if cell is None:
            return []
        if cell.from_cell is None:
            self.own_work.note_contribution(event.key.roster_id, self.core.steps_now(now))
        return cell.on_encoded(event, now)

    # -- going on

    def settle(self, now: float) -> list[Action]:
        """Pass the merged work of the cell that we lead on to the cell above, or to the group."""
        actions: list[Action] = []
        led, joined = self.leading, self.joined
        if led is not None and led.over and led.group.head == self.core.me and not self.announced:
            self.over = self.announced = True
            actions += self._tell(())
        if joined is not None and not joined.started:
            below_over = led is not None and led.over
            if below_over or now >= joined.began + RECHECK_SHARE * self.core.pace.round_seconds:
                actions += joined.start(None if led is None else led.cell_input)
        return actions

    def tick(self, now: float) -> list[Action]:
        """Do what is due."""
        actions = self._deal(now) if self.subordinates.due(now) else []
        for cell in self.cells():
            actions += cell.tick(now) if now >= cell.retry_at else cell.settle(now)
        if self.busy and now >= self._ends_at():
            self.over = True
        return actions + self.settle(now)

    def _ends_at(self) -> float:
        """Return when we stop waiting."""
        assert self.since is not None
        whole = self.core.pace.round_seconds
        if self.subordinates.closes_at is not None:
            return self.subordinates.closes_at + whole
        if not self.cells():
            return self.since + JOIN_SHARE * whole
        return max(cell.commit_by + whole for cell in self.cells())

    def next_deadline(self, now: float) -> list[float]:
        """Return the times at which `tick` has something to do."""
        if self.over:
            return []
        times = [cell.next_deadline(now) for cell in self.cells() if not cell.over]
        times += [] if self.subordinates.closes_at is None else [self.subordinates.closes_at]
        return [*times, self._ends_at()] if self.busy else times

    def lose(self, peer: PeerId, now: float) -> list[Action]:
        """Tell our cells that the transport lost a peer."""
        return [action for cell in self.cells() for action in cell.lose(peer, now)]

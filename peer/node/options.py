"""The options with which one machine takes part in a run. None of them changes what the run computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from dht.addresses import ip_of
from peer.data.tally import Loading, Tell, tell_nobody
from peer.export.options import ExportOptions
from peer.learner.attached import AttachedSession
from peer.learner.spawn import AUTO, LEARNER_PROGRAM, LearnerSpawn
from peer.machine.clock import Clock, skewed, unix_seconds
from peer.machine.limits import Limits, PeerSettings
from peer.machine.local_files import NO_FILES, LocalFiles
from peer.machine.paths import IDENTITY_NAME
from peer.machine.text import printable
from peer.node.sharers import Sharers

HOSTILE_LEARNER_PROGRAM = "peer.attacks.learner"


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """The faults that tests and trials on one's own machine inject into a peer. A real peer has none."""

    fault: str | None = None  # see `peer.machine.fault_points.Fault.parse`
    chain_kept: int | None = None  # fewer certificates than usual, so that a short run is a long one
    attack: str | None = None  # see `peer.attacks.peer`
    network: str = ""  # its namespaces or containers: hosts besides this one on which trials may run
    taped: bool = False  # in a swarm, which joins the parts (`peer.rounds.tape_parts`)
    skew_file: Path | None = None  # the error of this peer's clock (`peer.machine.clock.skewed`)

    @property
    def learner_attack(self) -> str | None:
        """The attack, if the learner has a part in it."""
        if self.attack is None:
            return None
        from peer.attacks.protocol import is_process_attack  # loads torch, which a learner need not wait for

        return None if is_process_attack(self.attack) else self.attack


NO_TRIAL = TrialOptions()


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A peer's own settings. `data_directory` holds its key, checkpoints, votes and control socket."""

    data_directory: Path
    port: int | None = None  # None: any free port
    listen_host: str = "127.0.0.1"  # `0.0.0.0` to be reached from elsewhere
    device: str = AUTO  # or `cpu`, or a CUDA device as torch names it
    compiled: bool | None = None  # the learner's model by torch.compile; None: where that pays, on a GPU
    threads: int = 0  # of the learner, 0 for as many as there are cores
    niceness: int = 5  # of the learner, so that network tasks run first
    step_seconds: float = 0.0  # minimum time from step to step
    announce: tuple[str, ...] = ()
    name: str = ""
    team: str = ""
    founders: tuple[str, ...] = ()  # host only; default: the host itself
    export: ExportOptions | None = None  # host only
    limits: Limits = field(default_factory=Limits)  # of the owner: they override the options above, and every manifest
    sharers: Sharers | None = None  # of these limits; once this peer is one of them, `limits` is its part
    files: LocalFiles = NO_FILES  # own files for a run that trains on files of its peers
    tell: Tell = tell_nobody  # takes reports of work before the first step
    stage: Callable[[str], object] = str  # takes the stage of the start, in words
    session: AttachedSession | None = None  # its loop is the learner; default: a learner process of ours
    spawned: LearnerSpawn | None = None  # that process, if it was started in advance
    trial: TrialOptions = NO_TRIAL

    def __post_init__(self) -> None:
        """Keep printable text of the names: typed in another encoding, they hold what no message can carry."""
        object.__setattr__(self, "name", printable(self.name))
        object.__setattr__(self, "team", printable(self.team))

    def within_limits(self, overrides: Sequence[str], share: Path | None) -> Self:
        """Return these options with the limits of this machine's owner, alone or shared; raises UsageError."""
        if share is None:
            return replace(self, limits=PeerSettings.load(self.data_directory, overrides).limits)
        sharers = Sharers(share.absolute(), self.data_directory, overrides)
        return replace(self, limits=sharers.whole, sharers=sharers)

    @property
    def on_loopback(self) -> bool:
        """Return whether only peers on this machine can call this one."""
        address = ip_of(self.listen_host)
        return address is not None and address.is_loopback and not self.announce

    @property
    def loading(self) -> Loading:
        """How to tokenize text before training: on all cores that the owner allows."""
        return Loading(self.tell, self.limits.threads(0))

    @property
    def learner_program(self) -> str:
        """The module that our learner process runs."""
        return LEARNER_PROGRAM if self.trial.learner_attack is None else HOSTILE_LEARNER_PROGRAM

    @property
    def clock(self) -> Clock:
        """This peer's clock, in Unix seconds."""
        skew_file = self.trial.skew_file
        return unix_seconds if skew_file is None else skewed(skew_file)

    @property
    def identity_path(self) -> Path:
        """Path of this peer's key."""
        return self.data_directory / IDENTITY_NAME

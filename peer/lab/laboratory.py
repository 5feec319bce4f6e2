"""One lab run: virtual peers with real learners, planned faults, and evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from coordinator.core.actions import Action, Tell
from coordinator.run.manifest import Manifest
from coordinator.simulator.network import LinkFaults
from coordinator.simulator.peer import VirtualPeer
from coordinator.simulator.simulation import VirtualRun, World
from coordinator.wire.messages import Message
from dht.identity import PeerId
from dht.statement import Statement
from peer.data.token_files import TokenData
from peer.data.windows import TrainingWindows, training_windows
from peer.lab.attackers import mischief_of
from peer.lab.data import learner_texts
from peer.lab.faults import Absences, Faults, plan_absences
from peer.lab.lab_context import LabContext, LabPeer
from peer.lab.learners import DivergedError
from peer.lab.options import STEP_SECONDS, LabOptions
from peer.lab.parting import Parting
from peer.lab.report import CurvePoint
from peer.lab.tensors import make_tensors
from peer.lab.traffic import LabTraffic
from peer.learner.evaluation import Evaluator
from peer.learner.gradient.batch_ahead import Batches
from peer.model.description import Named
from peer.model.located import unlocated
from peer.numerics.core_pool import one_core_each
from peer.rounds.tape import Record, TapeLine, keep_no_tape, told_line
from peer.storage.genesis_file import digests_of

LINKS = LinkFaults(delay_min_seconds=0.001, delay_max_seconds=0.004)  # almost none: adoptions have a delay of their own
DRAIN_STEPS = 200


class Laboratory:
    """One lab run, as a context manager: call `run` once, then read the results."""

    def __init__(
        self, options: LabOptions, data: TokenData, record: Record = keep_no_tape, values: Named | None = None
    ) -> None:
        """`values` are version 0, if given. Raises UsageError if options and text do not go together."""
        torch.set_num_threads(1)  # so that a result does not depend on the number of cores
        config = options.config
        self.options = options
        self.curve: list[CurvePoint] = []
        self.diverged: str | None = None
        self.absences: Absences = plan_absences(options)
        self._data = data
        alpha, second_side = options.dirichlet_alpha, options.second_side
        hostile = options.hostile
        self._texts = learner_texts(config, data.train, options.total_learners, alpha, second_side, hostile)
        self.pool = one_core_each(options.threads, "learner")
        self.context = LabContext(
            config,
            options.total_learners,
            self.windows,
            self.pool,
            STEP_SECONDS,
            options.adoption_delay_steps,
            record,
            options.device,
            values,
            options.speed_jitter,
            options.compiles,
        )
        setting = VirtualRun(self._describe, partial(make_tensors, self.context))
        founders = range(options.learners)
        carries = options.partition is None or options.partition.reunion != "drop"
        self.world = World(config.pace, options.rates(), founders, config.seed, LINKS, setting=setting, carries=carries)
        self._numbers = {peer.me: number for number, peer in enumerate(self.world.peers)}
        self._attack()
        self.traffic = LabTraffic(self.context.blobs)
        self._record = record
        self.world.listener = self._acts
        if options.late_joins:
            self.world.network.lateness_seconds = self._lateness_seconds
        self.evaluator = Evaluator(config, data.heldout, options.device)
        record(self._head())
        self.faults = Faults(self.world, self.context, options, self.absences)
        cut = options.partition
        self.parting = None if cut is None else Parting(self.world, self.context, cut, self.evaluator)

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)

    @property
    def heldout(self) -> torch.Tensor:
        """Text to evaluate on, uint8."""
        return self._data.heldout

    # -- data and attacks

    def windows(self, peer: PeerId) -> Batches:
        """Return a learner's endless data."""
        text = self._texts[self._numbers[peer]]
        return training_windows(text, self.options.config, self.world.manifest.run_id, peer)

    def draws(self, peer: PeerId) -> Batches:
        """Return a learner's drawn windows, for comparisons that have no versions to assign windows by."""
        text = self._texts[self._numbers[peer]]
        return TrainingWindows(text, self.options.config.data, self.world.manifest.run_id, peer)

    def _acts(self, peer: VirtualPeer, action: Action) -> None:
        """Count a peer's action; record the version of each `certified` event, with its waiting time and reason."""
        self.traffic.acts(peer, action)
        if isinstance(action, Tell) and action.event == "certified":
            self._record(told_line(peer.me, action))

    def _lateness_seconds(self, sender: PeerId, message: Message) -> float:
        """Delay joins to a step boundary (DiLoCo 2604.21428 Alg. 1), so that quorum and grace window matter."""
        if not isinstance(message, Statement) or message.context.kind != "join" or sender not in self.context.active:
            return 0.0
        return self.context.active[sender].learner.boundary_in(self.world.clock.now)

    def _describe(self, founders: Sequence[PeerId]) -> Manifest:
        self.context.founders = frozenset(founders)
        return Manifest(
            config=unlocated(self.options.config),
            organiser=founders[0],
            founders=tuple(founders),
            data_digest=self._data.digest,
            genesis=digests_of(self.context.genesis),
            created_unix_seconds=0,
        )

    def _attack(self) -> None:
        choices = [order.choice for order in self.options.attacks for _ in range(order.count)]
        hostile = [self.world.peers[at] for at in self.options.hostile]
        self.context.attacks.update((peer.me, choice) for peer, choice in zip(hostile, choices, strict=True))
        honest = self._numbers.keys() - self.context.attacks.keys()
        for peer in hostile:
            peer.mischief = mischief_of(self.context.attacks[peer.me], peer.signer, honest)

    def _head(self) -> TapeLine:
        """Return the first line of the tape: everything that does not happen at a time."""
        return {
            "event": "lab",
            "manifest": self.world.manifest.to_wire().hex(),
            "peers": [peer.me for peer in self.world.peers],
            "attacks": {peer: [attack.name, attack.strength] for peer, attack in self.context.attacks.items()},
            "device": self.options.device,
            "compiled": self.context.compiles,
            "dirichlet_alpha": self.options.dirichlet_alpha,
            "second_side": self.options.second_side,
            "corpus": self.options.files.corpus,
            "tokenizer": self.options.files.tokenizer,
        }

    # -- the run

    def run(self, show: Callable[[int], None] = lambda _step: None) -> None:
        """Train to the end, calling `show` after every step; on divergence, stop and set `diverged` to the reason."""
        try:
            self._evaluate(0)
            for step in range(1, self.options.steps + 1):
                self.world.run(STEP_SECONDS)
                if self._is_shown(step):
                    self._evaluate(step)
                if self.parting is not None:
                    self.parting.after(step)
                show(step)
            self._drain()
            self._evaluate(self.options.steps)
            show(self.options.steps)
        except DivergedError as error:
            self.diverged = str(error)

    def _is_shown(self, step: int) -> bool:
        """Whether to evaluate after this step: regularly, and just before the sides of a partition meet."""
        cut = self.options.partition
        regular = step % self.options.eval_every_steps == 0
        return step < self.options.steps and (regular or (cut is not None and step == cut.last_step))

    def _drain(self) -> None:
        """Process the events due after the last step, then make no more steps and finish the rounds in progress."""
        self.world.run(STEP_SECONDS / 2)
        now = self.world.clock.now
        self.context.settle_all(now)
        for peer in self.world.peers:
            if peer.alive:
                peer.tensors.learner.rest(now)
        self.world.drain(DRAIN_STEPS * STEP_SECONDS)
        self.context.end_tape()

    def _evaluate(self, step: int) -> None:
        """Add a point to the curve, unless no believed peer is alive."""
        self.context.settle_all(self.world.clock.now)
        if not self.believed:
            return
        if self.parting is not None:
            self.parting.evaluate(step)
        tally = self.context.tally
        self.curve.append(
            CurvePoint(
                method="decoupled",
                step=step,
                tokens=tally.tokens,
                eval_loss=self.evaluator.loss(self.newest().anchors.all_anchors()),
                train_loss=tally.take_mean_loss(),
                versions=self.world.versions(),
                inner_lr=self.options.config.inner.learning_rate,
            )
        )

    @property
    def believed(self) -> list[VirtualPeer]:
        """The live peers that keep to the protocol."""
        return [peer for peer in self.world.peers if peer.alive and self.context.is_believed(peer.me)]

    def newest(self) -> LabPeer:
        """Return the tensors of the believed peer that holds the most versions."""
        believed = (one for peer, one in self.context.active.items() if self.context.is_believed(peer))
        return max(believed, key=lambda one: one.versions)

"""The limits of a running peer: told to its owner, changed on their word, and kept for the next start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from coordinator.views.owner_limits import OwnerLimits
from peer.machine.limits import Limits
from peer.machine.settings_file import keep_limits, shown
from peer.net.network import Network
from peer.node.build import give_within
from peer.node.learner_control import LearnerControl
from peer.node.options import NodeOptions
from peer.node.pause_loop import PauseLoop
from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)


class LiveLimits:
    """Holds what is in force, and has the parts of the peer respect it."""

    def __init__(self, options: NodeOptions, manners: PauseLoop, network: Network, driver: RoundDriver) -> None:
        self.training: LearnerControl | None = None  # on a learner, once its process is ready
        self._data_directory = options.data_directory
        self._limits = options.limits
        self._manners = manners
        self._network = network
        self._driver = driver
        self._turn = asyncio.Lock()

    @property
    def in_force(self) -> Limits:
        """What the owner allows now."""
        return self._limits

    def view(self) -> OwnerLimits:
        """The same for the owner to read."""
        return shown(self._limits)

    async def change(self, changes: Sequence[str]) -> OwnerLimits:
        """Check all `KEY=VALUE`, keep them in the settings file, respect them; raises MusterError, nothing changed."""
        async with self._turn:
            wanted = self._limits.changed(changes)
            if self.training is not None:
                self.training.check(wanted)
            await asyncio.to_thread(keep_limits, self._data_directory, wanted.named(changes))
            log.info("limits", changes=list(changes))
            self._limits = wanted
            self._respect(wanted)
            return self.view()

    def begin_training(self, training: LearnerControl) -> None:
        """A learner is ready, which may have been started with earlier limits."""
        self.training = training
        training.respect(self._limits)

    def _respect(self, limits: Limits) -> None:
        self._manners.respect(limits)
        self._network.respect(limits)
        give_within(limits, self._driver)
        if self.training is not None:
            self.training.respect(limits)

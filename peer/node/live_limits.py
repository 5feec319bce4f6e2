"""The limits of a running peer: told to its owner, changed on their word, and kept for the next start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from coordinator.views.owner_limits import OwnerLimits
from peer.learner.client import LearnerClient
from peer.machine.limits import Limits
from peer.machine.settings_file import keep_limits, shown
from peer.net.network import Network
from peer.node.build import give_within
from peer.node.learner_start import learner_bytes
from peer.node.options import NodeOptions
from peer.node.pause_loop import PauseLoop
from peer.rounds.driver import RoundDriver

log = structlog.get_logger(__name__)


class LiveLimits:
    """Holds what is in force, and has the parts of the peer respect it."""

    def __init__(self, options: NodeOptions, pause_loop: PauseLoop, network: Network, driver: RoundDriver) -> None:
        self.learner: LearnerClient | None = None  # on a learner, once its process is ready
        self._options = options
        self._limits = options.limits
        self._pause_loop = pause_loop
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
            if self.learner is not None:
                learner_bytes(self._driver.engine.core.manifest.config, wanted)
            await asyncio.to_thread(keep_limits, self._options.data_directory, wanted.named(changes))
            log.info("limits", changes=list(changes))
            self._limits = wanted
            self._respect(wanted)
            return self.view()

    def begin_learner(self, learner: LearnerClient) -> None:
        """A learner is ready, which may have been started with earlier limits."""
        self.learner = learner
        self._limit_learner(self._limits)

    def _respect(self, limits: Limits) -> None:
        self._pause_loop.respect(limits)
        self._network.respect(limits)
        give_within(limits, self._driver)
        self._limit_learner(limits)

    def _limit_learner(self, limits: Limits) -> None:
        """Compute with as many threads, and so much of the time, as the owner allows; a session's loop is its own."""
        if self.learner is not None and self._options.session is None:
            self.learner.change(limits.threads(self._options.threads), limits.compute_share)

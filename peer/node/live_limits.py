"""The limits of a running peer: shown to its owner, changed by its owner, and kept for the next start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from coordinator.views.owner_limits import OwnerLimits
from peer.learner.client import LearnerClient
from peer.machine.limits import Limits
from peer.machine.settings_file import keep_limits, shown
from peer.net.network import Network
from peer.node.build import limit_serving
from peer.node.learner_start import learner_bytes
from peer.node.options import NodeOptions
from peer.node.pause_loop import PauseLoop
from peer.rounds.driver import RoundDriver

EXCHANGE_SECONDS = 2.0  # between two looks at the usage of peers that share our limits

log = structlog.get_logger(__name__)


class LiveLimits:
    """Holds the limits in force, and applies them to the parts of the peer."""

    def __init__(self, options: NodeOptions, pause_loop: PauseLoop, network: Network, driver: RoundDriver) -> None:
        self.learner: LearnerClient | None = None  # set on a learner once its process is ready
        self.in_force = options.limits  # the limits of this peer now
        self._options = options
        self._sharers = options.sharers
        self._limits = options.limits if self._sharers is None else self._sharers.whole
        self._pause_loop = pause_loop
        self._network = network
        self._driver = driver
        self._turn = asyncio.Lock()
        if self._sharers is not None:
            pause_loop.respect(self._limits)

    def view(self) -> OwnerLimits:
        """Return what the owner allows, for the owner to read."""
        return shown(self._limits, 1 if self._sharers is None else self._sharers.others.living + 1)

    async def change(self, changes: Sequence[str]) -> OwnerLimits:
        """Check all `KEY=VALUE`, save and apply them; raises MusterError with nothing changed."""
        async with self._turn:
            wanted = self._limits.changed(changes)
            if self.learner is not None:
                learner_bytes(self._driver.engine.core.manifest.config, self._part(wanted))
            kept = wanted.named(changes)
            await asyncio.to_thread(keep_limits, self._folder, kept)
            if self._sharers is not None:
                self._sharers.kept(kept)
            log.info("limits", changes=list(changes))
            self._respect(wanted)
            return self.view()

    async def follow(self) -> None:
        """Follow the usage of peers that share these limits, and changes of the shared limits, until cancelled."""
        while self._sharers is not None:
            await self.exchange()
            await asyncio.sleep(EXCHANGE_SECONDS)

    async def exchange(self) -> None:
        """Read the usage and the limits of these peers once, and apply changes."""
        sharers = self._sharers
        if sharers is None:
            return
        async with self._turn:
            changes = await asyncio.to_thread(sharers.exchange, self._pause_loop.used)
            self._pause_loop.others = sharers.others
            wanted = self._limits.model_copy(update=changes)
            if self._part(wanted) != self.in_force or wanted != self._limits:
                log.info("limits_shared", living=sharers.others.living + 1, changes=sorted(changes))
                self._respect(wanted)

    def begin_learner(self, learner: LearnerClient) -> None:
        """Take a learner that is ready; it may have been started with earlier limits."""
        self.learner = learner
        self._limit_learner()

    @property
    def _folder(self) -> Path:
        """The folder whose settings file is in force."""
        return self._options.data_directory if self._sharers is None else self._sharers.folder

    def _part(self, limits: Limits) -> Limits:
        return limits if self._sharers is None else self._sharers.part(limits)

    def _respect(self, limits: Limits) -> None:
        threads = self._part(limits).threads(self._options.threads)
        if threads != self.in_force.threads(self._options.threads):
            self._driver.work.use(threads)
        if limits != self._limits:  # a day's usage is judged as a whole; its memory is lost with other limits
            self._pause_loop.respect(limits)
        self._limits, self.in_force = limits, self._part(limits)
        self._network.respect(self.in_force)
        limit_serving(self.in_force, self._driver)
        self._limit_learner()

    def _limit_learner(self) -> None:
        """Apply the owner's threads and share of time to the learner; a session's loop is not ours to limit."""
        if self.learner is not None and self._options.session is None:
            self.learner.change(self.in_force.threads(self._options.threads), self.in_force.compute_share)

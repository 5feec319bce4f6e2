"""The presence record of this peer."""

from __future__ import annotations

from itertools import count

from coordinator.wire.presence import (
    ADDRESS_CHARACTERS_MAX,
    ADDRESSES_MAX,
    DEVICE_CHARACTERS_MAX,
    NAME_CHARACTERS_MAX,
    SOFTWARE_CHARACTERS_MAX,
    Presence,
    State,
)
from peer.learner.work_counters import LearnerProgress
from peer.machine.version import DISTRIBUTION, release
from peer.net.addresses import OwnAddresses
from peer.node.options import NodeOptions
from peer.rounds.driver import RoundDriver


class OwnPresence:
    """Builds our presence record; every one differs from the last."""

    def __init__(self, driver: RoundDriver, options: NodeOptions, addresses: OwnAddresses) -> None:
        self._driver = driver
        self._addresses = addresses
        self._name = options.name[:NAME_CHARACTERS_MAX]
        self._team = options.team[:NAME_CHARACTERS_MAX]
        self._software = f"{DISTRIBUTION} {release()}".rstrip()[:SOFTWARE_CHARACTERS_MAX]
        self._beats = count(1)

    def now(self, state: State, progress: LearnerProgress | None) -> Presence:
        """Return our current presence; `progress` is None without a learner."""
        engine, traffic = self._driver.engine, self._driver.transport.traffic
        versions, heads = engine.heads()
        return Presence(
            boot=engine.core.boot,
            state=state,
            steps=progress.steps if progress else 0,
            steps_per_second=progress.steps_per_second if progress and state == "training" else 0.0,
            tokens=progress.tokens if progress else 0,
            loss=_shown(progress.loss) if progress else None,
            versions=versions,
            heads=heads,
            addresses=tuple(one for one in self._addresses.told if len(one) <= ADDRESS_CHARACTERS_MAX)[:ADDRESSES_MAX],
            dialable=engine.core.dialable,
            software=self._software,
            beat=next(self._beats),
            name=self._name,
            device=progress.device[:DEVICE_CHARACTERS_MAX] if progress else "",
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            rounds_void=self._driver.counters.events["round_void"],
            team=self._team,
        )


def _shown(loss: float | None) -> float | None:
    """Return the loss that others see. A session's own loss may be negative, which no cross-entropy is."""
    return None if loss is None or loss < 0 else loss

"""The shell around `peer.machine.pause_policy`: checks the machine twice a second and tells the peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from coordinator.views.snapshot import OwnerDay
from peer.machine.clock import local_day, local_week_minute
from peer.machine.daily_traffic import DailyTraffic
from peer.machine.hours import Hours
from peer.machine.limits import Limits
from peer.machine.pause_policy import Conditions, Pause, PausePolicy, Today
from peer.machine.sensors import Sensors
from peer.machine.throttle import Throttle
from peer.net.transport import Transport
from peer.node.options import NodeOptions
from peer.node.sharers import OtherSharers, Used

LOOK_SECONDS = 0.5  # so that a learner rests within two seconds of a reason, including its step
SAVE_LOOKS = 60

log = structlog.get_logger(__name__)


class PauseLoop:
    """Applies the pause policy until cancelled. `obey` takes every new verdict: why to pause, or None to go on.

    `sensors` builds the sensors for given limits; `trains` says whether the learner makes steps.
    """

    def __init__(
        self,
        options: NodeOptions,
        sensors: Callable[[Limits], Sensors],
        transport: Transport,
        throttle: Throttle,
        obey: Callable[[Pause | None], None],
        trains: Callable[[], bool],
    ) -> None:
        self._make_sensors = sensors
        self._transport = transport
        self._throttle = throttle
        self._obey = obey
        self._trains = trains
        self._looked_at: float | None = None
        self._traffic = DailyTraffic(options.data_directory, local_day())
        self.pause: Pause | None = None
        self.seen = Conditions()
        self.day = OwnerDay()
        self.others = OtherSharers()  # peers that share the owner's limits
        self.respect(options.limits)

    @property
    def used(self) -> Used:
        """Usage of this peer alone today."""
        day = self._traffic.today
        return Used(
            day=day.day,
            sent_bytes=day.sent_bytes,
            received_bytes=day.received_bytes,
            disk_bytes=self.seen.disk_bytes or 0,
        )

    def respect(self, limits: Limits) -> None:
        """Apply these limits from the next look on, and forget earlier reasons."""
        self._sensors = self._make_sensors(limits)
        self._policy = PausePolicy(limits)
        self._hours = Hours.parse(limits.hours)

    async def run(self) -> None:
        """Look at intervals until cancelled; `look` is called once before, ahead of the first step."""
        looks = 0
        try:
            while True:
                await self.look()
                looks += 1
                if looks % SAVE_LOOKS == 0:
                    self._save()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._save()

    async def look(self) -> None:
        """Read the sensors once and apply the policy."""
        self.seen = await asyncio.to_thread(self._sensors.read)
        now, total = asyncio.get_running_loop().time(), self._transport.traffic
        trained_seconds = now - self._looked_at if self._trains() and self._looked_at is not None else 0.0
        self._looked_at = now
        day = self._traffic.note(local_day(), total.bytes_sent, total.bytes_received, trained_seconds)
        others = self.others
        today = Today(
            local_week_minute(), day.sent_bytes + others.sent_bytes, day.received_bytes + others.received_bytes
        )
        self.day = OwnerDay(
            trained_seconds=day.trained_seconds,
            sent_bytes=today.sent_bytes,
            received_bytes=today.received_bytes,
            opens_in_minutes=self._hours.opens_in(today.week_minute),
        )
        self._throttle.strangers.closed = self._policy.has_sent_its_day(today)
        seen = replace(self.seen, disk_bytes=(self.seen.disk_bytes or 0) + others.disk_bytes)
        pause = self._policy.judge(seen, today, now)
        if pause == self.pause:
            return
        log.info("manners", pause="" if pause is None else pause.reason)
        self.pause = pause
        self._throttle.upload.shut = self._throttle.download.shut = pause is not None and pause.silent
        self._obey(pause)

    def _save(self) -> None:
        try:
            self._traffic.save()
        except OSError as error:
            log.warning("traffic_not_written", reason=str(error))

"""The phases that a swarm shows while its host starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.run.manifest import RunConfig
from coordinator.views.control import PeerNotRunningError, StartingError
from peer.swarm import run
from peer.swarm.run import Swarm, SwarmOptions
from peer.swarm.watch import SwarmWatch


class Shown:
    """A view that records the phases that are shown."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def show(self, _watch: object, phase: str, _seconds: float) -> None:
        self.phases.append(phase)


def test_a_peer_that_waits_for_a_host_hears_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(
        [PeerNotRunningError("no peer"), StartingError("reads the text (making tokens, 40%)"), StartingError("")]
    )

    def ask(*_: object, **__: object) -> dict[str, Any]:
        if (error := next(answers, None)) is not None:
            raise error
        return {"invite": "muster1"}

    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(run, "INVITE_POLL_SECONDS", 0.0)
    shown, host = Shown(), SimpleNamespace(exit_code=None, data_directory=Path())
    invited = Swarm(SwarmOptions(RunConfig(), peers=4), shown)._invite(host, "a founder")  # type: ignore[arg-type]
    assert asyncio.run(invited) == "muster1"
    assert shown.phases == ["starting", "starting (the host reads the text)", "starting"]


def test_the_minutes_begin_with_the_first_peer_that_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, shown = [0.0], []
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(run, "POLL_SECONDS", 0.0)

    class Clock:
        """Each look takes twenty seconds; after two of them a peer is up."""

        def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
            shown.append((phase, seconds))
            now[0] += 20.0
            if len(shown) == 2:
                watch.latest["peer-1"] = SimpleNamespace(state="training")  # type: ignore[assignment]

    asyncio.run(Swarm(SwarmOptions(RunConfig(), peers=4, minutes=1), Clock())._train())
    assert shown == [("starting", 0.0), ("starting", 20.0), *(("training", after) for after in (0.0, 20.0, 40.0))]

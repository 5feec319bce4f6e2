"""The display of a chaos run, in addition to the swarm's own: each event as it happens, and the figures at the end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from rich.console import Group, RenderableType
from rich.text import Text

from coordinator.views import quantity
from coordinator.views.report import ChaosReport
from peer.chaos.record import ChaosWatch, EventOutcome
from peer.swarm.run import Display
from peer.swarm.view import LABEL_CHARACTERS
from peer.swarm.watch import SwarmWatch


class ChaosDisplay:
    """A display that prints every event once, then shows the swarm as usual."""

    def __init__(self, swarm: Display, say: Callable[[str], None]) -> None:
        self._swarm = swarm
        self._say = say
        self._said = 0

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        outcomes = watch.outcomes if isinstance(watch, ChaosWatch) else []
        for outcome in islice(outcomes, self._said, None):
            self._say(f"{quantity.duration(seconds)} {line(outcome)}")
        self._said = len(outcomes)
        self._swarm.show(watch, phase, seconds)


def line(outcome: EventOutcome) -> str:
    """Return an event in one line."""
    event = outcome.event
    words = " ".join(word for word in (event.do, event.target, event.detail()) if word)
    return words if outcome.refusal is None else f"{words}: did not happen, {outcome.refusal}"


def chaos_summary(report: ChaosReport) -> RenderableType:
    """Return the figures that concern faults."""
    recovery = report.recovery_seconds
    lines = [
        ("faults", ", ".join(f"{count} × {name}" for name, count in report.faults.items()) or "none"),
        ("goodput", _goodput(report)),
        ("uptime", f"{report.uptime:.1%} of all peers' time in inner steps"),
        ("pace", f"{report.versions_per_minute:.1f} versions a minute"),
        ("gap", f"{report.longest_gap_seconds:.1f} s at most between two certificates"),
        (
            "recovery",
            f"{recovery['median']:.1f} s from restart to contribution, median; {recovery['max']:.1f} s at most"
            if recovery
            else "–",
        ),
    ]
    if report.not_recovered:
        lines.append(("", f"{report.not_recovered} restarts led to no contribution"))
    return Group(*(Text(f"{label:<{LABEL_CHARACTERS}}{value}") for label, value in lines))


def _goodput(report: ChaosReport) -> str:
    parts = []
    if report.goodput is not None:
        parts.append(f"{report.goodput:.1%} of a run without faults")
    if report.goodput_ideal is not None:
        parts.append(f"{report.goodput_ideal:.1%} of the time that the plan left the peers")
    return ", ".join(parts) or "unknown: give --step-seconds, --baseline or --with-baseline"

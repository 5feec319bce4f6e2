"""The figures of a run of elastic data-parallel, by the rules of `muster chaos` (docs/how-to/chaos.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peer.chaos import score
from peer.chaos.measure import UndisturbedPace
from peer.chaos.record import EventOutcome, Life
from peer.chaos.score import Window


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step, as reported by one member of a generation of so many."""

    name: str
    pid: int
    generation: int
    step: int
    members: int
    seconds: float


def kept(steps: Iterable[Step]) -> list[Step]:
    """Return one report for each step that the model really had, in order.

    If a step was lost and a later generation made it again, only the later one counts.
    """
    found: dict[int, Step] = {}
    for one in sorted(steps, key=lambda one: (-one.generation, one.seconds)):
        found.setdefault(one.step, one)
    return [found[number] for number in sorted(found)]


def lives_of(steps: Iterable[Step]) -> dict[str, list[Life]]:
    """Return the processes of each worker, with the times of their steps."""
    found: dict[str, list[Life]] = {}
    for one in sorted(steps, key=lambda one: one.seconds):
        lives = found.setdefault(one.name, [])
        if not lives or lives[-1].pid != one.pid:
            lives.append(Life(one.pid, contributed_at=one.seconds))
        lives[-1].stepped_at.append(one.seconds)
    return found


def figures(
    steps: Sequence[Step],
    outcomes: Sequence[EventOutcome],
    workers: Sequence[str],
    window: Window,
    pace: UndisturbedPace,
) -> dict[str, Any]:
    """Return the figures, named as in the report of `muster chaos`; a step of all stands for its certificate."""
    inside = [one for one in kept(steps) if one.seconds in window]
    peer_seconds = score.alive_seconds(outcomes, workers, window)
    ideal = pace.tokens_in(peer_seconds)
    tokens = sum(one.members for one in inside) * pace.tokens_per_step
    lives = lives_of(steps)
    recovered, lost = score.recoveries(outcomes, lives, window)
    return {
        "goodput_ideal": tokens / ideal if ideal else None,
        "uptime": score.uptime(lives, len(workers), window, pace.step_seconds),
        "longest_gap_seconds": score.longest_gap_seconds([one.seconds for one in inside], window),
        "recovery_seconds": score.spread(recovered),
        "not_recovered": lost,
        "faults": score.counts(outcomes),
        "measured_seconds": window.seconds,
        "measured_peer_seconds": peer_seconds,
        "measured_tokens": tokens,
        "steps": len(inside),
        "generations": len({one.generation for one in inside}),
    }


def ratios(muster: Mapping[str, Any], elastic: Mapping[str, Any]) -> dict[str, float]:
    """Return the ratios of Muster's figures to elastic data-parallel's, where both have them."""
    names = ("goodput_ideal", "uptime", "longest_gap_seconds")
    return {name: muster[name] / elastic[name] for name in names if muster.get(name) and elastic.get(name)}

"""The views of a swarm for people: live in a terminal, plain lines elsewhere, and a summary at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from coordinator.views import quantity
from coordinator.views.report import SwarmReport
from coordinator.views.snapshot import PeerSnapshot
from peer.observer.terminal import Column, LiveView, Picture, Row, labelled, loss_line
from peer.swarm.watch import SwarmWatch

UNIGRAM_NATS, BIGRAM_NATS = 3.22, 2.43  # losses of byte-frequency models on Python's source text
PLAIN_SECONDS = 5.0
BAR_CHARACTERS = 24
LABEL_CHARACTERS = 11
SAMPLE_LINES_MAX = 12
BANS_SHOWN = 12
COLUMNS = (
    Column("peer"),
    Column("state", width_max=14),
    Column("step", is_number=True),
    Column("loss", is_number=True),
    Column("tok/s", is_number=True),
    Column("versions", width_max=20),
    Column("sent", is_number=True),
    Column("received", is_number=True),
)
NEXT_COMMANDS = """\
muster host --listen 0.0.0.0 --port 7400    # prints an invite
muster join INVITE                          # on another machine, which has Muster too"""


@dataclass(frozen=True, slots=True)
class LiveSwarm:
    """The swarm in a terminal, redrawn on every `show`."""

    live: LiveView

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        self.live.show(picture(watch, phase, seconds))


class PlainLines:
    """Prints a line every few seconds, and one for each death."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._phase = ""
        self._said_at = 0.0
        self._died: set[str] = set()

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        for name in sorted(watch.died.keys() - self._died):
            self._died.add(name)
            self._say(f"{quantity.duration(seconds)} {name} died: {watch.died[name]}")
        if phase != self._phase or seconds >= self._said_at + PLAIN_SECONDS:
            self._phase, self._said_at = phase, seconds
            self._say(plain_line(watch, phase, seconds))


def plain_line(watch: SwarmWatch, phase: str, seconds: float) -> str:
    """Describe the swarm in one line."""
    snapshots, (sent, _) = watch.living_snapshots(), _traffic_bytes(watch)
    parts = [
        f"{quantity.duration(seconds)} {phase}",
        f"{len(snapshots)} of {len(watch.learners)} peers up" if len(snapshots) < len(watch.learners) else "",
        f"versions {watch.versions_of_run} of {watch.versions_goal}",
        f"groups of {_group_size(watch):.1f}" if watch.versions else "",
        f"held-out loss {quantity.loss(_losses(watch)[-1])}" if _losses(watch) else "",
        f"{quantity.count(_tokens_per_second(snapshots))} tokens/s" if snapshots else "",
        f"sent {quantity.size(sent)}" if sent else "",
    ]
    return ", ".join(part for part in parts if part)


def picture(watch: SwarmWatch, phase: str, seconds: float) -> Picture:
    """Return the picture of the swarm and its peers."""
    rows = [Row([name, *_cells(watch, name)], "red" if name in watch.died else None) for name in watch.names]
    return Picture(_swarm_lines(watch, phase, seconds), COLUMNS, rows)


def summary(report: SwarmReport, sample: str, disagreement: str | None, bytewise: bool = False) -> RenderableType:
    """Return the results, generated text and commands to try next; `bytewise` is that of `SwarmWatch`."""
    agreement = "every peer holds the same bytes" if disagreement is None else f"NO: {disagreement}"
    lines = [("agreement", agreement), *_results(report, bytewise), *_offenders(report)]
    parts: list[RenderableType] = [Text(f"{label:<{LABEL_CHARACTERS}}{value}") for label, value in lines]
    if sample:
        shown = "".join(map(_harmless, sample)).split("\n")[:SAMPLE_LINES_MAX]
        parts += [Text("\nWhat the model writes:", style="dim"), *(Text(line, style="cyan") for line in shown)]
    parts += [Text("\nNext, train with somebody else:", style="dim"), Text(NEXT_COMMANDS)]
    return Group(*parts)


def _harmless(character: str) -> str:
    """Replace control characters, because an untrained model may write bytes that steer a terminal."""
    return character if character.isprintable() or character == "\n" else " "


def _results(report: SwarmReport, bytewise: bool) -> list[tuple[str, str]]:
    delay, scale = report.adoption_delay_steps, f" ({_scale(bytewise)})" if bytewise else ""
    return [
        ("peers", f"{report.peers} at the end"),
        ("versions", f"{report.versions_certified} certified, {report.rounds_void} rounds void"),
        ("groups", f"{report.group_size_mean:.2f} contributions on average"),
        ("held out", f"{report.eval_loss_first:.3f} → {report.eval_loss_last:.3f} nats per token{scale}"),
        ("tokens", f"{quantity.count(report.tokens)} trained, {quantity.count(report.tokens_certified)} certified"),
        ("steps", f"{report.inner_steps}, {report.steps_per_version:.1f} per version of a fragment"),
        ("delay", f"{delay['median']:.0f} steps from snapshot to adoption, median" if delay else "–"),
        (
            "traffic",
            f"{quantity.size(report.bytes_sent_per_peer)} sent and "
            f"{quantity.size(report.bytes_received_per_peer)} received by each peer",
        ),
        ("time", f"{quantity.duration(report.wall_seconds)}, {report.utilisation:.0%} of the cores in inner steps"),
    ]


def _offenders(report: SwarmReport) -> list[tuple[str, str]]:
    """Return lines on the peers ordered to attack, and on the banned keys with the reasons."""
    banned = {one.peer for one in report.bans}
    lines = [("banned", f"…{one.peer[-8:]} by {one.by}: {one.reason}") for one in report.bans[:BANS_SHOWN]]
    if report.hostile:
        lines.insert(0, ("hostile", f"{len(report.hostile)}, {len(banned & set(report.hostile))} of them banned"))
    return lines


def _swarm_lines(watch: SwarmWatch, phase: str, seconds: float) -> list[Text]:
    goal = "" if watch.seconds_goal is None else f" of {quantity.duration(watch.seconds_goal)}"
    run_id = watch.host_snapshot.run_id[:12] if watch.host_snapshot is not None else "…"
    shares = [watch.versions_of_run / watch.versions_goal, seconds / watch.seconds_goal if watch.seconds_goal else 0.0]
    done = int(BAR_CHARACTERS * min(1.0, max(shares)))
    bar = "━" * done + "╌" * (BAR_CHARACTERS - done)
    groups = f"  groups of {_group_size(watch):.1f}" if watch.versions else ""
    sent, received = _traffic_bytes(watch)
    traffic = f"{quantity.size(sent)} sent, {quantity.size(received)} received"
    return [
        Text(f"run {run_id}  {phase}  {quantity.duration(seconds)}{goal}", style="bold"),
        labelled("versions", f"{bar} {watch.versions_of_run} of {watch.versions_goal}{groups}"),
        loss_line(_losses(watch)) + Text(f"  {_scale(watch.bytewise)}", style="dim"),
        labelled("traffic", f"{traffic}, {quantity.count(_tokens_per_second(watch.living_snapshots()))} tokens/s"),
    ]


def _cells(watch: SwarmWatch, name: str) -> list[str]:
    snapshot = watch.latest.get(name)
    if name in watch.died:
        return ["died", *(_numbers(snapshot) if snapshot is not None else [])]
    if snapshot is None:
        return ["starting"]
    return [snapshot.state, *_numbers(snapshot)]


def _numbers(snapshot: PeerSnapshot) -> list[str]:
    learner = snapshot.role == "learner"
    return [
        str(snapshot.steps) if learner else "",
        quantity.loss(snapshot.loss) if learner else "",
        quantity.count(_tokens_per_second([snapshot])) if learner else "",
        quantity.versions(fragment.held_version for fragment in snapshot.fragments),
        quantity.size(snapshot.bytes_sent),
        quantity.size(snapshot.bytes_received),
    ]


def _tokens_per_second(snapshots: Sequence[PeerSnapshot]) -> float:
    return sum(one.steps_per_second * one.tokens / one.steps for one in snapshots if one.steps)


def _traffic_bytes(watch: SwarmWatch) -> tuple[int, int]:
    """Return the bytes sent and received by all learners, including dead ones."""
    learners = [one for one in watch.lives() if one.role == "learner"]
    return sum(one.bytes_sent for one in learners), sum(one.bytes_received for one in learners)


def _group_size(watch: SwarmWatch) -> float:
    certified = watch.most_advanced.certified if watch.most_advanced is not None else None
    return certified.members / certified.versions if certified is not None and certified.versions else 0.0


def _losses(watch: SwarmWatch) -> list[float]:
    return [] if watch.host_snapshot is None else [one.loss for one in watch.host_snapshot.evaluations]


def _scale(bytewise: bool) -> str:
    """Return the losses to compare with, if the text is read byte by byte."""
    return "" if not bytewise else f"unigrams {UNIGRAM_NATS}, bigrams {BIGRAM_NATS}"

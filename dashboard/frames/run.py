"""Words, figures and rows about the run as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from coordinator.views import quantity
from coordinator.views.network_view import HistoryPoint, NetworkView, RunFacts
from dashboard.frames.rows import Row, milliseconds
from dashboard.text import plain

WINDOW_SECONDS = 120.0  # over which rates are averaged
TRAFFIC_SERIES = ("data-parallel, bf16 (computed)", "this run (measured)")
ALERT_SECONDS = 300.0  # so long without a version needs attention
LEARNERS_MIN = 2  # that a round needs
TREND_EVALUATIONS = 6  # the newest ones; the loss falls if their newer half is below the older
TREND_EVALUATIONS_MIN = 3
GRADIENT_BYTES = 2  # of one parameter's gradient in data-parallel training: bfloat16
HOW_TESTED = "Tests during the run read a part of that text; the first and the final one read all of it."
MORE = ("Read more", "read more")
JOINING = {  # by `admission.mode`
    "open": "Anybody may take part; newcomers are on probation first. Get an invite from {organiser}, then:",
    "invite": "You need an invite: ask {organiser}. Strangers without one are not let in. Then:",
    "list": "Only machines that {organiser} has named may take part. With your invite:",
    "": "Ask {organiser} for an invite, then:",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """The main figures of the run; None for one that is not known yet."""

    loss: float | None
    versions: int
    versions_target: int
    tokens_certified: int
    tokens_per_second: float | None
    peers_live: int
    peers_known: int
    goodput: float | None
    utilisation: float | None
    seconds_to_target: float | None
    bytes_not_sent: float | None
    bytes_not_sent_share: float | None


def figures(view: NetworkView) -> Figures:
    """Compute the main figures of the run."""
    newest = view.history[-1] if view.history else None
    recent = window(view.history)
    capacity = sum(point.capacity_tokens_per_second for point in recent)
    known_capacity = sum(one.capacity_tokens_per_second for one in recent if one.tokens_per_second is not None)
    certified = sum(one.tokens_per_second or 0.0 for one in recent)
    told = view.evaluations[-1].tokens_certified if view.evaluations else 0  # an observer may have come later
    traffic = traffic_rows(view)
    not_sent, share = None, None
    if traffic:
        parallel, sent = (float(str(row["bytes"])) for row in traffic[-2:])
        if parallel > 0:
            not_sent, share = parallel - sent, 1 - sent / parallel
    return Figures(
        loss=view.evaluations[-1].loss if view.evaluations else None,
        versions=view.versions,
        versions_target=view.run.versions_target,
        tokens_certified=max(newest.tokens_certified if newest else 0, told),
        tokens_per_second=newest.tokens_per_second if newest else None,
        peers_live=sum(peer.live for peer in view.peers),
        peers_known=len(view.peers),
        goodput=min(1.0, certified / known_capacity) if known_capacity else None,
        utilisation=sum(point.trained_tokens_per_second for point in recent) / capacity if capacity else None,
        seconds_to_target=seconds_to_target(view),
        bytes_not_sent=not_sent,
        bytes_not_sent_share=share,
    )


def facts(view: NetworkView) -> str:
    """Describe the run's model and settings in one line."""
    run = view.run
    parts = [
        f"{quantity.count(run.parameters)} parameters" if run.parameters else "",
        f"{run.fragments} fragments",
        f"a version every {run.steps_per_version} inner steps",
        f"{quantity.count(run.tokens_per_step)} tokens per step" if run.tokens_per_step else "",
        f"merged by {plain(run.merge, 20)}" if run.merge else "",
        f"sent as {plain(run.contribution_codec, 20)}" if run.contribution_codec else "",
    ]
    return ", ".join(part for part in parts if part)


def headline(view: NetworkView) -> str:
    """Say how the run is going, in a sentence that needs no explanation."""
    live = sum(peer.live for peer in view.peers)
    machines = f"{live} machine" + ("" if live == 1 else "s")
    loss = f"loss {quantity.loss(view.evaluations[-1].loss, view.evaluations[-1].error)}" if view.evaluations else ""
    if view.finished:
        where = f". The model is in {plain(view.exports)}." if view.exports else ""
        return ", ".join(filter(None, ("Finished", loss))) + where
    share = view.versions / view.run.versions_target
    seconds = seconds_to_target(view)
    left = "" if seconds is None else f"about {quantity.rough(seconds)} left"
    falling = f"{loss}{_direction(view)}" if loss else ""
    return ", ".join(filter(None, (f"{share:.0%} done", left, falling, machines)))


def _direction(view: NetworkView) -> str:
    """Say whether the loss falls, by the newest evaluations; empty if there are too few."""
    recent = [one.loss for one in view.evaluations[-TREND_EVALUATIONS:]]
    if len(recent) < TREND_EVALUATIONS_MIN:
        return ""
    older, newer = fmean(recent[: len(recent) // 2]), fmean(recent[len(recent) // 2 :])
    return " and falling" if newer < older else " and not falling"


def alert(view: NetworkView) -> str:
    """Say in a sentence what needs attention now; empty if nothing does."""
    learners = sum(peer.live and peer.role == "learner" for peer in view.peers)
    certified = [one.certified_unix_seconds for one in view.fragments if one.certified_unix_seconds is not None]
    if view.finished or not view.peers or not certified:
        return ""
    silent_seconds = view.taken_unix_seconds - max(certified)
    if silent_seconds < ALERT_SECONDS:
        return ""
    why = ": fewer than two learners are up" if learners < LEARNERS_MIN else ""
    return f"no new version for {quantity.duration(silent_seconds)}{why}"


def about(view: NetworkView, titled: bool = True) -> list[str]:
    """Return the run's description of itself in a few lines, with its title if `titled`."""
    told = {label: plain(text, 240) for label, text in view.run.about}
    purpose = told.get("purpose", "")
    title = told.get("about", "")
    what = ": ".join(filter(None, (title, purpose))) if titled else purpose[:1].upper() + purpose[1:]
    rest = (("Run by", "run by"), ("It learns from", "kind of data"), ("Licence of the model", "licence"))
    return [*filter(None, (what,)), *(f"{words}: {told[key]}" for words, key in (*rest, MORE) if key in told)]


def joining(view: NetworkView) -> str:
    """Say who may take part, and how."""
    if view.finished:
        return "This run is finished."
    organiser = next((plain(text) for label, text in view.run.about if label == "run by"), "its organiser")
    return JOINING.get(view.run.admission, JOINING[""]).format(organiser=organiser)


def window(history: Sequence[HistoryPoint]) -> list[HistoryPoint]:
    """Return the newest points, over which rates are averaged; two at least, because long runs keep fewer points."""
    recent = [point for point in history if point.unix_seconds >= history[-1].unix_seconds - WINDOW_SECONDS]
    return recent if len(recent) > 1 else list(history[-2:])


def seconds_to_target(view: NetworkView) -> float | None:
    """Estimate the seconds to the last version at the recent pace; None if nothing moves."""
    left = view.run.versions_target - view.versions
    if left <= 0:
        return 0.0
    recent = window(view.history)
    made = recent[-1].versions - recent[0].versions if recent else 0
    return left / made * (recent[-1].unix_seconds - recent[0].unix_seconds) if made > 0 else None


def loss_rows(view: NetworkView) -> list[Row]:
    """Return a row per evaluation, with the held-out loss of certified anchors."""
    return [
        {"tokens": one.tokens_certified, "minutes": one.wall_seconds / 60, "versions": one.versions, "loss": one.loss}
        for one in view.evaluations
    ]


def rate_rows(view: NetworkView) -> list[Row]:
    """Return tokens per second over time: trained by live learners, and certified in versions where that is known."""
    return [
        {"time": milliseconds(point.unix_seconds), "series": series, "tokens_per_second": value}
        for point in view.history
        for series, value in (
            ("trained", point.trained_tokens_per_second),
            ("certified", point.tokens_per_second),
        )
        if value is not None
    ]


def peer_rows(view: NetworkView) -> list[Row]:
    """Return the number of live peers over time."""
    return [{"time": milliseconds(point.unix_seconds), "peers": point.peers_live} for point in view.history]


def version_rows(view: NetworkView) -> list[Row]:
    """Return the newest version of every fragment, and its age."""
    return [
        {
            "fragment": index,
            "version": one.version,
            "age_seconds": None
            if one.certified_unix_seconds is None
            else max(0.0, view.taken_unix_seconds - one.certified_unix_seconds),
        }
        for index, one in enumerate(view.fragments)
    ]


def traffic_rows(view: NetworkView) -> list[Row]:
    """Return the bytes sent by all peers since the observer started, and those of data-parallel training instead.

    There are two rows for each moment, data-parallel first. Empty if no peer reports its traffic.
    """
    points = [point for point in view.history if point.bytes_sent is not None]
    if not points or not view.run.parameters or not view.run.tokens_per_step:
        return []
    rows, parallel, first = [], 0.0, points[0].bytes_sent or 0
    for before, point in pairwise([points[0], *points]):
        seconds = point.unix_seconds - before.unix_seconds
        steps = before.trained_tokens_per_second * seconds / view.run.tokens_per_step
        learners = point.peers_live if point.learners_live is None else point.learners_live
        parallel += steps * data_parallel_bytes(view.run, learners)
        sent = max(0, (point.bytes_sent or 0) - first)  # can shrink when a reporting peer leaves
        time = milliseconds(point.unix_seconds)
        rows += [
            {"time": time, "series": TRAFFIC_SERIES[0], "bytes": parallel},
            {"time": time, "series": TRAFFIC_SERIES[1], "bytes": float(sent)},
        ]
    return rows


def data_parallel_bytes(run: RunFacts, learners: int) -> float:
    """Return the bytes that one learner sends for one step, in a ring all-reduce of bfloat16 gradients."""
    return 2 * (learners - 1) / learners * run.parameters * GRADIENT_BYTES if learners > 1 else 0.0

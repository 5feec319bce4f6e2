"""The view of a swarm, which fits the terminal and reports what was seen."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from coordinator.views import quantity
from coordinator.views.evaluation import Evaluation
from coordinator.views.report import ReportedBan
from coordinator.views.snapshot import CertifiedWork, FragmentStatus, OwnerDay, PeerSnapshot
from peer.machine.sparkline import BARS, sparkline
from peer.observer.terminal import AROUND_LINES, LiveView, labelled
from peer.service.status_text import status_line, status_page
from peer.swarm.report import disagreement, report_of
from peer.swarm.view import LiveSwarm, PlainLines, picture, plain_line, summary
from peer.swarm.watch import SwarmWatch
from tests.checkout import ROOT

WIDTH, HEIGHT = 80, 50


def told(name: str, versions: list[int], **more: object) -> PeerSnapshot:
    plain = {
        "peer_id": "12D3KooWHtfja7TcWgdoo9wqrrCiQ1dpyznAig3PDoyzPRpbERYu",
        "run_id": "c6c0461879dc1b6458be9a1204dee30a",
        "name": name,
        "role": "host" if name == "host" else "learner",
        "state": "hosting" if name == "host" else "training",
        "pid": 4711,
        "wall_seconds": 151.0,
        "steps": 0 if name == "host" else 123456,
        "steps_per_second": 3.5,
        "tokens": 123456 * 1024,
        "loss": None if name == "host" else 2.345678,
        "bytes_sent": 123 << 30,
        "bytes_received": 999 << 20,
        "certified": CertifiedWork(versions=20, members=78, tokens=8 << 20),
        "fragments": tuple(
            FragmentStatus(version=version, held_version=version, head="h", state="s", phase="idle")
            for version in versions
        ),
    }
    return PeerSnapshot.model_validate({**plain, **more})


def swarm(learners: int) -> SwarmWatch:
    watch = SwarmWatch("host", tuple(f"peer-{number + 1}" for number in range(learners)), 400, 300.0, bytewise=True)
    watch.note("host", told("host", [0] * 8), 0.0)
    found = tuple(
        Evaluation(versions=16 * index, tokens_certified=0, wall_seconds=0.0, loss=5.6 - 0.05 * index)
        for index in range(60)
    )
    watch.note("host", told("host", [13, 12, 13, 12, 13, 12, 13, 12], evaluations=found), 1.0)
    for name in watch.learners:
        watch.note(name, told(name, [13, 13, 13, 12, 12, 12, 12, 11]), 1.0)
    return watch


def lines_of(renderable: RenderableType) -> list[str]:
    output = io.StringIO()
    Console(file=output, width=WIDTH, height=HEIGHT).print(renderable)
    return output.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("learners", [1, 4, 40])
@pytest.mark.parametrize("height", [24, 50])
def test_the_picture_fits_the_terminal(learners: int, height: int) -> None:
    shot = picture(swarm(learners), "training", 151.0)
    room = height - len(shot.lines) - AROUND_LINES
    shown = lines_of(shot.draw(room))
    assert max(map(len, shown)) <= WIDTH
    assert len(shown) < height
    assert all(word in "\n".join(shown) for word in ("2:31 of 5:00", "of 400", "groups of 3.9", "unigrams 3.22"))
    rows = [line for line in shown if line.startswith("peer-")]
    assert len(rows) == min(learners, room - 2)
    assert rows[0].split() == [
        *("peer-1", "training", "123456", "2.346", "3.6k"),
        *("3×13", "4×12", "11", "123", "GB", "999", "MB"),
    ]
    assert any(f"{learners - len(rows)} more" in line for line in shown) == (len(rows) < learners)


def test_nothing_is_cut_off() -> None:
    assert "…" not in "".join(lines_of(picture(swarm(4), "training", 151.0).draw(40)))


def test_peers_that_have_not_come_or_have_died_are_shown_as_such() -> None:
    watch = SwarmWatch("host", ("peer-1", "peer-2", "peer-3"), 400)
    watch.note("peer-2", told("peer-2", [1]), 0.0)
    watch.note_death("peer-2", "ended by signal 9")
    watch.note_death("peer-3", "this run needs about 9 MiB")
    rows = [line.split() for line in lines_of(picture(watch, "starting", 3.0).draw(40))[-4:]]
    assert rows[0] == ["host", "starting"]
    assert rows[1] == ["peer-1", "starting"]
    assert rows[2][:3] == ["peer-2", "died", "123456"]
    assert rows[3] == ["peer-3", "died"]


def test_the_live_view_is_gone_when_it_ends() -> None:
    console = Console(file=io.StringIO(), width=WIDTH, height=HEIGHT, force_terminal=True)
    with LiveView(console) as live:
        LiveSwarm(live).show(swarm(4), "training", 1.0)
        LiveSwarm(live).show(swarm(4), "draining", 2.0)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "training" in shown
    assert "draining" in shown
    assert shown.endswith("\x1b[2K")


def test_plain_lines_come_now_and_then_and_for_every_phase_and_death() -> None:
    lines: list[str] = []
    view, watch = PlainLines(lines.append), swarm(2)
    for seconds in (0.0, 0.5, 4.9):
        view.show(watch, "training", seconds)
    assert len(lines) == 1
    view.show(watch, "training", 5.0)
    assert lines[1].startswith("0:05 training, versions 101 of 400, groups of 3.9, held-out loss 2.650")
    watch.note_death("peer-2", "ended by signal 9")
    view.show(watch, "training", 5.5)
    assert lines[2:] == ["0:05 peer-2 died: ended by signal 9"]
    view.show(watch, "draining", 6.0)
    assert lines[3].startswith("0:06 draining")


def test_a_line_says_who_is_missing() -> None:
    watch = SwarmWatch("host", ("peer-1", "peer-2"), 24)
    assert plain_line(watch, "starting", 2.0) == "0:02 starting, 0 of 2 peers up, versions 0 of 24"


def test_a_run_that_goes_on_counts_its_versions_from_before() -> None:
    """Before, a swarm over a run with 300 of 600 versions began with 0 of 600, and ended with 300 and half a bar."""
    watch = SwarmWatch("host", ("peer-1",), 600)
    watch.note("host", told("host", [150, 150], certified=CertifiedWork()), 0.0)
    assert "versions 300 of 600" in plain_line(watch, "training", 2.0)
    watch.note("host", told("host", [300, 300]), 9.0)
    assert "versions 600 of 600" in plain_line(watch, "draining", 9.0)
    [line] = [line for line in lines_of(picture(watch, "draining", 9.0).draw(40)) if line.startswith("versions")]
    assert "━" * 24 + " 600 of 600" in line


def test_a_dead_learner_has_no_speed() -> None:
    watch = swarm(2)
    assert "7.2k tokens/s" in plain_line(watch, "training", 2.0)
    watch.note_death("peer-2", "ended by signal 9")
    assert "1 of 2 peers up" in plain_line(watch, "training", 2.0)
    assert "3.6k tokens/s" in plain_line(watch, "training", 2.0)
    [line] = [line for line in lines_of(picture(watch, "training", 2.0).draw(40)) if line.startswith("traffic")]
    assert line.endswith("3.6k tokens/s")


def test_sent_bytes_do_not_shrink_when_a_peer_dies() -> None:
    watch = SwarmWatch("host", ("peer-1", "peer-2"), 24)
    for name in watch.learners:
        watch.note(name, told(name, [1], bytes_sent=3 << 20, bytes_received=5 << 20), 0.0)
    watch.note_death("peer-2", "ended by signal 9")
    assert plain_line(watch, "training", 2.0).endswith("sent 6.0 MB")
    assert any("6.0 MB sent, 10 MB received" in line for line in lines_of(picture(watch, "training", 2.0).draw(40)))


def test_the_summary_tells_success_from_failure_and_shows_the_sample() -> None:
    watch = swarm(2)
    report, reason = report_of(watch, 2, 151.0), disagreement(watch)
    shown = "\n".join(lines_of(summary(report, "def f(x):\n    return x\n", reason)))
    assert "NO: host, peer-1, peer-2 did not say at the end what they hold" in shown
    assert "    return x" in shown
    assert "muster join INVITE" in shown
    assert "every peer holds the same bytes" in "\n".join(lines_of(summary(report, "", None)))


def test_losses_on_other_text_are_not_compared_with_frequencies_of_python_s() -> None:
    """Before, a run on conversations was compared with the losses of byte frequencies in source code."""
    watch = swarm(2)
    report = report_of(watch, 2, 151.0)
    assert "(unigrams 3.22, bigrams 2.43)" in "\n".join(lines_of(summary(report, "", None, bytewise=True)))
    watch.bytewise = False
    shown = [*lines_of(summary(report, "", None)), *lines_of(picture(watch, "training", 151.0).draw(40))]
    assert "unigrams" not in "\n".join(shown)


def test_the_summary_names_attackers_and_bans() -> None:
    ban = ReportedBan(peer="12D3KooWabcdefgh", reason="signed two different statements", by=3)
    report = report_of(swarm(1), 2, 1.0).model_copy(update={"hostile": (ban.peer, "another"), "bans": (ban,)})
    shown = "\n".join(lines_of(summary(report, "", None)))
    assert "hostile    2, 1 of them banned" in shown
    assert "banned     …abcdefgh by 3: signed two different statements" in shown


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    shown = "\n".join(lines_of(summary(report_of(swarm(1), 2, 1.0), "a\x1b[2Jb\x07\rc\x0bd\n\te", None)))
    assert "a [2Jb  c d\n e" in shown


def test_a_long_label_stands_apart_from_its_text() -> None:
    assert labelled("kind of data", "stories").plain == "kind of data stories"
    assert labelled("peers", "5 live").plain == "peers        5 live"


def test_a_peer_describes_itself() -> None:
    learner, host = told("peer-1", [13, 12]), swarm(1).latest["host"]
    assert status_line(learner) == (
        "2:31 training, step 123456, loss 2.346 (swarm –), 0 tokens (0%) yours, versions 13 12, 0 others live, "
        "sent 123 GB, received 999 MB"
    )
    alone = learner.model_copy(update={"peers_live": 1, "rounds_in_flight": 1})
    assert "1 other live" in status_line(alone)
    assert "network   1 other live, 1 round in flight" in status_page(alone)
    busy = learner.model_copy(
        update={
            "note": "takes part in a round for fragment 1 (4 peers)",
            "swarm_loss": 2.5,
            "credited_tokens": {learner.peer_id: 3000, "another": 1000},
        }
    )
    assert status_line(busy).startswith("2:31 training (takes part in a round for fragment 1 (4 peers)), step")
    assert "loss 2.346 (swarm 2.500), 3.0k tokens (75%) yours" in status_line(busy)
    assert "yours     3.0k tokens (75%)" in status_page(busy)
    day = OwnerDay(trained_seconds=600, sent_bytes=3 << 20, opens_in_minutes=90)
    words = "today     trained for 10 min, sent 3.0 MB, received 0 B; its hours begin in 90 min"
    assert words in status_page(busy.model_copy(update={"day": day}))
    alone = learner.model_copy(update={"dialable": False})
    (reach,) = (line for line in status_page(alone).splitlines() if line.startswith("reach "))
    explained = (ROOT / "docs/how-to/troubleshoot.md").read_text(encoding="utf-8")
    assert f"\n| {reach.removeprefix('reach').strip().removesuffix(': muster doctor')} | " in explained
    assert "nobody gets through" not in status_page(learner)
    warm = learner.model_copy(update={"celsius": 71.4, "gpu_watts": 318.2})
    slow = learner.model_copy(update={"late": "a step takes 3 s here"})
    assert "its steps are too long for the run's rounds: muster status" in status_line(slow)
    assert "\npace      a step takes 3 s here\n" in status_page(slow)
    assert "too long" not in status_line(learner)
    assert "\npace " not in status_page(learner)
    assert status_line(warm).endswith("received 999 MB, 71 °C, 318 W")
    assert "held-out loss 2.650" in status_line(host)
    assert "step 123456, loss 2.346 (swarm –), 3.50 steps/s" in status_page(learner)
    assert "2.650 nats per token" in status_page(host)
    assert "step" not in status_page(host)


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(0, 60))
def test_a_sparkline_is_as_wide_as_its_values_allow(values: list[float], width: int) -> None:
    bars = sparkline(values, width)
    assert len(bars) == min(len(values), width)
    assert set(bars) <= set(BARS)


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=50, unique=True))
def test_a_sparkline_rises_with_its_values(values: list[int]) -> None:
    bars = sparkline(sorted(values), 50)
    assert list(bars) == sorted(bars)
    assert (bars[0], bars[-1]) == (BARS[0], BARS[-1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (quantity.count(0), "0"),
        (quantity.count(None), "–"),
        (quantity.count(999.4), "999"),
        (quantity.count(999.5), "1.0k"),
        (quantity.count(3940), "3.9k"),
        (quantity.count(39_400_000), "39M"),
        (quantity.size(0), "0 B"),
        (quantity.size(1023), "1023 B"),
        (quantity.size(1 << 20), "1.0 MB"),
        (quantity.size(25 << 20), "25 MB"),
        (quantity.duration(-1), "0:00"),
        (quantity.duration(59.9), "0:59"),
        (quantity.duration(3600), "1:00:00"),
        (quantity.versions([]), ""),
        (quantity.versions([12, 12, 11, 12]), "3×12 11"),
        (quantity.loss(None), "–"),
        (quantity.loss(2.34567), "2.346"),
    ],
)
def test_numbers_are_short(text: str, shown: str) -> None:
    assert text == shown

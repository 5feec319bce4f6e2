"""`muster top`: the terminal's picture of any view."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from coordinator.views.control import SOCKET_NAME
from coordinator.views.evaluation import Evaluation
from coordinator.views.network_view import (
    BanView,
    FragmentView,
    HistoryPoint,
    NetworkView,
    PeerView,
    RoundView,
    RunFacts,
)
from peer.cli import main
from peer.cli.top import picture, up_to_date

NOW = 1e9
FACTS = RunFacts(fragments=2, versions_target=400, presence_lifetime_seconds=9.0)

ABOUT = (("purpose", "a small model"), ("kind of data", "tales that we wrote down"))


def peer(number: int, **changes: object) -> PeerView:
    values: dict[str, object] = {
        "peer_id": f"12D3KooW{number:08d}",
        "name": f"peer-{number}",
        "role": "learner",
        "state": "training",
        "steps": 100 + number,
        "steps_per_second": 3.5,
        "loss": 2.34567,
        "versions": (12, 11),
        "credited_tokens": 4321,
        "bytes_sent": 1 << 20,
        "device": "CPU, 2 threads",
    }
    return PeerView(**{**values, **changes})  # type: ignore[arg-type]


def view(*peers: PeerView, **changes: object) -> NetworkView:
    values: dict[str, object] = {
        "run_id": "ab" * 32,
        "name": "tiny",
        "taken_unix_seconds": NOW,
        "network_seen_unix_seconds": NOW - 1,
        "run": FACTS,
        "peers": peers,
        "fragments": (FragmentView(version=12), FragmentView(version=11)),
        "evaluations": (Evaluation(versions=0, tokens_certified=0, wall_seconds=0.0, loss=5.5),),
        "history": (
            HistoryPoint(
                unix_seconds=NOW,
                versions=23,
                tokens_certified=48_000,
                tokens_per_second=900.0,
                peers_live=len(peers),
                peers_known=len(peers),
            ),
        ),
        "rounds": (RoundView(fragment=0, version=1, outcome="void"), RoundView(fragment=0, version=1)),
    }
    return NetworkView(**{**values, **changes})  # type: ignore[arg-type]


def lines_of(shown: NetworkView, rows_max: int = 40, width: int = 140) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    console.print(picture(shown).draw(rows_max))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_run_and_its_peers_are_shown_with_units() -> None:
    shown = "\n".join(lines_of(view(peer(1), peer(2, role="host", state="hosting", loss=None))))
    assert "run tiny abababababab" in shown
    assert "23 of 400 certified; 12 11 by fragment" in shown
    assert "5.500 nats per token" in shown
    assert "48k certified, 900/s certified" in shown
    assert "2 live of 2 known" in shown
    assert "2 remembered, 1 void" in shown
    [learner] = [line.split() for line in shown.splitlines() if line.startswith("peer-1")]
    assert " ".join(learner) == "peer-1 …00000001 training 101 2.346 3.50 0 4.3k 1.0 MB CPU, 2 threads"
    [host] = [line.split() for line in shown.splitlines() if line.startswith("peer-2")]
    assert host[2:4] == ["hosting", "0"]


def test_a_rate_that_is_not_known_yet_is_not_called_zero() -> None:
    point = HistoryPoint(unix_seconds=NOW, trained_tokens_per_second=8200.0)
    assert any("–/s certified, 8.2k/s trained" in line for line in lines_of(view(peer(1), history=(point,))))


def test_no_number_is_cut_off_and_no_label_runs_into_its_text() -> None:
    told = view(peer(1, name="a machine with a name"), run=FACTS.model_copy(update={"about": ABOUT}))
    shown = lines_of(told, width=80)
    [heading] = [line for line in shown if "steps/s" in line]
    assert heading.split()[2:8] == ["step", "loss", "steps/s", "behind", "credit", "sent"]
    assert "101 2.346    3.50      0   4.3k 1.0 MB" in shown[-1]
    columns = {line.index(text) for line in shown for _, text in ABOUT if text in line}
    assert len(columns) == 1
    assert any(line.startswith("kind of data tales") for line in shown)


def test_a_peer_that_is_gone_comes_last_with_the_time_since() -> None:
    rows = lines_of(view(peer(1, live=False, last_seen_seconds=75.0), peer(2)))[-2:]
    assert rows[0].startswith("peer-2")
    assert "gone 1:15 ago" in rows[1]
    assert "finished" in lines_of(view(peer(1, live=False, state="finished")))[-1]


def test_rows_are_as_many_as_there_is_room() -> None:
    shown = lines_of(view(*(peer(number) for number in range(1000))), rows_max=10)
    assert "991 more" in shown[-1]
    assert len(shown) < 20


@pytest.mark.parametrize("name", ["[red]x[/red]", "[link=http://e]x", "\x1b[2Jx", "x\ny\tz", "\u202ex", "[/]"])
def test_strangers_steer_nothing(name: str) -> None:
    hostile = peer(1, name=name, state=name, device=name)
    calm = peer(1, name="x", state="x", device="x")
    shown, expected = lines_of(view(hostile, note=name)), lines_of(view(calm))
    assert len(shown) == len(expected)
    assert "\x1b[2J" not in "\n".join(shown)
    assert "\u202e" not in "\n".join(shown)
    if name.startswith("["):
        assert any(name in line for line in shown)


def test_a_silent_network_is_told_with_its_age() -> None:
    shown = "\n".join(lines_of(view(peer(1), network_seen_unix_seconds=NOW - 40, note="no other peer answers")))
    assert "last heard of 0:40 ago. no other peer answers" in shown
    assert "last heard" not in "\n".join(lines_of(view(peer(1))))


def test_before_anything_is_known_only_that_is_said() -> None:
    shown = "\n".join(lines_of(NetworkView(run_id="cd" * 32, note="looking for the network")))
    assert "not heard of yet. looking for the network" in shown


def test_a_view_is_up_to_date_once_it_has_what_peers_say_to_have() -> None:
    assert up_to_date(view(peer(1)))
    assert up_to_date(view(peer(1, versions=(13, 12))))  # one behind is normal during a round
    assert not up_to_date(view(peer(1, versions=(14, 11))))
    assert up_to_date(view(peer(1), peer(2, versions=(14, 11), live=False)))
    assert up_to_date(view(peer(1), peer(2), peer(3, versions=(10**12, 10**12))))  # one peer's claim delays nothing
    assert not up_to_date(view())


def test_without_a_peer_or_an_invite_there_is_nothing_to_look_at(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert not (tmp_path / SOCKET_NAME).exists()
    assert main.run(["top", "--data", str(tmp_path)], (3, 11)) == 1
    assert "no peer is running" in capsys.readouterr().err
    assert main.run(["top", "nonsense", "--once"], (3, 11)) == 2
    assert "not an invite" in capsys.readouterr().err


def test_a_ban_is_told_with_its_reason() -> None:
    ban = BanView(peer_id="12D3KooWculprit", reason="signed two \x1b[2Jvotes", verified=True)
    (line,) = [one for one in lines_of(view(bans=(ban,))) if "banned" in one]
    assert "culprit: signed two" in line
    assert "evidence verified here" in line
    assert "\x1b[2J" not in line

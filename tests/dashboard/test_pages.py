"""Every page on every kind of view, as Streamlit runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from streamlit.testing.v1 import AppTest

from coordinator.views import control
from coordinator.views.network_view import FragmentView, NetworkView, PeerView, RunFacts
from coordinator.views.view_file import write_view
from dashboard import charts
from dashboard.frames.rows import milliseconds
from dashboard.own_peer import own_peer
from dashboard.text import label, plain
from dht.errors import LocalError
from peer.machine.limits import Limits, PeerSettings
from tests.dashboard.one_peer import SNAPSHOT, running_peer
from tests.dashboard.views import DEMO_SECONDS, EPOCH, HOSTILE, MAKERS, view_named
from tests.extra import extra

PAGES = ("run", "network", "rounds", "trust", "credit", "health", "my_peer")
HEADERS = {"network": "Machines", "my_peer": "My machine"}
NOW = EPOCH + DEMO_SECONDS + 1
PLAIN_ELEMENTS = frozenset({"text", "arrow_data_frame", "vega_lite_chart"})  # they read no markup in their data
SECONDS_MAX = 30
APPLY = "limits-apply"


def script(module: str, view: str, now: float, data: str | None) -> None:
    """Draw a page, as Streamlit runs it; `AppTest` reads the source of this function."""
    import importlib
    from pathlib import Path

    from dashboard.source import Source

    source = Source(Path(view), lambda: now, None if data is None else Path(data))
    importlib.import_module(f"dashboard.screens.{module}").page(source)


def app(page: str, view: NetworkView, folder: Path, data: Path | None = None) -> AppTest:
    path = folder / "view.json"
    write_view(path, view)
    arguments = {"module": page, "view": str(path), "now": NOW, "data": None if data is None else str(data)}
    return AppTest.from_function(script, kwargs=arguments, default_timeout=SECONDS_MAX)


def shown(page: str, view: NetworkView, folder: Path) -> AppTest:
    found = app(page, view, folder).run()
    assert not found.exception
    return found


def texts(at: AppTest) -> str:
    return "\n".join(one.value for one in at.text)


def figures(at: AppTest) -> dict[str, str]:
    return {one.label.replace("\\", ""): one.value.replace("\\", "") for one in at.metric}


def messages(at: AppTest) -> Iterator[tuple[str, Message]]:
    """Yield every message to the browser with its kind, including the containers' own."""
    waiting: list[Any] = [at._tree]
    while waiting:
        node = waiting.pop()
        waiting += getattr(node, "children", {}).values()
        proto = getattr(node, "proto", None)
        if isinstance(proto, Message):
            yield getattr(node, "type", ""), proto


def strings(message: Message) -> Iterator[str]:
    """Yield every string in a message, at any depth."""
    for field, value in message.ListFields():
        for one in value if field.is_repeated else [value]:
            if isinstance(one, Message):
                yield from strings(one)
            elif isinstance(one, str):
                yield one


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", ["demo", "hostile", *extra(one for one in MAKERS if one not in ("demo", "hostile"))])
def test_every_page_shows_every_view(page: str, name: str, tmp_path: Path) -> None:
    at = shown(page, view_named(name), tmp_path)
    assert [one.value for one in at.header] == [HEADERS.get(page, page.capitalize())]


@pytest.mark.parametrize("page", PAGES[:-1])
def test_a_silent_network_says_since_when(page: str, tmp_path: Path) -> None:
    badges = " ".join(one.value for one in shown(page, view_named("gone"), tmp_path).markdown)
    assert "network gone, last seen 41 s ago" in badges.replace("\\", "")
    assert "live" not in badges


def test_a_live_network_says_so(demo: NetworkView, tmp_path: Path) -> None:
    badges = " ".join(one.value for one in shown("run", demo, tmp_path).markdown)
    assert "live" in badges
    assert "simulated" in badges


def test_a_network_never_heard_of_is_not_live(tmp_path: Path) -> None:
    assert "nothing heard yet" in " ".join(one.value for one in shown("run", NetworkView(), tmp_path).markdown)


def test_the_run_in_figures(demo: NetworkView, tmp_path: Path) -> None:
    found = figures(shown("run", demo, tmp_path))
    assert found["Loss"] == f"{demo.evaluations[-1].loss:.3f}"
    assert found["Versions"] == f"{demo.history[-1].versions} of 600"
    assert "the first and the final one read all of it" in texts(shown("run", demo, tmp_path))  # why it may end higher
    assert found["Live machines"] == f"{sum(peer.live for peer in demo.peers)} of 12"


def test_a_run_that_is_over_shows_what_came_of_it_and_no_speed(demo: NetworkView, tmp_path: Path) -> None:
    over = {"run": demo.run.model_copy(update={"versions_target": demo.versions - 1})}
    ended = demo.model_copy(update={**over, "demo": False, "note": "nobody answers"})
    at = shown("run", ended, tmp_path)
    assert "nobody answers" not in texts(at)
    found = figures(at)
    assert list(found) == ["Loss", "Versions", "Tokens", "Contributors"]
    assert found["Versions"] == f"{demo.versions - 1} of {demo.versions - 1}"
    assert found["Contributors"] == str(len(demo.credit))


def test_peers_are_found_and_filtered(demo: NetworkView, tmp_path: Path) -> None:
    at = shown("network", demo, tmp_path)
    assert len(at.dataframe[0].value) == 12
    wanted = demo.peers[3]
    at.text_input(key="network-find").input(wanted.name.upper()).run()
    assert list(at.dataframe[0].value["peer"]) == [label(wanted)]
    at.text_input(key="network-find").input("").run()
    at.multiselect(key="network-kinds").select("banned").run()
    assert list(at.dataframe[0].value["state"]) == ["banned: signed two different commitments"]
    at.multiselect(key="network-kinds").unselect("banned").select("unknown").run()
    assert "No peer matches." in texts(at)


def test_a_peer_has_a_page_of_its_own(demo: NetworkView, tmp_path: Path) -> None:
    peer = demo.peers[2]
    at = app("network", demo, tmp_path)
    at.query_params["peer"] = peer.peer_id
    at.run()
    assert not at.exception
    assert label(peer) in texts(at)
    assert peer.peer_id in list(at.dataframe[0].value["value"])
    at.button[0].click().run()
    assert [one.value for one in at.header] == ["Machines"]


def test_a_peer_that_nobody_knows(demo: NetworkView, tmp_path: Path) -> None:
    at = app("network", demo, tmp_path)
    at.query_params["peer"] = HOSTILE[0]
    at.run()
    assert not at.exception
    assert "Nobody of this id" in texts(at)


def test_a_ban_stands_there_with_its_reason_and_verified_evidence(demo: NetworkView, tmp_path: Path) -> None:
    row = shown("trust", demo, tmp_path).dataframe[0].value.iloc[0]
    assert row["reason"] == "signed two different commitments in one group"
    assert row["evidence"].startswith("verified here")


def test_the_leaderboard_is_in_order(demo: NetworkView, tmp_path: Path) -> None:
    table = shown("credit", demo, tmp_path).dataframe[0].value
    assert list(table["tokens"]) == sorted(table["tokens"], reverse=True)
    assert table["share"].sum() == pytest.approx(100)


# -- strangers' words


@pytest.mark.parametrize("page", PAGES)
def test_no_stranger_writes_markup(page: str, tmp_path: Path) -> None:
    """No hostile text is in anything that the browser reads as markup, code, name or address."""
    raw = [*HOSTILE, *map(plain, HOSTILE), "<b>12D3KooW"]
    for kind, message in messages(shown(page, view_named("hostile"), tmp_path)):
        if kind != "text":
            for string in strings(message):
                assert not any(word in string for word in raw), (kind, string)


def test_strangers_words_are_shown_all_the_same(tmp_path: Path) -> None:
    at = shown("network", view_named("hostile"), tmp_path)
    found = " ".join(map(str, at.dataframe[0].value.to_numpy().ravel())) + texts(at)
    assert all(plain(word, 20).rstrip("…") in found for word in HOSTILE[:3])


def test_a_hostile_peer_page(tmp_path: Path) -> None:
    at = app("network", view_named("hostile"), tmp_path)
    at.query_params["peer"] = "<b>12D3KooW"
    at.run()
    assert not at.exception
    for kind, message in messages(at):
        if kind != "text":
            assert not any(word in string for string in strings(message) for word in [*HOSTILE, "<b>12D"]), kind


# -- the peer on this machine


def test_my_peer_can_be_paused_and_resumed(tmp_path: Path) -> None:
    with running_peer(tmp_path) as asked:
        at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()
        assert ": training" in texts(at)
        assert at.button(key="resume").disabled
        at.button(key="pause").click().run()
        assert ": paused" in texts(at)
        at.button(key="resume").click().run()
        assert ": training" in texts(at)
        assert not at.exception
        at.toggle(key="my-details").set_value(True).run()
        assert HOSTILE[2] in texts(at)
        assert list(at.dataframe[0].value["reason"]) == [plain(HOSTILE[4])]
    assert {one.command for one in asked} == {"status", "limits", "credit", "pause", "resume"}
    assert not any(one.changes for one in asked)


def test_my_peer_is_marked_also_after_it_has_ended(tmp_path: Path) -> None:
    mine = PeerView(peer_id=SNAPSHOT.peer_id, name="ann")
    view = NetworkView(peers=(mine, PeerView(peer_id="other", name="ben")))

    def mark() -> set[str]:
        own_peer.clear()  # as when its cached value has expired
        names = app("network", view, tmp_path, data=tmp_path).run().dataframe[0].value["peer"]
        return {name for name in names if "(mine)" in name}

    with running_peer(tmp_path):
        marked = mark()
    assert len(marked) == 1
    assert mark() == marked


def field(at: AppTest, title: str) -> Any:
    """Return the field of a limit as it is drawn now."""
    fields = [*at.number_input, *at.text_input, *at.toggle]
    return next(one for one in fields if one.label.replace("\\", "") == title)


def test_my_peers_limits_can_be_changed_and_changed_back(tmp_path: Path) -> None:
    with running_peer(tmp_path) as asked:
        at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()
        assert len([*at.number_input, *at.text_input, *at.toggle]) == len(Limits.model_fields) + 1  # Details
        field(at, "Upload, Mbit per second").set_value(2.0)
        field(at, "Hours").set_value("22:00-07:00")
        field(at, "Pause on battery").set_value(False)
        field(at, "Niceness").set_value(19)
        at.button(key=APPLY).click().run()
        assert "kept for the next start. These take effect when the peer starts again: Niceness." in texts(at)
        assert PeerSettings.load(tmp_path).limits == Limits(
            upload_mbit=2.0, hours="22:00-07:00", pause_on_battery=False, niceness=19
        )
        assert field(at, "Upload, Mbit per second").value == 2.0
        field(at, "Upload, Mbit per second").set_value(0.0)
        at.button(key=APPLY).click().run()
        off = field(at, "Upload, Mbit per second")
        assert (off.value, off.placeholder) == (None, "unlimited")
        at.button(key=APPLY).click().run()
        assert "Nothing was changed." in texts(at)
        assert not at.exception
    changes = [one.changes for one in asked if one.changes]
    assert changes == [
        ("upload_mbit=2.0", "niceness=19", "hours=22:00-07:00", "pause_on_battery=false"),
        ("upload_mbit=0.0",),
    ]


@pytest.mark.parametrize(
    ("title", "value", "sentence"),
    [
        ("Upload, Mbit per second", 0.5, "at least 1"),
        ("Niceness", 40, "niceness"),
        ("GPU memory, share", 0.0, "gpu_memory_share"),
        ("Hours", "never", "'never' are no hours"),
        ("Hours", "<b>never</b>", "<b>never</b>"),
    ],
)
def test_a_bad_limit_is_a_sentence_and_nothing_changes(
    title: str, value: float | str, sentence: str, tmp_path: Path
) -> None:
    with running_peer(tmp_path):
        at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()
        field(at, "Disk, GB").set_value(5.0)
        field(at, title).set_value(value)
        at.button(key=APPLY).click().run()
        assert not at.exception
        said = [one.value for one in at.text if one.value.startswith("Nothing was changed: ")]
        assert len(said) == 1
        assert sentence in said[0]
        assert field(at, title).value == value  # to be corrected
    assert PeerSettings.load(tmp_path).limits == Limits()


def test_limits_stay_while_the_peer_does_not_answer_and_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_peer(tmp_path):
        at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()

        def busy(*_: object) -> None:
            raise LocalError("the peer does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(control, "limits", busy)
            at.run()
            field(at, "Hours").set_value("1:00-2:00")
            at.button(key=APPLY).click().run()
            assert "the peer does not answer" in texts(at)
            assert "Nothing was changed" not in texts(at)  # the result is not known
    at.run()
    assert "no peer is running" in texts(at)
    assert not [*at.number_input, *at.text_input, *at.toggle, *at.button]
    assert not at.exception


def test_my_peer_says_when_there_is_none(tmp_path: Path) -> None:
    at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()
    assert "no peer is running" in texts(at)
    assert not at.button


def test_my_peer_says_when_the_run_is_over(tmp_path: Path) -> None:
    finished = NetworkView(run=RunFacts(versions_target=1), fragments=(FragmentView(version=1),))
    at = app("my_peer", finished, tmp_path, data=tmp_path).run()
    assert "This run is finished" in texts(at)
    assert "no peer is running" not in texts(at)


def test_there_are_no_controls_without_a_data_directory(tmp_path: Path) -> None:
    at = app("my_peer", NetworkView(), tmp_path).run()
    assert "no peer to show" in texts(at)
    assert not at.button


def test_axes_read_as_plain_numbers_below_one() -> None:
    import vl_convert

    rows = [{"time": milliseconds(NOW + step), "steps_per_second": step / 10} for step in range(9)]
    spec = charts.peer_history("steps_per_second", "steps per second") | {"data": {"values": rows}, "width": 300}
    drawn = vl_convert.vegalite_to_svg(spec)
    assert all(f">{label}</text>" in drawn for label in ("0", "0.2", "0.8"))
    assert "00m<" not in drawn  # thousandths


def test_my_machine_leaves_when_asked_twice(tmp_path: Path) -> None:
    with running_peer(tmp_path) as asked:
        at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()
        at.button(key="leave-False").click().run()
        assert not any(one.command == "drain" for one in asked)
        at.button(key="stay").click().run()
        at.button(key="leave-False").click().run()
        at.button(key="leave-True").click().run()
        assert not at.exception
    assert [one.command for one in asked].count("drain") == 1


def test_a_preset_changes_its_limits_and_no_others(tmp_path: Path) -> None:
    with running_peer(tmp_path):
        at = app("my_peer", NetworkView(), tmp_path, data=tmp_path).run()
        field(at, "Disk, GB").set_value(5.0)
        at.button(key=APPLY).click().run()
        at.button(key="preset-Gentle").click().run()
        gentle = PeerSettings.load(tmp_path).limits
        assert gentle == Limits(
            disk_gigabytes=5.0, upload_mbit=5.0, compute_share=0.5, niceness=19, pause_while_used_minutes=10.0
        )
        assert "when the peer starts again: Niceness." in texts(at)
        at.button(key="preset-Full").click().run()
        assert PeerSettings.load(tmp_path).limits == Limits(disk_gigabytes=5.0)
        assert not at.exception

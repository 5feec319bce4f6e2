"""The public page: complete without a network, kept up to date, and free of strangers' markup."""

from __future__ import annotations

import os
import signal
import socket
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.views.network_view import NetworkView
from coordinator.views.view_file import write_view
from dashboard.public_page import loss_chart, page
from dashboard.publish import PAGE, main, publish
from dht.errors import LocalError
from peer.service.dashboard import PagesAt, PublicPage
from tests.dashboard.views import demo_view, hostile, one_peer_view

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "pre", "table", "tr", "th", "td", "span"),
    *("svg", "path", "polyline", "text"),
}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


VIEW = demo_view(12, 120.0)


def test_the_page_of_a_run_says_how_it_goes_and_who_contributed() -> None:
    text = page(VIEW)
    assert "done" in text
    assert "<polyline" in text
    assert VIEW.credit[0].name in text
    assert "muster join INVITE" in text
    told = (("about", "Stories"), ("purpose", "to try it"))
    about = page(VIEW.model_copy(update={"run": VIEW.run.model_copy(update={"about": told})}))
    assert about.count("Stories") == 2, "in the title of the page and in that of the text"
    assert "<p>To try it</p>" in about
    assert all(address not in text for peer in VIEW.peers for address in peer.addresses)


@pytest.mark.parametrize("view", [VIEW, NetworkView(), one_peer_view(), hostile(VIEW)])
def test_nothing_of_a_strangers_becomes_markup(view: NetworkView) -> None:
    found = Tags(page(view)).found
    assert {tag for tag, _ in found} <= TAGS
    assert not [name for _, attributes in found for name in attributes if name.startswith("on")]
    links = [attributes["href"] for tag, attributes in found if tag == "a"]
    assert set(links) == {"https://github.com/musterml/muster"}


def test_a_run_that_is_over_invites_nobody() -> None:
    ended = VIEW.model_copy(update={"run": VIEW.run.model_copy(update={"versions_target": 1})})
    text = page(ended)
    assert "This run is finished." in text
    assert "muster join" not in text
    assert "the first and the final one read all of it" in text


@pytest.mark.parametrize("points", [[], [(0, 3.0)], [(0, 3.0), (0, 3.0)], [(0, 5.0), (10, 2.0), (30, 2.5)]])
def test_a_chart_has_its_points_within_its_frame(points: list[tuple[int, float]]) -> None:
    found = [attributes["points"] for tag, attributes in Tags(loss_chart(points)).found if tag == "polyline"]
    assert len(found) == (len(points) > 1)
    for x, y in (map(float, pair.split(",")) for line in found for pair in str(line).split()):
        assert 0 <= x <= 640
        assert 0 <= y <= 260


def test_it_is_written_whole_once_there_is_a_view(tmp_path: Path) -> None:
    view, into = tmp_path / "view.json", tmp_path / "public" / "run"
    assert not publish(view, into)
    write_view(view, VIEW.model_copy(update={"network_seen_unix_seconds": None}))
    assert not publish(view, into), "nothing was heard of the network yet"
    assert not into.exists()
    write_view(view, VIEW)
    assert publish(view, into)
    assert (into / PAGE).read_text() == page(VIEW)
    assert (into / PAGE).stat().st_mode & 0o044
    (tmp_path / "file").touch()
    with pytest.raises(LocalError, match="cannot be written"):
        publish(view, tmp_path / "file" / "page")


def test_a_publisher_told_to_stop_writes_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view, told = tmp_path / "view.json", []

    def end(_: float) -> None:
        told.append((tmp_path / PAGE).read_text())
        write_view(view, VIEW.model_copy(update={"run": VIEW.run.model_copy(update={"versions_target": 1})}))
        signal.raise_signal(signal.SIGTERM)

    write_view(view, VIEW)
    monkeypatch.setattr("dashboard.publish.threading.Event", lambda: SimpleNamespace(wait=end))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["--view", str(view), "--page", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "This run is finished." not in told[0]
    assert "This run is finished." in (tmp_path / PAGE).read_text()


def test_it_takes_the_options_of_the_command_that_starts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = PublicPage(tmp_path, PagesAt(taken.getsockname()[1])).arguments()
        assert main(["--view", str(tmp_path / "view.json"), *words]) == 2
    assert "nobody can listen at 127.0.0.1" in capsys.readouterr().err


def test_a_web_server_can_read_it_though_the_host_keeps_its_files_private(tmp_path: Path) -> None:
    view, into = tmp_path / "view.json", tmp_path / "public"
    write_view(view, VIEW)
    mask = os.umask(0o077)
    try:
        assert publish(view, into)
    finally:
        os.umask(mask)
    assert (into.stat().st_mode & 0o777, (into / PAGE).stat().st_mode & 0o777) == (0o755, 0o644)

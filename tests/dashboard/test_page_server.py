"""The server of the public page: only that page, and connections bounded in number and time."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.views.view_file import write_view
from dashboard.page_server import CALL_SECONDS_MAX, CALLERS_MAX, HEADERS, PageServer
from dashboard.public_page import page
from dashboard.publish import publish
from tests.dashboard.views import demo_view

VIEW = demo_view(12, 120.0)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@contextmanager
def served(clock: Clock) -> Iterator[PageServer]:
    with PageServer("127.0.0.1", 0, clock) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock) -> Iterator[PageServer]:
    with served(clock) as found:
        yield found


def ask(server: PageServer, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    line = http.client.HTTPConnection(*server.server_address[:2])
    try:
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        line.close()


def test_every_visitor_gets_the_newest_page_and_nothing_from_elsewhere(server: PageServer, tmp_path: Path) -> None:
    view = tmp_path / "view.json"
    assert not publish(view, None, server)
    assert ask(server, "GET", "/")[0] == 503
    write_view(view, VIEW)
    assert publish(view, None, server)
    for path in ("/", "/index.html", "/?from=mail"):
        status, headers, body = ask(server, "GET", path)
        assert (status, body) == (200, page(VIEW).encode())
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert HEADERS.items() <= headers.items()
    assert ask(server, "HEAD", "/")[2] == b""
    assert list(tmp_path.iterdir()) == [view]


def test_a_browser_takes_the_style_of_the_page_and_no_other() -> None:
    [style] = re.findall(r"<style>(.*?)</style>", page(VIEW), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in HEADERS["Content-Security-Policy"]
    assert not re.search(r"<[^>]* style=", page(VIEW))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/view.json", 404),
        ("GET", "/../../etc/passwd", 404),
        ("HEAD", "/favicon.ico", 404),
        ("POST", "/", 501),
        ("DELETE", "/index.html", 501),
    ],
)
def test_there_is_nothing_else(server: PageServer, method: str, path: str, status: int) -> None:
    server.page = b"the page"
    found, headers, body = ask(server, method, path)
    assert found == status
    assert b"the page" not in body
    assert HEADERS.items() <= headers.items()


def test_a_visitor_that_takes_too_long_is_hung_up_on_however_it_goes_on(server: PageServer, clock: Clock) -> None:
    with socket.create_connection(server.server_address[:2]) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nX: ")
        clock.seconds = CALL_SECONDS_MAX / 2
        slow.sendall(b"y")
        clock.seconds = CALL_SECONDS_MAX + 1
        assert slow.recv(100) == b""


def test_more_callers_than_there_is_room_for_are_turned_away(server: PageServer, clock: Clock) -> None:
    server.page = b"the page"
    silent = [socket.create_connection(server.server_address[:2]) for _ in range(CALLERS_MAX)]
    try:
        with socket.create_connection(server.server_address[:2]) as late:
            assert late.recv(100) == b""
        clock.seconds = CALL_SECONDS_MAX + 1
        for one in silent:
            assert one.recv(100) == b""
    finally:
        for one in silent:
            one.close()
    assert ask(server, "GET", "/")[2] == b"the page"

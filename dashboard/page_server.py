"""Serves the public page on a port: only that page, read-only. Connections are bounded in number and time."""

from __future__ import annotations

import base64
import hashlib
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from dashboard.public_page import REFRESH_SECONDS, STYLE

CALLERS_MAX = 64  # each has a thread
CALL_SECONDS_MAX = 10.0  # from the connection to the last byte
PATHS = ("/", "/index.html")
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class PageServer(ThreadingMixIn, TCPServer):
    """A server that listens at once, and answers with `page` while `serve_forever` runs."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = CALLERS_MAX

    def __init__(self, listen: str, port: int, clock: Callable[[], float]) -> None:
        self.page = b""  # there is none yet
        self._clock = clock
        self._called_at: dict[socket.socket, float] = {}
        self.address_family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        super().__init__((listen, port), _Reader)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether there is room for one more connection."""
        return len(self._called_at) < CALLERS_MAX

    def process_request(self, request: Any, client_address: Any) -> None:
        self._called_at[request] = self._clock()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._called_at.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second, close connections older than CALL_SECONDS_MAX, even if they still send bytes."""
        for request, called_at in list(self._called_at.items()):
            if self._clock() > called_at + CALL_SECONDS_MAX:
                self._called_at.pop(request, None)
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hangs up."""


class _Reader(BaseHTTPRequestHandler):
    """Answers one request."""

    server: PageServer
    timeout = CALL_SECONDS_MAX

    def do_GET(self) -> None:
        self._answer(with_page=True)

    def do_HEAD(self) -> None:
        self._answer(with_page=False)

    def _answer(self, with_page: bool) -> None:
        page = self.server.page
        if self.path.partition("?")[0] not in PATHS:
            return self.send_error(HTTPStatus.NOT_FOUND)
        if not page:
            return self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain="Nothing is known of the run yet")
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Cache-Control", f"max-age={REFRESH_SECONDS // 2}")
        self.end_headers()
        if with_page:
            self.wfile.write(page)
        return None

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "Muster"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that there is no list of readers."""

"""A Hugging Face Hub on this machine: the part of its HTTP interface that `huggingface_hub` and `datasets` use.

It serves a folder, `models/OWNER/NAME/…` and `datasets/OWNER/NAME/…`, each as a repository of one commit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
_API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+))?/?(.*)")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class LocalHub:
    """The folder that is served, and the requests that were made.

    The next `busy` requests for files, and the next `busy_api` of all other requests, are refused with 429.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.asked: list[str] = []
        self.busy = self.busy_api = 0

    def folder(self, kind: str, name: str) -> Path:
        """Make and return the folder of a repository, for a test to fill."""
        path = self.root / kind / name
        path.mkdir(parents=True, exist_ok=True)
        return path


@contextmanager
def served(root: Path) -> Iterator[LocalHub]:
    """Serve a hub at `url` while the block runs."""
    hub = LocalHub(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self._answer(json.loads(body) if body.startswith("{") else parse_qs(body))

    def log_message(self, format: str, *args: Any) -> None:
        """Log a request to the list that tests read."""
        self.hub.asked.append(f"{self.command} {self.path}")

    def _answer(self, body: dict[str, Any] | None = None) -> None:
        path = unquote(urlsplit(self.path).path)
        if found := _FILE.fullmatch(path):
            kind, name, revision, file = found.groups()
            self._revised(revision, lambda: self._file("datasets" if kind else "models", name, file))
        elif found := _API.fullmatch(path):
            kind, name, verb, revision, rest = found.groups()
            self._revised(revision or "main", lambda: self._api(kind, name, verb, rest, body))
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _revised(self, revision: str, answer: Callable[[], None]) -> None:
        if revision == "main" or COMMIT.startswith(revision):
            answer()
        else:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})

    def _api(self, kind: str, name: str, verb: str | None, rest: str, body: dict[str, Any] | None) -> None:
        folder = self.hub.root / kind / name
        if self.hub.busy_api:
            self.hub.busy_api -= 1
            self._send(429, b"", {"Retry-After": "0"})
            return
        if not folder.is_dir():
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        if verb == "paths-info":
            wanted = (body or {}).get("paths", [])
            found: Any = [self._entry(folder, folder / one) for one in wanted if (folder / one).exists()]
        elif verb == "tree":
            wanted = "**/*" if "recursive=true" in self.path.lower() else "*"
            found = [self._entry(folder, path) for path in sorted((folder / rest).glob(wanted))]
        else:
            siblings = [{"rfilename": path.relative_to(folder).as_posix()} for path in files]
            found = {"id": name, "sha": COMMIT, "private": False, "gated": False, "disabled": False, "tags": []}
            found |= {"siblings": siblings, "downloads": 0, "likes": 0, "lastModified": "2026-01-01T00:00:00.000Z"}
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _entry(self, folder: Path, path: Path) -> dict[str, Any]:
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            return {"type": "directory", "path": name, "oid": "0" * 40}
        return {"type": "file", "path": name, "oid": _digest(path), "size": path.stat().st_size}

    def _file(self, kind: str, name: str, file: str) -> None:
        path = self.hub.root / kind / name / file
        if not path.is_file():
            code = "EntryNotFound" if path.parents[0].is_dir() else "RepoNotFound"
            self._send(404, b"", {"X-Error-Code": code, "X-Repo-Commit": COMMIT})
            return
        if self.hub.busy:
            self.hub.busy -= 1
            self._send(429, b"", {"Retry-After": "0"})
            return
        content, status = path.read_bytes(), 200
        headers = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, end = int(found[1]), min(int(found[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content, status = content[start : end + 1], 206
        self._send(status, content, headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()

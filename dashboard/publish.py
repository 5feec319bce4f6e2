"""`python -m dashboard.publish --view FILE`: keeps the public page up to date, in a folder, on a port, or both."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from coordinator.views.view_file import read_view
from dashboard.page_server import PageServer
from dashboard.public_page import REFRESH_SECONDS, page
from dht.errors import LocalError
from dht.files import write_whole

FIRST_SECONDS = 2.0  # between looks until there is a view
PAGE = "index.html"


def publish(view: Path, folder: Path | None, server: PageServer | None = None) -> bool:
    """Publish the page of this view; False if there is no view yet, or nothing from the network in it.

    Raises LocalError if the page cannot be written.
    """
    try:
        seen = read_view(view)
    except LocalError:
        return False
    if seen.network_seen_unix_seconds is None:  # an earlier page says more
        return False
    text = page(seen).encode()
    if server is not None:
        server.page = text
    if folder is not None:
        _write(text, folder)
    return True


def _write(text: bytes, folder: Path) -> None:
    file = folder / PAGE
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        write_whole(file, text)
        file.chmod(0o644)  # a web server must read it, whatever the umask of this process
    except OSError as error:
        raise LocalError(f"{file} cannot be written: {error.strerror}") from None


def main(arguments: list[str]) -> int:
    """Publish until told to stop, then once more; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m dashboard.publish", description=__doc__)
    parser.add_argument("--view", type=Path, required=True, help="the file that an observer writes")
    parser.add_argument("--page", type=Path, help="folder of the page")
    parser.add_argument("--page-port", type=int, help="TCP port to serve the page on")
    parser.add_argument("--page-listen", default="127.0.0.1", help="IP address to listen on")
    options = parser.parse_args(arguments)
    server = None
    if options.page_port is not None:
        try:
            server = PageServer(options.page_listen, options.page_port, time.monotonic)
        except OSError as error:
            place = f"{options.page_listen} port {options.page_port}"
            sys.stderr.write(f"nobody can listen at {place}: {error.strerror}\n")
            return 2
        threading.Thread(target=server.serve_forever, daemon=True).start()
    never = threading.Event()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        while True:
            written = _published(options.view, options.page, server)
            never.wait(REFRESH_SECONDS if written else FIRST_SECONDS)
    _published(options.view, options.page, server)  # the last view
    return 0


def _published(view: Path, folder: Path | None, server: PageServer | None) -> bool:
    try:
        return publish(view, folder, server)
    except LocalError as error:
        sys.stderr.write(f"{error}\n")
        return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

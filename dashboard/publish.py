"""`python -m dashboard.publish --view FILE --into DIR`: keep the public page there up to date."""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

from coordinator.views.view_file import read_view
from dashboard.public_page import REFRESH_SECONDS, page
from dht.errors import LocalError
from dht.files import write_whole

FIRST_SECONDS = 2.0  # between looks until there is a view
PAGE = "index.html"


def publish(view: Path, into: Path) -> bool:
    """Write the page of this view; False if there is no view yet. Raises LocalError if it cannot be written."""
    try:
        text = page(read_view(view))
    except LocalError:
        return False
    try:
        if not into.is_dir():
            into.mkdir(parents=True)
            into.chmod(0o755)
        write_whole(into / PAGE, text.encode())
        (into / PAGE).chmod(0o644)  # a web server reads it, whatever this process keeps private
    except OSError as error:
        raise LocalError(f"{into / PAGE} cannot be written: {error.strerror}") from None
    return True


def main(arguments: list[str]) -> int:
    """Publish until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m dashboard.publish", description=__doc__)
    parser.add_argument("--view", type=Path, required=True, help="the file that an observer writes")
    parser.add_argument("--into", type=Path, required=True, help="folder of the page")
    options = parser.parse_args(arguments)
    never = threading.Event()
    while True:
        try:
            written = publish(options.view, options.into)
        except LocalError as error:
            sys.stderr.write(f"{error}\n")
            written = True
        never.wait(REFRESH_SECONDS if written else FIRST_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m dashboard.demo --out FILE`: writes a view of the demo every second, as an observer of a network does."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path

from coordinator.views.view_file import write_view
from dashboard.clock import unix_seconds
from dashboard.demo.swarm import DemoSwarm
from dht.errors import MusterError, UsageError

WARM_SECONDS = 110.0  # virtual time before the demo begins, in which every kind of event happens
LIFE_SECONDS = 1800.0  # after so long it begins anew with the next seed, so that nothing grows without end
WRITE_SECONDS = 1.0


def main() -> int:
    """Run the demo until told to stop; returns exit code 1 if the file cannot be written, 2 if used wrongly."""
    parser = argparse.ArgumentParser(prog="python -m dashboard.demo", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--peers", type=int, default=12, help="how many peers there are")
    parser.add_argument("--seed", type=int, default=1, help="the same seed tells the same story")
    arguments = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        seed = arguments.seed
        while not ended.is_set():
            _live(DemoSwarm(seed, arguments.peers, unix_seconds() - WARM_SECONDS), arguments.out, ended)
            seed += 1
    except MusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _live(demo: DemoSwarm, path: Path, ended: threading.Event) -> None:
    """Run the demo of one seed in step with the clock."""
    started = time.monotonic()
    while not ended.is_set():
        virtual = WARM_SECONDS + time.monotonic() - started
        if virtual > LIFE_SECONDS:
            return
        demo.advance(virtual)
        write_view(path, demo.view())
        ended.wait(WRITE_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

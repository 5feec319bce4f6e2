"""Drive one reader by code coverage: `python -m tests.fuzz.by_coverage TARGET -runs=N`.

Needs atheris: `pip install -c constraints.txt -e '.[fuzz]'`.
All options after the target are libFuzzer's. An input that makes anything but a MusterError ends the run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dht", "coordinator", "peer"]):
    from tests.fuzz.targets import TARGETS

INPUT_BYTES_MAX = 16384


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    name, *options = sys.argv[1:]
    target = TARGETS[name]

    def try_input(data: bytes) -> None:
        target.try_input(data)

    with tempfile.TemporaryDirectory() as corpus:  # left behind: libFuzzer does not come back
        for number, seed in enumerate(target.seeds):
            (Path(corpus) / f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], f"-max_len={INPUT_BYTES_MAX}", *options, corpus], try_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

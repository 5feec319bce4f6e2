"""`python -m coordinator.virtual --seeds N`: run many seeds; print every seed that fails, so that it can be replayed."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from coordinator.virtual.chaos import run_seed


def main() -> int:
    """Exit code 1 if any seed failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed; with --seeds 1 it replays one")
    parser.add_argument("--real-keys", action="store_true", help="Ed25519 signatures instead of keyed hashes")
    arguments = parser.parse_args()
    started, failed, versions, peer_rounds = time.process_time(), [], 0, 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            report = run_seed(seed, arguments.real_keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed must be named
            failed.append(seed)
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n")
            if arguments.seeds == 1:
                traceback.print_exc()
            continue
        versions += report.versions
        peer_rounds += report.versions * report.peers
        if arguments.seeds == 1:
            sys.stdout.write(f"{report}\n")
    seconds = time.process_time() - started
    sys.stdout.write(
        f"{arguments.seeds} seeds, {len(failed)} failed {failed[:20]}; {versions} versions, "
        f"{peer_rounds / 8 / seconds:.1f} rounds of 8 peers per core-second, {seconds:.0f} s\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

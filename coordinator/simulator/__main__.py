"""`python -m coordinator.simulator --seeds N`: run many seeds; print every one that fails, to be replayed."""

from __future__ import annotations

import argparse
import os
import sys
import time

from coordinator.simulator.seeds import Kind, outcomes


def main() -> int:
    """Run the seeds; return exit code 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m coordinator.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed; with --seeds 1 it replays one")
    parser.add_argument("--real-keys", action="store_true", help="Ed25519 signatures instead of keyed hashes")
    parser.add_argument("--attacked", action="store_true", help="fewer than a third of the peers are hostile")
    parser.add_argument("--strangers", action="store_true", help="newcomers on probation, and audits")
    parser.add_argument("--digests", action="store_true", help="what each seed came to, to compare two revisions by")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes to run seeds in")
    arguments = parser.parse_args()
    started, failed, versions, rounds = time.monotonic(), [], 0, 0.0
    cpu_seconds, hostile, banned = 0.0, 0, 0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    kind = Kind(arguments.real_keys, arguments.attacked, arguments.strangers)
    for outcome in outcomes(seeds, kind, arguments.processes):
        cpu_seconds += outcome.cpu_seconds
        report = outcome.report
        if isinstance(report, str):
            failed.append(outcome.seed)
            sys.stdout.write(f"seed {outcome.seed}: {report}\n")
            continue
        versions += report.versions
        rounds += report.versions * report.peers / 8
        hostile, banned = hostile + report.hostile, banned + report.banned
        if arguments.digests:
            sys.stdout.write(f"seed {outcome.seed}: {report.versions} versions, {report.digest[:16]}\n")
        if arguments.seeds == 1:
            sys.stdout.write(f"{report}\n")
    sys.stdout.write(
        f"{arguments.seeds} seeds, {len(failed)} failed {failed[:20]}; {versions} versions, "
        f"{rounds / cpu_seconds:.1f} rounds of 8 peers per core-second, {time.monotonic() - started:.0f} s\n"
    )
    if arguments.attacked:
        sys.stdout.write(f"{hostile} hostile peers, {banned} of them banned by everybody\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures tokens per second of Muster and of synchronous data-parallel training, over links of several speeds.

`python -m tests.bench.links [--speeds 1e9 1e8 2e7 5e6] [--report FILE]`, as root. Peers are separate machines (network
namespaces) on links of that speed each way and a round trip of 50 ms. Steps are held to a pace, so that both methods
compute equally fast and the cores are free for the network. Prints one line of JSON for each measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.run.manifest import RunConfig
from peer.chaos.namespaces import UPLINK
from peer.chaos.plan import Plan
from peer.chaos.swarm import ChaosOptions, ChaosSwarm
from peer.model.build import parameter_specs
from peer.swarm.run import SwarmOptions
from peer.swarm.view import PlainLines
from tests.bench.links.place import ShapedNamespaces, ring_speed

RUN = Path(__file__).with_name("run.toml")
CONFIG = RunConfig.from_toml(RUN)
PARAMETERS = sum(tensor.elements for tensor in parameter_specs(CONFIG.model))
PEERS = 4
NAMES = [f"peer-{number}" for number in range(1, PEERS + 1)]
SPEEDS = (1e9, 1e8, 2e7, 5e6)
ROUND_TRIP_SECONDS = 0.05
CHECK_SECONDS = 20.0
BUCKETS = 4  # of 10 MB
STEP_KINDS = ("float32", "bfloat16")
METHODS = ("links", *STEP_KINDS, "muster")
DATA_PARALLEL_SECONDS = 60.0  # so long at least, and two steps
STEPS_MIN, STEPS_MAX = 2, 10
STEPS_BEFORE = 1  # not counted, because they also open connections
PATIENCE_SECONDS = 1800.0


def main() -> None:
    options = parser().parse_args()
    for speed in options.speeds:
        for measured in measurements(speed, options):
            line = json.dumps({"bits_per_second": speed, "step_seconds": options.step_seconds} | measured)
            print(line, flush=True)
            if options.report is not None:
                with options.report.open("a") as report:
                    report.write(line + "\n")


def measurements(speed: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the links, then each method in turn."""
    place = ShapedNamespaces(speed, ROUND_TRIP_SECONDS)
    try:
        place.open(NAMES)
        if "links" in options.only:
            stream, round_trip = ring_speed(place, NAMES, CHECK_SECONDS)
            yield {"method": "links", "stream_bits_per_second": stream, "round_trip_seconds": round_trip}
        for gradients in STEP_KINDS:
            if gradients in options.only:
                yield data_parallel(place, gradients, options.step_seconds)
    finally:
        place.close()
    if "muster" in options.only:
        yield muster(speed, options.step_seconds, options.minutes)


def data_parallel(place: ShapedNamespaces, gradients: str, step_seconds: float) -> dict[str, Any]:
    """Measure data-parallel steps over these links, with gradients of this type on the wire."""
    sent_bits = 2 * (PEERS - 1) / PEERS * PARAMETERS * {"float32": 32, "bfloat16": 16}[gradients]
    expected = max(step_seconds, sent_bits / place.link.bits_per_second)
    steps = STEPS_BEFORE + min(STEPS_MAX, max(STEPS_MIN, round(DATA_PARALLEL_SECONDS / expected)))
    words = [sys.executable, "-m", "tests.bench.links.data_parallel", "--run", str(RUN)]
    words += ["--address", place.address(NAMES[0]), "--machines", str(PEERS), "--gradients", gradients]
    words += ["--buckets", str(BUCKETS), "--step-seconds", str(step_seconds), "--steps", str(steps)]
    before = place.sent_bytes(NAMES[0])
    machines = [
        subprocess.Popen(
            place.inside(name, *words, "--rank", str(rank)),
            stdout=subprocess.PIPE,
            env=os.environ | {"GLOO_SOCKET_IFNAME": UPLINK, "OMP_NUM_THREADS": "1"},
        )
        for rank, name in enumerate(NAMES)
    ]
    try:
        printed, _ = machines[0].communicate(timeout=PATIENCE_SECONDS)
        found = json.loads(printed)
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()
    taken = found["step_seconds"][STEPS_BEFORE:]
    mean = sum(taken) / len(taken)
    return {
        "method": gradients,
        "tokens_per_second": PEERS * CONFIG.tokens_per_step / mean,
        "seconds_per_step": mean,
        "steps": taken,
        "utilisation": step_seconds / mean,
        "sent_bytes_per_step": (place.sent_bytes(NAMES[0]) - before) / steps,
        "agreement": found["agreement"],
    }


def muster(speed: float, step_seconds: float, minutes: float) -> dict[str, Any]:
    """Measure a swarm and its host on such links, once all peers train."""
    swarm = SwarmOptions(config=CONFIG, config_path=RUN, peers=PEERS, step_seconds=step_seconds)
    place = ShapedNamespaces(speed, ROUND_TRIP_SECONDS)
    options = ChaosOptions(swarm, Plan.of(PEERS, minutes * 60, ()), place)
    display = PlainLines(lambda line: print(line, file=sys.stderr, flush=True))
    report = asyncio.run(ChaosSwarm(options, display).measure())
    return {
        "method": "muster",
        "tokens_per_second": report.measured_tokens_certified / report.measured_seconds,
        "of_ideal": report.goodput_ideal,
        "uptime": report.uptime,
        "effective_steps": report.steps_per_version / CONFIG.pace.steps_per_version,
        "versions_per_minute": report.versions_per_minute,
        "group_size_mean": report.group_size_mean,
        "rounds_void": report.rounds_void,
        "minor_certificates": report.minor_certificates,
        "longest_gap_seconds": report.longest_gap_seconds,
        "sent_bytes_per_version": report.bytes_sent_per_peer / report.versions_certified,
        "adoption_delay_steps": report.adoption_delay_steps,
        "learner_cpu_share": report.utilisation,
        "agreement": report.agreement,
        "seconds": report.measured_seconds,
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speeds", type=float, nargs="+", default=SPEEDS, help="bit/s each way")
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long a swarm is measured")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--report", type=Path, help="append the lines to this file")
    return parser


if __name__ == "__main__":
    main()

"""Compares Muster and elastic synchronous data-parallel under one plan of faults, one after the other.

`python -m tests.bench.elastic --plan examples/chaos/headline.toml --step-seconds 1 --report elastic.json`, as root.
Both train the same model at the same pace with the same tokens per step, on separate machines (network namespaces), and
are measured by the same rules (docs/how-to/chaos.md). For elastic data-parallel (torch, gloo) see `worker.py`. Its
rendezvous is on a machine that is never broken, so it leaves out the plan's faults of Muster's host.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from peer.chaos.draw import plan_of
from peer.chaos.namespaces import Namespaces
from peer.chaos.plan import MINUTES_DEFAULT, PEERS_DEFAULT, ChaosPlanFile, Plan
from peer.chaos.swarm import ChaosOptions, ChaosSwarm
from peer.chaos.view import ChaosDisplay
from peer.cli.arguments import run_config
from peer.swarm.run import SwarmOptions
from peer.swarm.view import PlainLines
from tests.bench.elastic.score import ratios
from tests.bench.elastic.swarm import ElasticOptions, ElasticSwarm

METHODS = ("elastic", "muster")


def main() -> None:
    options = parser().parse_args()
    file = ChaosPlanFile.load(options.plan)
    peers, minutes = options.peers or file.peers, options.minutes or file.minutes
    plan = plan_of(file, peers or PEERS_DEFAULT, minutes or MINUTES_DEFAULT)
    measure = {"elastic": elastic, "muster": muster}
    found = {method: measure[method](plan, options) for method in METHODS if method in options.only}
    if len(found) == len(METHODS):
        found["ratios"] = ratios(found["muster"], found["elastic"])
    print(json.dumps(found, indent=1))
    if options.report is not None:
        options.report.write_text(json.dumps(found, indent=1) + "\n")


def elastic(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the yardstick, elastic data-parallel."""
    with tempfile.TemporaryDirectory() as folder:
        place = ElasticOptions(
            run_config(options.config, None), options.config, plan, options.step_seconds, Path(folder)
        )
        return ElasticSwarm(place, say).measure()


def muster(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a swarm and its host; returns the report without the peers' state digests."""
    config = run_config(options.config, None)
    swarm = SwarmOptions(config=config, config_path=options.config, peers=plan.peers, step_seconds=options.step_seconds)
    run = ChaosSwarm(ChaosOptions(swarm, plan, Namespaces()), ChaosDisplay(PlainLines(say), say))
    return asyncio.run(run.measure()).model_dump(exclude={"state_digests"})


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--peers", type=int, help="default: the plan's")
    parser.add_argument("--minutes", type=float, help="default: the plan's")
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--config", type=Path, help="run file; default: the tiny run")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--report", type=Path)
    return parser


if __name__ == "__main__":
    main()

"""Trains learners in one process, with the tensor work of real rounds but without messages.

Run `python -m tests.quality.one_process --set outer.merge=rda --seeds 0,1,2`; prints one JSON object per seed, with the
held-out loss of the anchors. For comparing merges, codecs, periods and ways to adopt; nothing is ever lost here. All
runs of a seed read the same windows, those with `--data-parallel` too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from coordinator.chain.weights import contribution_weight
from coordinator.core.actions import Adopt, Apply, Encode, Included, PartitionResult, Reduce, RoundKey
from coordinator.run.manifest import RunConfig
from coordinator.wire.inputs import ReduceInput
from peer.data.token_files import TokenData
from peer.data.windows import TrainingWindows, load_tokens
from peer.lab.baseline import JointBatches, full_schedule
from peer.learner.evaluation import Evaluator
from peer.learner.learner import Learner, make_learner, parameters_of
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.blobs import BlobStore

SPEEDS = "1,0.85,0.7,0.5"
DELAY_TICKS = 2  # from snapshot to adoption, as in the paper's τ
RUN_KEY = b"one-process"
BLOB_BYTES = 1 << 28


class Member:
    """One learner with its own anchors; `speed` is its share of the fastest learner's steps."""

    def __init__(self, config: RunConfig, data: TokenData, blobs: BlobStore, number: int, speed: float) -> None:
        self.learner: Learner = make_learner(config, windows_of(config, data, number))
        self.anchors = Anchors(layouts_of(config), genesis_states(config))
        self.work = TensorWorker(config, self.anchors, blobs, ThreadPoolExecutor(1))
        self.speed = speed

    def tick(self, tick: int) -> None:
        if int((tick + 1) * self.speed) > int(tick * self.speed):
            self.learner.step()


def windows_of(config: RunConfig, data: TokenData, number: int) -> TrainingWindows:
    return TrainingWindows(data.train, config.data, RUN_KEY, f"learner-{number}")


def merge_round(members: Sequence[Member], key: RoundKey) -> None:
    """Snapshot, encode, reduce each partition at another member and step there; all members find the same state."""
    partitions = len(members)
    encoded = []
    for member in members:
        vector = torch.empty(member.learner.fragments[key.fragment].elements)
        counters = member.learner.snapshot(key.fragment, vector)
        encoded.append(member.work.encode(Encode(key, partitions), vector, counters))

    def inputs(partition: int) -> tuple[ReduceInput, ...]:
        return tuple(
            ReduceInput(
                number, one.part_roots[partition], contribution_weight(one.tokens, one.steps), one.squared_norms
            )
            for number, one in enumerate(encoded)
        )

    reduced = [
        member.work.reduce(Reduce(key, partition, partitions, 0, inputs(partition), 1, partitions))
        for partition, member in enumerate(members)
    ]
    results = tuple(PartitionResult(one.root, one.included) for one in reduced if one.root)
    states = {member.work.apply(Apply(key, results, inputs(0), partitions)) for member in members}
    assert len(states) == 1


def adopt(members: Sequence[Member], key: RoundKey) -> None:
    certificate: Any = SimpleNamespace(fragment=key.fragment, digest=key.roster_id)
    whole = (True,) * len(members)
    for member in members:
        done = member.work.adopt(Adopt(certificate, key, Included(key, whole), (False,) * len(members)), None)
        member.learner.adopt(done.fragment, done.new, *done.terms())
        member.work.discard(key)


def train_jointly(config: RunConfig, data: TokenData, learners: int, steps: int) -> tuple[list[Tensor], int]:
    """Train data-parallel, with the windows of all learners in each step; returns the parameters and the steps."""
    sources = [windows_of(config, data, number) for number in range(learners)]
    learner = make_learner(config, JointBatches(sources, full_schedule(learners, steps)))
    for step in range(steps):
        learner.set_progress(step)
        learner.step()
    return parameters_of(learner), steps


def train(config: RunConfig, data: TokenData, speeds: Sequence[float], delay_ticks: int) -> tuple[list[Tensor], int]:
    """Run to the last version; returns the anchors and the number of inner steps."""
    blobs = BlobStore(BLOB_BYTES)
    members = [Member(config, data, blobs, number, speed) for number, speed in enumerate(speeds)]
    fragments, spacing = config.pace.fragments, config.pace.steps_per_version // config.pace.fragments
    running: list[tuple[int, RoundKey]] = []

    def adopt_due(tick: int) -> None:
        while running and running[0][0] == tick:
            adopt(members, running.pop(0)[1])

    for tick in range(config.versions * spacing):
        for member in members:
            member.learner.set_progress(tick)
            member.tick(tick)
        adopt_due(tick)
        round_number, rest = divmod(tick + 1, spacing)
        if rest == 0:
            key = RoundKey((round_number - 1) % fragments, (round_number - 1) // fragments, round_number.to_bytes(32))
            merge_round(members, key)
            running.append((tick + delay_ticks, key))
            adopt_due(tick)  # what is not late at all
    for _, key in running:
        adopt(members, key)
    for member in members:
        member.work.close()
    return members[0].anchors.all_anchors(), sum(member.learner.step_count for member in members)


def configured(path: Path, steps: int, seed: int, changes: Sequence[str]) -> RunConfig:
    """Load the run file with `section.key=value` changes; values are read as JSON, else as text."""
    raw = RunConfig.from_toml(path).model_dump()
    raw["seed"], raw["data"]["evaluation_tokens"] = seed, 131072
    for change in changes:
        name, _, text = change.partition("=")
        section, _, key = name.partition(".")
        try:
            raw[section][key] = json.loads(text)
        except json.JSONDecodeError:
            raw[section][key] = text
    raw["versions"] = steps * raw["pace"]["fragments"] // raw["pace"]["steps_per_version"]  # the schedule follows it
    return RunConfig.model_validate(raw)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path("examples/tiny.toml"))
    parser.add_argument("--steps", type=int, default=300, help="of the fastest learner")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--speeds", default=SPEEDS, help="of all learners, as shares of the fastest one's")
    parser.add_argument("--delay", type=int, default=DELAY_TICKS, help="steps from a snapshot to its adoption")
    parser.add_argument("--data-parallel", action="store_true", help="all learners make each step together")
    parser.add_argument("--set", action="append", default=[], help="section.key=value", dest="changes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    speeds = [float(one) for one in arguments.speeds.split(",")]
    for seed in map(int, arguments.seeds.split(",")):
        config = configured(arguments.config, arguments.steps, seed, arguments.changes)
        data = load_tokens(config.data)
        began = time.process_time()
        if arguments.data_parallel:
            anchors, steps = train_jointly(config, data, len(speeds), arguments.steps)
        else:
            anchors, steps = train(config, data, speeds, arguments.delay)
        loss = Evaluator(config, data.heldout).loss(anchors)
        seconds = round(time.process_time() - began)
        print(
            json.dumps({"set": arguments.changes, "seed": seed, "loss": loss, "steps": steps, "cpu_seconds": seconds})
        )


if __name__ == "__main__":
    main()

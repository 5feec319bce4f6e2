"""Kills writers of checkpoints with kill -9, again and again: `python tests/bench/bench_kills.py [KILLS]`.

Prints what the next writer finds. The writers are forked from a process that has imported only the code that writes
checkpoints. Each goes on where the one before it was killed, at a moment drawn at random.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from peer.numerics.outer_optimizer import OuterState
from peer.storage.generations import Generations, Held
from peer.storage.record_log import RecordLog
from peer.storage.tensor_file import map_tensors, write_tensors

KILLS = 200
WRITER_SECONDS_MAX = 20  # after so long a writer that is not killed ends itself
VALUES = 25_000
OFTEN = 3  # saves until the second fragment changes
RUN_ID = bytes(32)
KILL_AFTER_SECONDS_MAX = 0.02  # since the last promise: some checkpoints later, on an idle machine


@dataclass(frozen=True, slots=True)
class Found:
    """What a killed writer left: the step that it had announced as saved, and the data on disk."""

    promised: int
    step: int
    whole: bool  # all states are of this step, or of the next one without its learner's part
    votes: tuple[int, ...]
    files: int


def lives(directory: Path, kills: int, seed: int) -> list[Found]:
    """Kill so many writers of checkpoints and votes in this directory, one after the other."""
    torch.set_num_threads(1)  # a forked child must not wait for worker threads that stayed behind
    draw = random.Random(seed)
    return [_life(directory, draw) for _ in range(kills)]


def _life(directory: Path, draw: random.Random) -> Found:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _write_until_killed(directory, writing)
    os.close(writing)
    promised = b"".join(os.read(reading, 8) for _ in range(draw.randint(1, 2)))
    time.sleep(draw.random() * KILL_AFTER_SECONDS_MAX)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while more := os.read(reading, 8):
        promised += more
    os.close(reading)
    step, whole = _newest(directory)
    assert step, "no checkpoint can be loaded"
    return Found(
        promised=int.from_bytes(promised[-8:], "big"),
        step=step,
        whole=whole,
        votes=tuple(int.from_bytes(vote, "big") for vote in RecordLog(directory / "votes").read()),
        files=sum(path.is_file() for path in directory.rglob("*")),
    )


def _newest(directory: Path) -> tuple[int, bool]:
    """Return the step of the newest learner's part, 0 without one, and whether all data beside it are consistent."""
    generations = Generations(directory, RUN_ID)
    found = generations.newest()
    if found is None or not found.index.learner:
        return 0, False
    step = int(map_tensors(generations.path(found.index.learner))["step"])
    values = [(one.version, map_tensors(generations.path(one.file))["anchor"]) for one in found.index.fragments]
    whole = all(bool((anchor == version).all()) for version, anchor in values)
    whole &= found.index.heads_of_learner == tuple(one.head for one in _states(step))
    return step, whole and [one for one, _ in values] in [_versions(step), _versions(step + 1)]


def _versions(step: int) -> list[int]:
    """Return the versions of both fragments at this step."""
    return [step, step // OFTEN + 1]


def _states(step: int) -> list[Held]:
    """Return the states of both fragments at this step."""
    states = [(one, OuterState.begin(torch.full((VALUES,), float(one)), 0.0)) for one in _versions(step)]
    return [Held(one, one.to_bytes(32, "big"), state) for one, state in states]


def _write_until_killed(directory: Path, saved: int) -> NoReturn:
    signal.alarm(WRITER_SECONDS_MAX)
    step, _ = _newest(directory)
    votes, generations, learner = RecordLog(directory / "votes"), Generations(directory, RUN_ID), directory / "learner"
    while True:
        step += 1
        votes.append(step.to_bytes(8, "big"))
        held = _states(step)
        generations.commit(generations.stage(held), None, learner_behind=True)
        write_tensors(learner, {"step": torch.tensor(step)})
        heads = [one.head for one in held]
        generations.commit(generations.stage(held, range(0)), learner, learner_heads=heads)
        os.write(saved, step.to_bytes(8, "big"))


def check(found: Found) -> None:
    """Raise AssertionError if any promised data are lost, or many stray files are left."""
    assert found.whole, found
    assert found.promised <= found.step <= found.promised + 1, found
    assert sorted(set(found.votes)) == list(range(1, max(found.votes) + 1)), "a vote is missing"
    assert max(found.votes) >= found.step, found
    # two generations that differ in part (two fragments' states, or a learner's part), their indices, and the votes
    assert found.files <= 7 + 4, found


def main(kills: int) -> None:
    """Print what `kills` writers left; raises AssertionError if one of them lost promised data."""
    with tempfile.TemporaryDirectory() as folder:
        found = lives(Path(folder), kills, seed=5)
    for one in found:
        check(one)
    inside = sum(one.step > one.promised or max(one.votes) > one.step for one in found)
    sys.stdout.write(
        f"{kills} kills, {len(found)} resumes at what was promised; {inside} hit between the vote and the word "
        f"that all is saved; last step {found[-1].step}\n"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=KILLS)
    main(parser.parse_args().kills)

"""Feed every reader with inputs made from good ones: `python -m tests.fuzz.run [TARGET …] --inputs N --seed S`.

An input that makes anything but a MusterError is raised as an AssertionError that spells it out.
`tests.fuzz.by_coverage` goes by code coverage instead.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import count

from coordinator.wire.messages import SIGNED_BODIES
from tests.fuzz.headers import NOTES
from tests.fuzz.mangler import mangled_run, signs
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

NOTE_COPIES = 32  # a round of a whole swarm takes as long as a hundred notes in it
STATEMENT_SHARE = 10  # a swarm listens to ten signed ones or so: each takes as long as a hundred inputs to a reader
GROWTH_MIB_MAX = 256  # of the whole process over one target: nothing may be kept of a refused input


def fuzz(name: str, inputs: int, seed: int) -> tuple[int, int]:
    """How many inputs were accepted and how many refused; a bug is raised as it comes, with its input."""
    target, source = TARGETS[name], random.Random(f"{seed} {name}")
    accepted = 0
    for _ in range(inputs):
        data = mutated(source.choice(target.seeds), source, target.prefix_bytes)
        try:
            accepted += target.try_input(data)
        except Exception as error:
            raise AssertionError(f"{name} (seed {seed}): {type(error).__name__} from {data.hex()}") from error
    return accepted, inputs - accepted


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--inputs", type=int, default=50_000, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.targets) - set(TARGETS))
    if unknown:
        parser.error(f"there is no target {unknown[0]}; choose from {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    for name in names:
        started, before = time.perf_counter(), _peak_mib()
        accepted, refused = fuzz(name, given.inputs, given.seed)
        grown, seconds = _peak_mib() - before, time.perf_counter() - started
        print(f"{name}: {accepted} accepted, {refused} refused, {seconds:.0f} s, {grown:.0f} MiB more", flush=True)
        if grown > GROWTH_MIB_MAX:
            print(f"{name}: memory grew by more than {GROWTH_MIB_MAX} MiB", flush=True)
            return 1
    if not given.targets:
        _fuzz_handlers(given.inputs, given.seed)
    return 0


def _fuzz_handlers(inputs: int, seed: int) -> None:
    """Whole virtual swarms with a member that says anything, until so many changed notes were handled.

    Then swarms with one that signs, too, until a tenth as many were.
    """
    delivered: Counter[str] = Counter()
    swarms = 0
    for signed, wanted in ((False, inputs), (True, inputs // STATEMENT_SHARE)):
        heard: Counter[str] = Counter()
        seeds = (number for number in count(1000 * seed) if signs(number) == signed)
        while heard.total() < wanted:
            heard += mangled_run(next(seeds), NOTE_COPIES).delivered
            swarms += 1
        delivered += heard
    rarest = min({**SIGNED_BODIES, **{kind.__name__: kind for kind in NOTES}}, key=lambda kind: delivered[kind])
    said = f"handlers: {delivered.total()} changed messages in {swarms} swarms"
    print(f"{said}; {delivered[rarest]} of the rarest kind, {rarest}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Times an all-reduce of 10 million float32 parameters by four peers on loopback, beside hivemind's plain mean.

`python tests/bench/bench_allreduce.py [--rounds 5] [--parameters N] [--beside CHECKOUT] [--tune] [--bits-per-second
1e8]`; prints one JSON object. With a speed, as root, each peer is its own machine on a link of so many bit/s each way.
The sides take turns, in processes that live all the time. Muster's rounds are complete: int4 both ways, commitments,
robust_rda, spot checks, votes, a certificate. `seconds` begin with outer gradients in RAM and a formed group, and end
when every peer holds the result; `whole_seconds` include finding the group. hivemind is measured twice: without
compression, and with its fastest settings, which `--tune` finds by trying them. Linux only, for the CPU times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from dht.identity import Identity
from tests.bench.allreduce.commands import Answer, Process, ask_all
from tests.bench.allreduce.figures import Round, phase_medians, ratios, span, summary
from tests.bench.allreduce.settings import ALL, NARROW_YARDSTICKS, YARDSTICKS, Setting
from tests.bench.links.place import ShapedNamespaces
from tests.bench.soak.memory import family_cpu_seconds

PEERS = 4
WARM_UP_ROUNDS = 1
TUNING_ROUNDS = 3
PARAMETERS = 10_000_000
MEAN_ERROR_MAX = 0.05  # of the mean's length: more than the error of eight bits a value
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # four peers share the cores
NAMES = tuple(f"peer-{number}" for number in range(PEERS))


@dataclass(frozen=True)
class Starter:
    """Starts peers' processes, on their machines if they have any."""

    stack: AsyncExitStack
    parameters: int
    place: ShapedNamespaces | None = None
    checkout: Path | None = None

    async def start(self, module: str, number: int, folder: str | None, *arguments: str) -> Process:
        host = "127.0.0.1" if self.place is None else self.place.address(NAMES[number])
        inside = () if self.place is None else self.place.inside(NAMES[number])
        words = (*(() if folder is None else (folder,)), host, str(self.parameters), *arguments)
        process = await Process.start(
            f"tests.bench.allreduce.{module}", *words, environment=ONE_THREAD, inside=inside, checkout=self.checkout
        )
        self.stack.push_async_callback(process.stop)
        return process


class MusterSide:
    """Four peers of one run."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self.rounds: list[Round] = []
        self.answers: list[Answer] = []

    @classmethod
    async def start(cls, starter: Starter, folder: Path) -> MusterSide:
        identities = [Identity.load_or_create(_folder(folder, number) / "identity.key") for number in range(PEERS)]
        names = [identity.peer_id for identity in identities]
        processes = [
            await starter.start("muster_peer", number, str(_folder(folder, number)), *names) for number in range(PEERS)
        ]
        await ask_all(processes, "meet", told=await ask_all(processes, "tell"))
        return cls(processes)

    async def round(self, counts: bool) -> None:
        await ask_all(self._processes, "prepare")
        pids = [process.pid for process in self._processes]
        before = family_cpu_seconds(pids)
        answers = await ask_all(self._processes, "reduce")
        whole, seconds = span(answers, "asked", "ended"), span(answers, "began", "ended")
        if counts:
            self.rounds.append(Round(whole - seconds, seconds, family_cpu_seconds(pids) - before))
            self.answers += answers

    async def report(self) -> dict[str, Any]:
        """Return the figures; raises RuntimeError unless all peers agree on a complete result."""
        found = await ask_all(self._processes, "verify")
        states = {one["state"] for one in found}
        if len(states) > 1 or not all(one["holds_it"] and one["included"] == PEERS for one in found):
            raise RuntimeError(f"the peers do not hold one result: {found}")
        return {
            **summary(self.rounds),
            "phase_seconds": phase_medians(self.answers),
            **{name: found[0][name] for name in ("void_partitions", "rounds_void", "cosine")},
        }


class HivemindSide:
    """Four averagers with one setting, in processes that may hold others too."""

    def __init__(self, processes: Sequence[Process], setting: Setting) -> None:
        self._processes = processes
        self._setting = setting
        self._prefix = "".join(map(str, asdict(setting).values()))
        self.rounds: list[Round] = []

    @classmethod
    async def start(cls, processes: Sequence[Process], setting: Setting) -> HivemindSide:
        side = cls(processes, setting)
        await ask_all(processes, "add", prefix=side._prefix, **asdict(setting))
        return side

    async def stop(self) -> None:
        await ask_all(self._processes, "remove", prefix=self._prefix)

    async def round(self, counts: bool) -> None:
        await ask_all(self._processes, "prepare", prefix=self._prefix)
        matched = await ask_all(self._processes, "match", prefix=self._prefix)
        pids = [process.pid for process in self._processes]
        before = family_cpu_seconds(pids)
        answers = await ask_all(self._processes, "reduce")
        if any(one["group"] != PEERS for one in answers):
            raise RuntimeError("hivemind formed a smaller group")
        if counts:
            gathering, seconds = span(matched, "asked", "ended"), span(answers, "began", "ended")
            self.rounds.append(Round(gathering, seconds, family_cpu_seconds(pids) - before))

    async def report(self) -> dict[str, Any]:
        """Return the figures; raises RuntimeError unless all peers hold about the mean."""
        found = await ask_all(self._processes, "verify", prefix=self._prefix)
        if any(one["relative_error"] > MEAN_ERROR_MAX for one in found):
            raise RuntimeError(f"hivemind's result is not the mean: {found}")
        return {"setting": str(self._setting), **summary(self.rounds), **found[0]}


def _folder(folder: Path, number: int) -> Path:
    path = folder / str(number)
    path.mkdir(exist_ok=True)
    return path


async def _hivemind_processes(starter: Starter) -> list[Process]:
    processes: list[Process] = []
    addresses: list[str] = []
    for number in range(PEERS):
        processes.append(await starter.start("hivemind_peer", number, None, str(number), str(PEERS), *addresses))
        addresses = addresses or [one["address"] for one in await ask_all(processes, "tell")]
    return processes


async def compare(
    parameters: int, rounds: int, place: ShapedNamespaces | None, beside: Path | None = None
) -> dict[str, Any]:
    """Measure all sides in turn, alternately forwards and backwards: after a pause new memory costs more."""
    yardsticks = YARDSTICKS if place is None else NARROW_YARDSTICKS
    async with AsyncExitStack() as stack:
        starter = Starter(stack, parameters, place)
        muster = await MusterSide.start(starter, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        others: dict[str, Any] = {}
        if beside is not None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            others["muster_beside"] = await MusterSide.start(replace(starter, checkout=beside), folder)
        processes = await _hivemind_processes(starter)
        theirs = {name: await HivemindSide.start(processes, setting) for name, setting in yardsticks.items()}
        others |= {f"hivemind_{name}": side for name, side in theirs.items()}
        sides = [muster, *others.values()]
        for number in range(WARM_UP_ROUNDS + rounds):
            for side in sides if number % 2 else sides[::-1]:
                await side.round(number >= WARM_UP_ROUNDS)
        return {
            "peers": PEERS,
            "parameters": parameters,
            "bits_per_second": None if place is None else place.link.bits_per_second,
            "muster": await muster.report(),
            **{name: await side.report() for name, side in others.items()},
            **{f"muster_over_{name}": ratios(muster.rounds, side.rounds) for name, side in others.items()},
        }


async def tune(parameters: int, place: ShapedNamespaces | None) -> list[dict[str, Any]]:
    """Measure all of hivemind's settings; returns them with the fastest first."""
    found = []
    async with AsyncExitStack() as stack:
        processes = await _hivemind_processes(Starter(stack, parameters, place))
        for setting in ALL:
            side = await HivemindSide.start(processes, setting)
            for number in range(WARM_UP_ROUNDS + TUNING_ROUNDS):
                await side.round(number >= WARM_UP_ROUNDS)
            found.append(await side.report())
            await side.stop()
            sys.stderr.write(f"{json.dumps(found[-1])}\n")
    return sorted(found, key=lambda one: one["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one that does not")
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--beside", type=Path, help="another checkout, whose Muster takes turns, too")
    parser.add_argument("--tune", action="store_true", help="try hivemind's settings instead")
    parser.add_argument("--bits-per-second", type=float, help="of each peer's link, each way, in namespaces; as root")
    options = parser.parse_args()
    place = None if options.bits_per_second is None else ShapedNamespaces(options.bits_per_second, 0.0)
    with closing(place) if place is not None else nullcontext():
        if place is not None:
            place.open(NAMES)
        if options.tune:
            work: Any = tune(options.parameters, place)
        else:
            work = compare(options.parameters, options.rounds, place, options.beside)
        print(json.dumps(asyncio.run(work), indent=2))


if __name__ == "__main__":
    main()

"""Measures what a run takes from a machine: `python tests/bench/bench_memory.py [--parameters 85e6] [--momentum 0]`.

It runs a real swarm of two peers and a host on a model of this size, and one on a tiny model, which shows what Python
and its libraries take. It prints per process the memory that the kernel cannot drop (`Pss_Anon` and `Pss_Shmem`), at
the peak and once all peers train, per parameter without those libraries. Then it prints the bytes on disk, the bytes
written per hour, and the CPU time of a peer beside its learner for each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from coordinator.run.manifest import RunConfig
from dht.identity import Identity, KeyVerifier
from peer.chaos.executor import family
from peer.export.source import known_run, saved_state
from peer.export.verifier import verify_export
from peer.export.writer import write_export
from peer.learner.memory_estimate import RUNTIME_BYTES, footprint, host_bytes
from peer.learner.shared_memory import slots_bytes
from peer.storage.anchors import layouts_of
from peer.swarm.report import disagreement
from peer.swarm.run import HOST, Swarm, SwarmOptions
from peer.swarm.view import PlainLines
from peer.swarm.watch import SwarmWatch
from tests.bench.soak.memory import cpu_seconds, role_of

PARAMETERS = 85e6
TINY_PARAMETERS = 5e5
HEAD_WIDTH = 64
FRAGMENTS = 12
OPTIMIZER = RunConfig().inner.optimizer
CYCLES = 2  # versions of every fragment, after which both generations on disk hold states from rounds
SAMPLE_SECONDS = 0.25
HOST_BUDGET, MOMENTUM_BYTES, DISK_BUDGET = 9.0, 4.0, 20.0  # bytes per parameter
MB = 1e6


RUN = """
name = "memory"
versions = {versions}
[model]
hidden_size = {width}
layers = {heads}
heads = {heads}
intermediate_size = {inner}
[data]
context_tokens = 32
sequences_per_step = 1
evaluation_tokens = 256
[inner]
optimizer = "{optimizer}"
[outer]
momentum = {momentum}
[pace]
fragments = {fragments}
steps_per_version = {fragments}
overlap = 1
quorum = 2
min_group = 2
round_seconds = 300.0
"""  # short steps, and a version after each: memory hangs on the model, not on the tokens


def run_text(parameters: float, momentum: float, cycles: int, optimizer: str = OPTIMIZER) -> str:
    """Return the run file of a Llama over bytes of about this size, with a layer per 64 of width, as in small GPTs."""
    heads = max(2, round((parameters / (12 * HEAD_WIDTH**2)) ** (1 / 3)))
    width = heads * HEAD_WIDTH
    return RUN.format(
        versions=cycles * FRAGMENTS,
        width=width,
        heads=heads,
        inner=8 * width // 3,
        momentum=momentum,
        fragments=FRAGMENTS,
        optimizer=optimizer,
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment; shared memory is divided among the processes that share it."""

    seconds: float
    anonymous_bytes: int
    shared_bytes: int
    file_bytes: int
    private_bytes: int

    @property
    def held_bytes(self) -> int:
        """Bytes that the kernel cannot drop."""
        return self.anonymous_bytes + self.shared_bytes


class Sampler:
    """Reads /proc of all processes that this one has started, and the sizes of the peers' folders, on a thread."""

    def __init__(self, root: Path) -> None:
        self.samples: dict[str, list[Sample]] = {}  # by `peer-1 main` and the like
        self.disk: dict[str, list[tuple[float, int]]] = {}
        self.training_from = float("inf")
        self.ended_at = float("inf")
        self.versions: list[tuple[float, int]] = []  # how many were certified until then
        self._written: dict[tuple[str, int], list[tuple[float, int]]] = {}  # by owner and process id
        self._cpu: dict[tuple[str, int], list[tuple[float, float]]] = {}
        self._root = root
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._look(self.now)

    def _look(self, now: float) -> None:
        owners: dict[int, str] = {}
        for pid in family(os.getpid())[1:]:
            with suppress(OSError, KeyError):  # it has just begun or ended
                entry = Path(f"/proc/{pid}")
                words = (entry / "cmdline").read_bytes()
                named = _named_folder(words)
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                owners[pid] = owner = owners[parent] if named is None else named
                role = "main" if named else role_of(words)
                self.samples.setdefault(f"{owner} {role}", []).append(_sample(entry, now))
                if role != "learner":
                    spent = cpu_seconds((entry / "stat").read_text())
                    self._cpu.setdefault((owner, pid), []).append((now, spent))
                self._written.setdefault((owner, pid), []).append((now, _written_bytes(entry)))
        for folder in self._root.iterdir():
            self.disk.setdefault(folder.name, []).append((now, _disk_bytes(folder)))

    def peak(self, process: str) -> int:
        """Return the most bytes that the kernel could not drop."""
        return max(sample.held_bytes for sample in self.samples[process])

    def steady(self, process: str) -> int:
        """Return the median of these bytes while all peers train."""
        within = [one for one in self.samples[process] if self.training_from <= one.seconds <= self.ended_at]
        return int(median(sample.held_bytes for sample in within or self.samples[process]))

    def written_per_hour(self, owner: str) -> float:
        """Return the bytes per hour that this peer and its learner had written while all peers trained."""
        return self._spent(owner, self._written) * 3600 / max(1.0, min(self.ended_at, self.now) - self.training_from)

    def cpu_per_version(self, owner: str) -> float:
        """Return the CPU seconds of this peer without its learner for each version, while all peers trained."""
        return self._spent(owner, self._cpu) / max(1.0, self._gained(self.versions))

    def _spent(self, owner: str, all_readings: Mapping[tuple[str, int], Sequence[tuple[float, float]]]) -> float:
        return sum(self._gained(readings) for (name, _), readings in all_readings.items() if name == owner)

    def _gained(self, readings: Sequence[tuple[float, float]]) -> float:
        within = [count for at, count in readings if self.training_from <= at <= self.ended_at]
        return within[-1] - within[0] if within else 0


def _named_folder(command_line: bytes) -> str | None:
    words = command_line.decode(errors="replace").split("\0")
    return Path(words[words.index("--data") + 1]).name if "--data" in words else None


def _sample(entry: Path, now: float) -> Sample:
    lines = (line.split() for line in (entry / "smaps_rollup").read_text().splitlines()[1:])
    sizes = {words[0].removesuffix(":"): 1024 * int(words[1]) for words in lines}
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return Sample(now, sizes["Pss_Anon"], sizes["Pss_Shmem"], sizes["Pss_File"], private)


def _written_bytes(entry: Path) -> int:
    fields = dict(line.split(": ") for line in (entry / "io").read_text().splitlines())
    return int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def _disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # files come and go
            total += 512 * path.lstat().st_blocks
    return total


class Follower:
    """Replaces a swarm's display, and tells the sampler when all peers train."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._lines = PlainLines(lambda line: print(line, file=sys.stderr, flush=True))

    def show(self, watch: SwarmWatch, phase: str, seconds: float) -> None:
        self._lines.show(watch, phase, seconds)
        begun = all(name in watch.latest and watch.latest[name].steps for name in watch.learners)
        if phase == "training" and begun:
            self._sampler.training_from = min(self._sampler.training_from, self._sampler.now)
        if begun:
            self._sampler.versions.append((self._sampler.now, watch.versions))
        if phase == "counting":
            self._sampler.ended_at = min(self._sampler.ended_at, self._sampler.now)


@dataclass(frozen=True, slots=True)
class Measured:
    """One swarm whose export verified: its samples, and why its peers disagree, if they do."""

    config: RunConfig
    sampler: Sampler
    disagreement: str | None


def measure(run: str) -> Measured:
    """Run the swarm to its end, and export and verify the state that the host has saved."""
    with tempfile.TemporaryDirectory(prefix="muster-memory-") as folder:
        root, path = Path(folder) / "peers", Path(folder) / "run.toml"
        root.mkdir()
        path.write_text(run)
        config = RunConfig.from_toml(path)
        sampler = Sampler(root)
        options = SwarmOptions(config, config_path=path, peers=2, data_directory=root)
        swarm = Swarm(options, Follower(sampler))
        asyncio.run(swarm.run())
        sampler.close()
        exported = saved_state(root / HOST, known_run(root / HOST))
        target = Path(folder) / "export"
        write_export(target, exported, Identity.load_or_create(root / HOST / "identity.key"), int(time.time()))
        verify_export(target, KeyVerifier())
        return Measured(config, sampler, disagreement(swarm.watch))


@dataclass(frozen=True, slots=True)
class Line:
    """One figure beside its estimate, in bytes per parameter."""

    what: str
    peak: float
    steady: float
    foreseen: float | None


def lines(large: Measured, tiny: Measured) -> list[Line]:
    """Return the memory of each place, of the worse of the two peers."""
    config, need = large.config, footprint(large.config, on_gpu=False)
    shared = slots_bytes(layouts_of(config), config.pace.overlap) / 2  # each has half of it
    count, disk = need.parameters, need.bytes_in("disk") / need.parameters

    def beyond(process: str, figure: Callable[[Sampler, str], int]) -> float:
        return (figure(large.sampler, process) - figure(tiny.sampler, process)) / count

    def line(what: str, processes: Sequence[str], foreseen: float | None) -> Line:
        peak, steady = (max(beyond(one, how) for one in processes) for how in (Sampler.peak, Sampler.steady))
        return Line(what, peak, steady, foreseen)

    found = [
        line("peer, beside its learner", ("peer-1 main", "peer-2 main"), (need.bytes_in("host") - shared) / count),
        line("learner", ("peer-1 learner", "peer-2 learner"), (need.bytes_in("device") + shared) / count),
        line("host", (f"{HOST} main",), (host_bytes(config) - RUNTIME_BYTES) / count),
    ]
    for name, readings in sorted(large.sampler.disk.items()):
        sizes = [size / count for _, size in readings]
        found.append(Line(f"disk of {name}", max(sizes), sizes[-1], None if name == HOST else disk))
    return found


def main() -> None:
    options = parser().parse_args()
    tiny, large = (
        measure(run_text(size, options.momentum, options.cycles, options.optimizer))
        for size in (TINY_PARAMETERS, options.parameters)
    )
    count, host_budget = footprint(large.config).parameters, HOST_BUDGET + (MOMENTUM_BYTES if options.momentum else 0.0)
    run = f"{FRAGMENTS} fragments, one round in flight, {options.optimizer}, momentum {options.momentum:g}"
    print(f"{count / 1e6:.1f} million parameters, {run}")
    for name in sorted(large.sampler.samples):
        if name.endswith(("main", "learner")):
            one = max(large.sampler.samples[name], key=lambda sample: sample.held_bytes)
            when = f"{one.seconds - large.sampler.training_from:.0f} s after all train"
            sizes = f"anonymous {one.anonymous_bytes / MB:,.0f} MB, shared {one.shared_bytes / MB:,.0f} MB"
            sizes += f", files {one.file_bytes / MB:,.0f} MB, private {one.private_bytes / MB:,.0f} MB"
            runtime = tiny.sampler.peak(name) / MB
            print(f"  {name:16} at its peak, {when}: {sizes}; on the tiny model {runtime:,.0f} MB")
    found = lines(large, tiny)
    for line in found:
        foreseen = (
            "" if line.foreseen is None else f", foreseen {line.foreseen:.1f} ({line.peak / line.foreseen - 1:+.0%})"
        )
        print(f"  {line.what:26} {line.peak:5.1f} bytes a parameter at the peak, {line.steady:5.1f} steady{foreseen}")
    for name in sorted(large.sampler.disk):
        per_hour, cpu = large.sampler.written_per_hour(name) / 1e9, large.sampler.cpu_per_version(name)
        each = 1e3 * cpu / (count / 1e6 / FRAGMENTS)
        print(f"  {name:8} had {per_hour:,.1f} GB an hour written, {each:.0f} ms of CPU a million parameters and round")
    agreement = "; ".join(one.disagreement or "all agree" for one in (tiny, large))
    print(f"  budget: host {host_budget:g}, disk {DISK_BUDGET:g}; tiny and large: {agreement}; the exports verify")
    if options.report is not None:
        values = {"parameters": count, "lines": [asdict(line) for line in found], "disagreement": large.disagreement}
        options.report.write_text(json.dumps(values, indent=1))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--parameters", type=float, default=PARAMETERS)
    made.add_argument("--momentum", type=float, default=0.0)
    made.add_argument("--optimizer", default=OPTIMIZER)
    made.add_argument("--cycles", type=int, default=CYCLES)
    made.add_argument("--report", type=Path)
    return made


if __name__ == "__main__":
    main()

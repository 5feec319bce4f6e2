"""Judges the measurements of `muster doctor`: one finding per subject, with advice where it helps. Pure."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from statistics import median
from typing import Literal

from coordinator.run.manifest import Manifest, RunConfig
from coordinator.views import quantity
from dht.units import DAY_SECONDS, GIGABYTE_BYTES
from dht.validation import CLOCK_TOLERANCE_SECONDS
from peer.cli import terms
from peer.cli.terms import Machine
from peer.machine.limits import Limits
from peer.machine.pause_policy import Conditions
from peer.net.probe import is_reachable
from peer.node.clock_check import ADVICE_WRONG_CLOCK, clock_words, is_wrong
from peer.node.slow_steps import ADVICE_SLOW_STEPS, TOO_LATE, step_seconds_max, step_words

Grade = Literal["ok", "note", "bad"]
MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class DiagnosisLine:
    """One finding of the doctor; the grade `bad` keeps this machine from taking part."""

    grade: Grade
    subject: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.grade:<5} {self.subject:<12} {self.text}"
        return f"{line}\n{'':<19}→ {self.advice}" if self.advice else line


@dataclass(frozen=True, slots=True)
class Probed:
    """What other peers say about this machine.

    Seconds of clock are ours minus theirs. Bytes per second are the rate at which one of them received from us.
    """

    peers: int = 0
    clock_seconds: tuple[float, ...] = ()
    hosts: tuple[str, ...] = ()
    reachable: tuple[bool, ...] = ()
    upload_bytes_per_second: float | None = None


def torch_build(release: str, built_for: str | None, device: str | None, has_driver: bool) -> DiagnosisLine:
    """Judge the build of torch, by the platform that it was built for and the GPU that it computes on, or None."""
    text = f"{release}, built for {built_for or 'processors only'}; it computes on {device or 'the processor'}"
    if device is not None or not has_driver:
        return DiagnosisLine("ok", "torch", text)
    if built_for is None:
        again = f"pip install --force-reinstall torch=={release.partition('+')[0]}"
        return DiagnosisLine("note", "torch", text, f"it cannot use the NVIDIA GPU here; where Muster is: {again}")
    return DiagnosisLine(
        "note", "torch", text, f"the NVIDIA driver here is broken or too old for {built_for}; renew it"
    )


def memory(config: RunConfig, machine: Machine, limits: Limits) -> DiagnosisLine:
    """Judge whether a learner of this run fits into free memory and into the owner's limit."""
    needed = terms.memory_bytes(config, machine)
    text = f"{config.name} takes {terms.memory_words(config, machine)}"
    if needed > machine.memory_bytes:
        return DiagnosisLine("bad", "memory", text, "close other programs, or join a run with a smaller model")
    if limits.memory_gigabytes and needed > limits.memory_gigabytes * GIGABYTE_BYTES:
        return DiagnosisLine("bad", "memory", text, _allow("memory_gigabytes", limits.memory_gigabytes, needed))
    return DiagnosisLine("ok", "memory", text)


def _allow(limit: str, gigabytes: float, needed: int) -> str:
    least = math.ceil(10 * needed / GIGABYTE_BYTES) / 10  # limits count 10⁹ bytes; the sizes beside them do not
    return f"{limit} = {gigabytes:g} does not allow it; allow at least {least:g}"


def gpu_memory(config: RunConfig, machine: Machine) -> list[DiagnosisLine]:
    """Judge whether a learner of this run fits on the GPU; nothing without a GPU."""
    if not machine.gpu_bytes:
        return []
    text = f"{config.name} takes {terms.gpu_words(config, machine)}"
    if terms.uses_gpu(config, machine):
        return [DiagnosisLine("ok", "GPU memory", text)]
    advice = "it trains on the processor; end what else runs on the GPU, or raise gpu_memory_share"
    return [DiagnosisLine("note", "GPU memory", text, advice)]


def disk(config: RunConfig, machine: Machine, limits: Limits) -> DiagnosisLine:
    """Judge whether checkpoints of this run fit on the disk and into the owner's limit."""
    needed = terms.disk_bytes(config)
    text = f"{quantity.size(needed)} needed for checkpoints of {config.name}, {quantity.size(machine.disk_bytes)} free"
    if needed > machine.disk_bytes:
        return DiagnosisLine("bad", "disk", text, "make room, or choose another folder with --data")
    if limits.disk_gigabytes and needed > limits.disk_gigabytes * GIGABYTE_BYTES:
        return DiagnosisLine("bad", "disk", text, _allow("disk_gigabytes", limits.disk_gigabytes, needed))
    return DiagnosisLine("ok", "disk", text)


def steps(config: RunConfig, machine: Machine) -> list[DiagnosisLine]:
    """Judge whether the processor is fast enough for the run's rounds; nothing if it does not train."""
    seconds = terms.step_seconds_known(config, machine)
    if seconds is None:
        return []
    text = f"estimated: {step_words(seconds, config.pace)}"
    if seconds > step_seconds_max(config.pace):
        return [DiagnosisLine("note", "steps", f"{text}. {TOO_LATE}", ADVICE_SLOW_STEPS)]
    return [DiagnosisLine("ok", "steps", text)]


def data(manifest: Manifest, digest: bytes) -> DiagnosisLine:
    """Judge whether this machine reads the same text as the run."""
    if digest == manifest.data_digest:
        return DiagnosisLine("ok", "data", "the same text as the run's")
    return DiagnosisLine(
        "note",
        "data",
        f"another text than the run's (Python {platform.python_version()})",
        "it trains all the same, as private data; with the organiser's version of Python it is the run's",
    )


def clock(probed: Probed) -> DiagnosisLine:
    """Judge whether this machine's clock is right enough for its records to be accepted."""
    if not probed.clock_seconds:
        return DiagnosisLine("note", "clock", "compared with nobody", "give an invite to compare it with peers")
    offset = median(probed.clock_seconds)
    text = clock_words(offset)
    if is_wrong(offset):
        return DiagnosisLine("bad", "clock", text, ADVICE_WRONG_CLOCK)
    if abs(offset) > CLOCK_TOLERANCE_SECONDS / 3:
        return DiagnosisLine("note", "clock", text, "keep it right: timedatectl set-ntp true")
    return DiagnosisLine("ok", "clock", text)


def reachability(probed: Probed, listen: str, port: int) -> DiagnosisLine:
    """Judge whether others can call this machine, by the calls that they tried."""
    where = f"{' and '.join(sorted(set(probed.hosts)))} port {port}" if probed.hosts else f"port {port}"
    if not probed.reachable:
        return DiagnosisLine("note", "reachable", "nobody has tried to call this machine", "give an invite, and --port")
    if is_reachable(probed.reachable, len(probed.reachable)):  # as `peer.node.reachability` will judge
        return DiagnosisLine("ok", "reachable", f"others get through to {where}")
    advice = (
        "listen for others: --listen 0.0.0.0"
        if listen.startswith("127.")
        else f"forward TCP port {port} in the router and open it in the firewall, then join with --port {port}"
    )
    text = f"most others do not get through to {where}; it calls them, and takes part without reducing"
    return DiagnosisLine("note", "reachable", text, advice)


def upload(config: RunConfig, machine: Machine, probed: Probed, limits: Limits) -> DiagnosisLine:
    """Judge whether the line carries what this machine would send."""
    text = f"{terms.upload_words(config, machine)}, and as much download"
    if probed.upload_bytes_per_second is None:
        return DiagnosisLine("note", "upload", f"{text}; the line was not measured")
    able = min(probed.upload_bytes_per_second, limits.upload_bytes_per_second)
    text = f"{text}; {able / MBIT:,.{0 if able >= 100 * MBIT else 1}f} Mbit/s go through"
    if terms.step_seconds_known(config, machine) is None:
        least = terms.upload_bytes_per_version(config) / config.pace.steps_per_version / able
        return DiagnosisLine("ok", "upload", f"{text}, enough for a step every {quantity.rough(least)}")
    if able < terms.upload_bytes_per_day(config, machine.flops, 0.0) / DAY_SECONDS:
        return DiagnosisLine("note", "upload", text, "it may be late for rounds; its steps count in a later one")
    return DiagnosisLine("ok", "upload", text)


def pause_lines(limits: Limits, seen: Conditions) -> list[DiagnosisLine]:
    """Say for each of the owner's reasons to pause whether this machine can detect it."""
    untouched, unseen = seen.untouched_seconds, {"battery": "no battery found"}
    rows = (
        ("battery", limits.pause_on_battery, _words(seen.on_battery, "in use", "not in use")),
        ("GPU programs", limits.pause_for_gpu_programs, _words(seen.gpu_program, "one", "none")),
        ("temperature", limits.pause_above_celsius, "" if seen.celsius is None else f"{seen.celsius:.0f} °C"),
        ("owner", limits.pause_while_used_minutes, "" if untouched is None else f"{untouched / 60:.0f} minutes away"),
    )
    return [
        DiagnosisLine("ok", name, text)
        if text
        else DiagnosisLine("note", name, f"{unseen.get(name, 'cannot be seen here')}, so it never pauses this peer")
        for name, wanted, text in rows
        if wanted
    ]


def _words(known: bool | None, yes: str, no: str) -> str:
    """Return the word for this answer; empty if it is not known."""
    return "" if known is None else yes if known else no

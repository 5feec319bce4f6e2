"""The doctor's judgements of measurements, and its findings on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.run.manifest import PaceSpec, RunConfig
from peer.cli import diagnosis
from peer.cli.diagnosis import DiagnosisLine, Probed
from peer.cli.doctor import check_machine
from peer.cli.terms import Machine, step_seconds_at
from peer.machine.limits import Limits
from peer.machine.pause_policy import Conditions
from peer.node.options import NodeOptions
from tests.peer.homely import MODEL, manifest

MACHINE = Machine(memory_bytes=64 << 30, disk_bytes=100 << 30, flops=1e11)
CONFIG = RunConfig(model=MODEL)


def grade(finding: DiagnosisLine) -> str:
    assert bool(finding.advice) >= (finding.grade == "bad")
    return finding.grade


def test_a_machine_that_is_too_small_is_told_so() -> None:
    assert grade(diagnosis.memory(CONFIG, MACHINE, Limits())) == "ok"
    assert grade(diagnosis.memory(CONFIG, replace(MACHINE, memory_bytes=1000), Limits())) == "bad"
    assert diagnosis.gpu_memory(CONFIG, MACHINE) == []
    for gpu_bytes, expected in ((1 << 34, "ok"), (1000, "note")):
        (card,) = diagnosis.gpu_memory(CONFIG, replace(MACHINE, gpu_bytes=gpu_bytes))
        assert grade(card) == expected
    assert grade(diagnosis.disk(CONFIG, MACHINE, Limits())) == "ok"
    assert grade(diagnosis.disk(CONFIG, replace(MACHINE, disk_bytes=1000), Limits())) == "bad"
    assert grade(diagnosis.disk(CONFIG, MACHINE, Limits(disk_gigabytes=1e-6))) == "bad"


def test_state_and_steps_are_told_apart() -> None:
    for device in (
        diagnosis.memory(CONFIG, MACHINE, Limits()),
        *diagnosis.gpu_memory(CONFIG, replace(MACHINE, gpu_bytes=1 << 34)),
    ):
        assert " of state, " in device.text
        assert " or more for a step" in device.text


def test_a_limit_of_memory_is_told_with_what_to_allow() -> None:
    told = diagnosis.memory(CONFIG, MACHINE, Limits(memory_gigabytes=0.1))
    assert told.advice.startswith("memory_gigabytes = 0.1 does not allow it")
    least = float(told.advice.rpartition(" ")[2])
    assert grade(diagnosis.memory(CONFIG, MACHINE, Limits(memory_gigabytes=least))) == "ok"
    assert grade(diagnosis.memory(CONFIG, MACHINE, Limits(memory_gigabytes=least - 0.1))) == "bad"


def test_a_limit_of_the_disk_is_told_in_its_own_unit() -> None:
    large = CONFIG.model_copy(update={"model": MODEL.model_copy(update={"hidden_size": 2048, "layers": 20})})
    told = diagnosis.disk(large, MACHINE, Limits(disk_gigabytes=0.1))
    least = float(told.advice.rpartition(" ")[2])
    assert grade(diagnosis.disk(large, MACHINE, Limits(disk_gigabytes=least))) == "ok"
    assert grade(diagnosis.disk(large, MACHINE, Limits(disk_gigabytes=least - 0.1))) == "bad"


def test_a_processor_that_is_too_slow_for_the_runs_rounds_is_noted() -> None:
    (fast,) = diagnosis.steps(CONFIG, MACHINE)
    assert grade(fast) == "ok"
    assert "other peers wait 1.6 s" in fast.text
    slow = replace(MACHINE, flops=step_seconds_at(CONFIG, 1.0) / 1.7)
    (found,) = diagnosis.steps(CONFIG, slow)
    assert grade(found) == "note"
    assert "a step takes 1.7 s here, and other peers wait only 1.6 s. Much" in found.text
    assert "pace.round_seconds" in found.advice
    patient = CONFIG.model_copy(update={"pace": PaceSpec(round_seconds=10.0)})
    assert [grade(one) for one in diagnosis.steps(patient, slow)] == ["ok"]
    assert diagnosis.steps(CONFIG, replace(slow, gpu_bytes=1 << 34)) == [], (
        "it trains on the GPU, which nobody measured"
    )


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [((), "note"), ((0.2, -0.1), "ok"), ((12.0,), "note"), ((-40.0, -41.0, 0.0), "bad"), ((0.0, 0.1, 90.0), "ok")],
)
def test_the_clock_is_judged_by_most_peers(offsets: tuple[float, ...], expected: str) -> None:
    assert grade(diagnosis.clock(Probed(clock_seconds=offsets))) == expected


def test_a_peer_that_cannot_be_called_learns_what_to_do() -> None:
    assert grade(diagnosis.reachability(Probed(reachable=(False, True)), "0.0.0.0", 7400)) == "ok"
    router = diagnosis.reachability(Probed(reachable=(False,), hosts=("203.0.113.7",)), "0.0.0.0", 7400)
    assert "203.0.113.7" in router.text
    assert "forward TCP port 7400" in router.advice
    assert "--listen 0.0.0.0" in diagnosis.reachability(Probed(reachable=(False,)), "127.0.0.1", 7400).advice
    assert grade(diagnosis.reachability(Probed(), "0.0.0.0", 7400)) == "note"


def test_a_narrow_line_is_noted_also_if_the_owner_made_it_so() -> None:
    fast, slow = Probed(upload_bytes_per_second=1e9), Probed(upload_bytes_per_second=10.0)
    assert grade(diagnosis.upload(CONFIG, MACHINE, fast, Limits())) == "ok"
    assert grade(diagnosis.upload(CONFIG, MACHINE, slow, Limits())) == "note"
    eager = replace(MACHINE, flops=1e15)
    assert grade(diagnosis.upload(CONFIG, eager, fast, Limits(upload_mbit=1.0))) == "note"
    assert "not measured" in diagnosis.upload(CONFIG, MACHINE, Probed(), Limits()).text
    assert (
        "a day at this machine's speed, in a group of 8, and as much download"
        in diagnosis.upload(CONFIG, MACHINE, fast, Limits()).text
    )
    with_gpu = diagnosis.upload(CONFIG, replace(MACHINE, gpu_bytes=1 << 34), slow, Limits())
    assert grade(with_gpu) == "ok"
    assert "a day at a step a second" in with_gpu.text
    assert "this machine's speed" not in with_gpu.text, "nobody has measured the GPU"


@pytest.mark.parametrize(
    ("built_for", "device", "has_driver", "advised"),
    [
        (None, None, False, ""),
        (None, None, True, "torch==2.13.0"),
        ("CUDA 13.0", None, True, "the NVIDIA driver here is broken or too old for CUDA 13.0"),
        ("CUDA 13.0", None, False, ""),
        ("CUDA 13.0", "NVIDIA H100 (cuda:0)", True, ""),
    ],
)
def test_the_build_of_torch_is_told(built_for: str | None, device: str | None, has_driver: bool, advised: str) -> None:
    found = diagnosis.torch_build("2.13.0+cpu", built_for, device, has_driver)
    words = f"2.13.0+cpu, built for {built_for or 'processors only'}; it computes on {device or 'the processor'}"
    assert (found.text, found.grade) == (words, "note" if advised else "ok")
    assert advised in found.advice
    assert bool(advised) == bool(found.advice)


def test_another_text_is_noted() -> None:
    assert grade(diagnosis.data(manifest(), bytes(32))) == "ok"
    assert grade(diagnosis.data(manifest(), bytes([1]) * 32)) == "note"


def test_a_wish_that_this_machine_cannot_fulfil_is_noted() -> None:
    blind = diagnosis.pause_lines(Limits(pause_above_celsius=80.0), Conditions())
    assert {(one.subject, one.grade) for one in blind} == {
        ("battery", "note"),
        ("GPU programs", "note"),
        ("temperature", "note"),
    }
    assert [one.text for one in blind] == [
        "no battery found, so it never pauses this peer",
        *["cannot be seen here, so it never pauses this peer"] * 2,
    ]
    (seen,) = diagnosis.pause_lines(Limits(pause_for_gpu_programs=False), Conditions(on_battery=True))
    assert (seen.grade, seen.text) == ("ok", "in use")


def test_this_machine_passes(tmp_path: Path) -> None:
    found = check_machine(NodeOptions(tmp_path), CONFIG)
    assert [str(one) for one in found if one.grade == "bad"] == []
    subjects = {one.subject for one in found}
    assert subjects >= {"versions", "torch", "arithmetic", "memory", "steps", "disk", "GPU", "port"}

"""Readings of processes, and the line through them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.soak.__main__ import growth, table
from tests.bench.soak.memory import Reading, cpu_seconds, fit, read_family, role_of, series

MB = 1_000_000


@given(st.floats(-0.5, 0.5), st.floats(1e6, 1e9), st.integers(3, 50))
def test_the_slope_of_a_straight_line_is_found(share_per_hour: float, start: float, count: int) -> None:
    points = [(600.0 + 10 * n, start * (1 + share_per_hour * n / 360)) for n in range(count)]
    line = fit(points)
    assert line is not None
    assert line.share_per_hour == pytest.approx(share_per_hour, abs=1e-6)
    assert line.start_bytes == pytest.approx(start)
    assert line.standard_error < 1e-5


def test_noise_shows_in_the_error_and_too_few_points_are_no_line() -> None:
    flat = fit([(10.0 * n, MB + (1000 if n % 2 else -1000)) for n in range(100)])
    assert flat is not None
    assert abs(flat.share_per_hour) < 2 * flat.standard_error
    assert fit([]) is None
    assert fit([(0.0, 1.0), (10.0, 2.0)]) is None
    assert fit([(5.0, 1.0), (5.0, 2.0), (5.0, 3.0)]) is None


def readings(growth_bytes: int, descriptors: int = 7) -> list[Reading]:
    return [
        Reading(60.0 * minute, process, 100 * MB + growth_bytes * minute, descriptors + minute, minute * 0.6)
        for minute in range(61)
        for process in ("peer-1 main", "peer-1 learner")
    ]


def test_every_process_and_every_peer_is_told_of_once_the_first_minutes_are_over() -> None:
    found = series(readings(MB), 600.0)
    assert {name: (len(points), points[0]) for name, points in found.items()} == {
        "peer-1": (51, (600.0, 220e6)),
        "peer-1 learner": (51, (600.0, 110e6)),
        "peer-1 main": (51, (600.0, 110e6)),
    }


def test_growth_in_words() -> None:
    found = growth(readings(MB), 600.0)
    main = found["processes"]["peer-1 main"]
    assert main["share_per_hour"] == pytest.approx(60 / 110)
    assert main["descriptors"] == [17, 67]
    assert found["processes"]["peer-1"]["descriptors"] is None
    assert found["cores_used"] == pytest.approx(2 * 0.6 / 60)
    shown = table({**found, "versions_certified": 7, "agreement": False})
    assert "| peer-1 main | 110.0 | +54.55% ± 0.00% | 17 → 67 |" in shown
    assert "60 minutes, 2.0% of one core, 7 versions, NO AGREEMENT" in shown
    assert growth([], 600.0)["processes"] == {}


def test_memory_of_a_real_process_and_its_child_is_read() -> None:
    hold = "import sys; kept = bytearray(50_000_000); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = {one.process: one for one in read_family("me", os.getpid(), 3.0)}
        assert child.stdin is not None
        child.stdin.close()
    held = found[f"me {os.path.basename(sys.executable)}"]
    assert 50 * MB < held.memory_bytes < 100 * MB
    assert held.seconds == 3.0
    assert 3 <= held.descriptors < 20
    assert found["me main"].cpu_seconds > 0


def test_roles_and_times_are_read_from_what_linux_writes() -> None:
    assert role_of(b"/usr/bin/python\0-m\0peer.learner.process\0005\0") == "learner"
    assert role_of(b"/x/y/p2pd\0-listen=/unix/z\0") == "p2pd"
    assert role_of(b"") == "unnamed"
    ticks = os.sysconf("SC_CLK_TCK")
    assert cpu_seconds(f"1 (a) b) S 0 1 1 0 -1 0 0 0 0 0 {ticks} {2 * ticks} 0 0") == 3.0

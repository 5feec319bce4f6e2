"""Rules for every test: which examples Hypothesis draws, that nothing is skipped quietly where it counts, and that no
command which a test runs in this process leaves its log behind.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from peer.machine.log import CHATTY

# How fast an example runs depends on who else uses the machine, so no profile judges by time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", settings.get_profile("untimed"))
settings.register_profile("ci", settings.get_profile("untimed"), max_examples=10, derandomize=True, print_blob=True)
settings.register_profile("slow", settings.get_profile("ci"), max_examples=100)
settings.register_profile("nightly", settings.get_profile("untimed"), max_examples=5000)

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")
settings.load_profile(PROFILE)

gc.disable()  # nothing in a loading module is garbage; `pytest_runtestloop` starts collections again

MARKERS_THAT_MAY_SKIP = ("browser", "netns", "docker", "gpu")
SWARM_TESTS = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember the swarm tests of `make test` before `-m` deselects them."""
    swarms = [item for item in items if item.get_closest_marker("swarm") and not item.get_closest_marker("slow")]
    config.stash[SWARM_TESTS] = [item.nodeid for item in swarms]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What is loaded stays until the end: no collection, of which a simulation causes many, looks at it again."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def swarm_tests(request: pytest.FixtureRequest) -> list[str]:
    """Names of all tests of `make test` that start a real swarm, also of those that this run leaves out."""
    return request.config.stash[SWARM_TESTS]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under the `ci` profile a skipped test fails, unless a marker says what the machine may lack."""
    report = yield
    excused = hasattr(report, "wasxfail") or any(map(item.get_closest_marker, MARKERS_THAT_MAY_SKIP))
    if report.skipped and not excused:
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for whole modules, which have no markers yet when they skip themselves."""
    report = yield
    if report.skipped:
        _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if PROFILE == "ci":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"not allowed to skip without one of the markers {MARKERS_THAT_MAY_SKIP}: {reason}"


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands configure logging for a whole process; a test run has to go on as it was."""
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising
    logging.captureWarnings(False)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET)

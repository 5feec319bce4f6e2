"""One image and one swarm for all tests here: each begins with a host and four peers that train, and may break them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compose.project import Project, compose_command, wait_until_training

PATIENCE_SECONDS = 1200.0  # for a test: every wait in it has a shorter one


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/compose/" in item.nodeid:
            item.add_marker(pytest.mark.docker)
            item.add_marker(pytest.mark.timeout(PATIENCE_SECONDS))


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The image is built, nothing is up. Afterwards nothing of the project is left."""
    project = Project(compose_command(), tmp_path_factory.mktemp("run") / "run.toml")
    project.build()
    try:
        yield project
    finally:
        project.down("--volumes")


@pytest.fixture
def swarm(project: Project) -> Iterator[Project]:
    """A host and four peers that train, whatever the test before has left; nobody may fail by itself."""
    project.up()
    wait_until_training(project.containers("peer"))
    yield project
    assert [container.restarts() for container in project.everyone()] == [0] * len(project.everyone())

"""What a peer tells its learner of the versions that it holds."""

from __future__ import annotations

from pathlib import Path

from peer.node.learner_control import LearnerControl
from peer.node.options import NodeOptions
from peer.rounds.counters import LearnerProgress
from tests.coordinator.builders import Club


class Client:
    """A learner's process, as far as progress goes."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int | None]] = []

    def set_progress(self, steps: int, window: int | None) -> None:
        self.told.append((steps, window))


def test_a_learner_is_told_once_of_every_new_version_and_lane(tmp_path: Path) -> None:
    """H = 8 steps and two fragments: four steps for each version of either."""
    client = Client()
    training = LearnerControl(client, Club.of(2).manifest, NodeOptions(tmp_path), LearnerProgress())  # type: ignore[arg-type]
    for versions, window in ((0, None), (0, None), (1, None), (1, 7), (1, 7), (2, 7)):
        training.follow(versions, window)
    assert client.told == [(0, None), (4, None), (4, 7), (8, 7)]

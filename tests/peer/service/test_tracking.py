"""`--track`: what trackers draw of a peer, and that no tracking library can delay or end a run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from coordinator.views.evaluation import Evaluation
from coordinator.views.snapshot import CertifiedWork, FragmentStatus, PeerSnapshot
from dht.errors import LocalError, UsageError
from peer.cli import main
from peer.service import trackers, tracking
from peer.service.trackers import MLflow, Tracking, Trackio, Wandb
from peer.service.tracking import point_of, run_name, tracked

PYTHON = (3, 11)
LIBRARIES = ("tensorboard", "wandb", "trackio", "mlflow")


def snapshot(**changes: Any) -> PeerSnapshot:
    part = FragmentStatus(version=3, held_version=3, head="", state="", phase="idle")
    values = {"peer_id": "12D3KooWann", "run_id": "ab" * 32, "name": "ann", "role": "learner", "state": "training"}
    more = {"pid": 1, "wall_seconds": 2.0, "steps": 40, "tokens": 400, "loss": 2.5, "peers_live": 3}
    return PeerSnapshot(**{**values, **more, "fragments": (part, part), **changes})


class Drawn:
    """A tracker that records what it is given."""

    viewer = "look here"

    def __init__(self, folder: Path, name: str) -> None:
        self.place = folder / name
        self.points: list[tuple[int, Mapping[str, float], str]] = []
        self.closed = False

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
        self.points.append((step, numbers, sample))

    def close(self) -> None:
        self.closed = True


class Broken(Drawn):
    """A tracker whose library fails."""

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
        raise ValueError("no room left\nat all")


def drawn(kind: type[Drawn], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Drawn], list[str]]:
    """Draw a run of two snapshots with such a tracker; return it, if it was made, and the messages."""
    made: list[Drawn] = []
    said: list[str] = []
    noted = threading.Event()

    def make(folder: Path, name: str) -> Drawn:
        made.append(kind(folder, name))
        noted.set()
        return made[0]

    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": make})
    shown = iter([snapshot(), snapshot(), snapshot(steps=50, sample="once"), snapshot(steps=50, sample="once")])

    async def main() -> None:
        async with tracked(Tracking("wandb", folder), "tiny", lambda: next(shown), said.append):
            await asyncio.to_thread(noted.wait)

    asyncio.run(main())
    return made, said


def test_a_run_is_drawn_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tracker,), said = drawn(Drawn, tmp_path / "new", monkeypatch)
    assert [step for step, _, _ in tracker.points] == [40, 50]
    assert tracker.points[-1][2] == "once"
    assert tracker.closed
    assert tracker.place == tmp_path / "new" / "tiny-ann-ababababWann"
    assert said == ["wandb draws this run; to look at it: look here"]


def test_a_library_that_fails_ends_nothing_but_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tracker,), said = drawn(Broken, tmp_path, monkeypatch)
    assert tracker.closed
    assert said[-1] == "wandb draws no more of this run, which goes on: no room left"


def test_a_library_that_does_not_answer_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()

    class Silent(Drawn):
        def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
            never.wait()

    monkeypatch.setattr(tracking, "CLOSE_SECONDS_MAX", 0.01)
    _, said = drawn(Silent, tmp_path, monkeypatch)
    never.set()
    assert said[-1] == "wandb has not taken everything within 0.01 seconds"


def test_a_learner_is_drawn_over_its_steps_and_a_host_over_versions() -> None:
    step, numbers, _ = point_of(snapshot(certified=CertifiedWork(tokens=90)))
    assert step == 40
    assert numbers["loss"] == 2.5
    assert (numbers["tokens"], numbers["tokens_certified"]) == (400.0, 90.0)
    assert (numbers["versions"], numbers["peers"]) == (6.0, 3.0)
    evaluation = Evaluation(versions=4, tokens_certified=1, wall_seconds=0.0, loss=1.5)
    step, numbers, _ = point_of(snapshot(role="host", loss=None, steps=0, tokens=0, evaluations=(evaluation,)))
    assert step == 6
    assert numbers["held_out_loss"] == 1.5
    assert numbers.keys().isdisjoint({"loss", "tokens", "steps_per_second"})


@pytest.mark.parametrize("name", ["../../etc", "a/b:c", "\x1b[2J", "." * 64, ""])
def test_a_strangers_name_leads_out_of_no_folder(name: str) -> None:
    found = run_name(name, snapshot(name=name))
    assert not set(found) & set("./\\:\x1b")
    assert 0 < len(found) < 128


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_missing_is_named(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for command in ("lab", "swarm", "host"):
        assert main.run([command, "--track", library], PYTHON) == 1
        expected = f"--track {library} needs the package {library}; install it with: pip install {library}\n"
        assert capsys.readouterr().err == expected


def test_a_folder_of_the_same_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(LocalError, match="needs the package wandb"):
        Tracking.parse("wandb", tmp_path)


def test_a_name_of_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"not 'tensorbord' \(did you mean tensorboard\?\)"):
        Tracking.parse("tensorbord", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: MagicMock(origin="there"))
    assert Tracking.parse("mlflow", tmp_path) == Tracking("mlflow", tmp_path)
    assert Tracking.parse("mlflow:/elsewhere", tmp_path) == Tracking("mlflow", Path("/elsewhere"))


@pytest.mark.parametrize(("known", "mode"), [(True, None), (False, "offline")])
def test_wandb_stays_offline_where_nobody_is_logged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool, mode: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", wandb := MagicMock())
    wandb.login.return_value = known
    tracker = Wandb(tmp_path, "tiny")
    assert wandb.init.call_args.kwargs["mode"] == mode
    assert wandb.Settings.call_args.kwargs["x_disable_meta"], "there may be an invite in the command line"
    tracker.note(7, {"loss": 2.0}, "once")
    wandb.init.return_value.log.assert_called_once_with({"loss": 2.0}, step=7)


def test_trackio_and_mlflow_are_told_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", trackio := MagicMock())
    Trackio(tmp_path, "tiny").note(7, {"loss": 2.0}, "")
    trackio.init.return_value.log.assert_called_once_with({"loss": 2.0}, step=7)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow := MagicMock())
    monkeypatch.setitem(sys.modules, "mlflow.entities", mlflow.entities)
    mlflow.is_tracking_uri_set.return_value = False
    tracker = MLflow(tmp_path, "tiny")
    mlflow.MlflowClient.assert_called_once_with(f"sqlite:///{tmp_path}/mlflow.db")
    tracker.note(7, {"loss": 2.0}, "once")
    name, value, _, step = mlflow.entities.Metric.call_args.args
    assert (name, value, step) == ("loss", 2.0, 7)

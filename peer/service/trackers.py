"""Adapters that draw a run's curves in well-known libraries (`--track NAME`). Each library is an optional extra.

Only this module imports them. No library gets the command line, which may hold an invite.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from coordinator.run.validation_errors import nearest
from dht.errors import LocalError, UsageError
from peer.machine.clock import unix_seconds

PROJECT = "muster"
SAMPLE = "sample"
TRACKING_FOLDER = "tracking"


class Tracker(Protocol):
    """One run in a tracking library; `viewer` is the command that shows it. A sample is text by the model."""

    viewer: str

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Tracking:
    """The library that `--track` names, and the folder for its files on this machine."""

    library: str
    folder: Path

    @classmethod
    def parse(cls, text: str, folder: Path) -> Tracking:
        """Parse NAME or NAME:FOLDER, with `folder` as the default; does not import the library.

        Raises UsageError if the library is not known, LocalError if it is not installed.
        """
        library, _, named = text.partition(":")
        if library not in TRACKERS:
            names = ", ".join(TRACKERS)
            raise UsageError(f"--track takes one of {names}, not {library!r}{nearest(library, TRACKERS)}")
        found = importlib.util.find_spec(library)
        if found is None or found.origin is None:  # a mere folder of this name is no library
            raise LocalError(f"--track {library} needs the package {library}; install it with: pip install {library}")
        return cls(library, Path(named).absolute() if named else folder)

    def open(self, name: str) -> Tracker:
        """Begin or continue the run of this name; raises what the library raises."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return TRACKERS[self.library](self.folder, name)


def tracking(text: str | None, folder: Path) -> Tracking | None:
    """Parse `--track`, whose default folder is `tracking` in this folder; raises what `Tracking.parse` does."""
    return None if text is None else Tracking.parse(text, folder.absolute() / TRACKING_FOLDER)


class TensorBoard:
    """Event files in a folder with the run's name, which a returning peer continues."""

    def __init__(self, folder: Path, name: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / name))
        self.viewer = f"tensorboard --logdir {folder}"

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
        for key, value in numbers.items():
            self._writer.add_scalar(key, value, step)
        if sample:
            self._writer.add_text(SAMPLE, sample, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A Weights & Biases run; offline if no user is logged in here."""

    def __init__(self, folder: Path, name: str) -> None:
        import wandb

        settings = wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
        )
        known = wandb.login(prompt=False, verify=False)
        mode: Any = None if known else "offline"  # None: WANDB_MODE decides, online by default
        self._run = wandb.init(
            project=PROJECT, name=name, id=name, resume="allow", dir=str(folder), mode=mode, settings=settings
        )
        self.viewer = f"wandb sync {folder}/wandb/offline-run-*" if self._run.offline else str(self._run.url)

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
        self._run.log(dict(numbers), step=step)
        if sample:
            self._run.summary[SAMPLE] = sample

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A Trackio run, in Trackio's own folder (TRACKIO_DIR)."""

    def __init__(self, folder: Path, name: str) -> None:
        import trackio

        self._run = trackio.init(
            project=PROJECT, name=name, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        self.viewer = f"trackio show --project {PROJECT}"

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
        self._run.log({**numbers, **({SAMPLE: sample} if sample else {})}, step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """An MLflow run, at MLFLOW_TRACKING_URI or else in a database in the folder."""

    def __init__(self, folder: Path, name: str) -> None:
        import mlflow

        is_set = mlflow.is_tracking_uri_set()
        store = mlflow.get_tracking_uri() if is_set else f"sqlite:///{folder / 'mlflow.db'}"
        self.viewer = f"mlflow ui --backend-store-uri {store}"
        self._client = mlflow.MlflowClient(store)
        known = self._client.get_experiment_by_name(PROJECT)
        files = None if is_set else (folder / "artifacts").as_uri()
        experiment = known.experiment_id if known else self._client.create_experiment(PROJECT, files)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id

    def note(self, step: int, numbers: Mapping[str, float], sample: str) -> None:
        from mlflow.entities import Metric

        now = int(1000 * unix_seconds())
        self._client.log_batch(self._run, [Metric(key, value, now, step) for key, value in numbers.items()])
        if sample:
            self._client.log_text(self._run, sample, f"{SAMPLE}.txt")

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: Mapping[str, Callable[[Path, str], Tracker]] = MappingProxyType(
    {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio, "mlflow": MLflow}
)

"""Peers of one owner on this machine that share its limits. Each locks its own file in one folder while it lives.

No process is in charge: the kernel releases the lock of a killed process, and its traffic of today stays in its file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import structlog
from pydantic import BaseModel, Field, ValidationError

from dht.errors import UsageError
from peer.machine.limits import SETTINGS_NAME, Limits, PeerSettings

FOLDER_NAME = "sharers"
FILE_BYTES = 512  # always written whole and at once, so that no reader finds the rest of an earlier one

log = structlog.get_logger(__name__)


class Used(BaseModel):
    """The usage of one sharer on a day, local time, and the size of its data folder."""

    day: str = ""
    sent_bytes: int = Field(0, ge=0)
    received_bytes: int = Field(0, ge=0)
    disk_bytes: int = Field(0, ge=0)


@dataclass(frozen=True, slots=True)
class OtherSharers:
    """The usage of all other sharers: traffic of today, also of ended ones, and disk space of living ones."""

    living: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    disk_bytes: int = 0


class Sharers:
    """One peer's membership among the sharers, which lasts for this context."""

    def __init__(self, folder: Path, data_directory: Path, overrides: Sequence[str] = ()) -> None:
        """Read the limits from the folder's settings, with `--limit` on top; raises UsageError."""
        if folder.resolve() != data_directory.resolve():
            _check_no_limits(data_directory, folder)
        self.folder = folder
        self.others = OtherSharers()
        self._overrides = overrides
        self._data_directory = data_directory
        self._own = hashlib.sha256(os.fsencode(data_directory.resolve())).hexdigest()[:12] + ".json"
        self._descriptor = -1
        self._known: dict[str, Used] = {}  # by file, the last contents that could be read
        self._trouble = ""
        self._settings = Limits()  # the settings file at the last look, with our own changes since
        self._read_settings()

    def __enter__(self) -> Self:
        """Take our place; raises UsageError if the folder is not writable, or another process uses our data folder."""
        path = self.folder / FOLDER_NAME / self._own
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _taken(self._descriptor):
                return self
            os.close(self._descriptor)
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot hold what is shared: {error.strerror}; choose another folder with --share-limits"
            ) from None
        raise UsageError(
            f"another muster process here already uses {self._data_directory}; "
            "stop that one or start this one with another --data directory"
        )

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def begin(self) -> Limits:
        """Return our current part of the limits; raises UsageError."""
        self._read_settings()
        self._look("")
        return self.part(self.whole)

    def part(self, limits: Limits) -> Limits:
        """Return our part of these limits."""
        return limits.part(self.others.living + 1)

    def exchange(self, mine: Used) -> dict[str, Any]:
        """Write what this peer has used, and read the usage of others; slow, so call it in a thread.

        Returns the shared limits that have changed in the settings since the last call.
        """
        self._look(mine.day)
        trouble, changes = "", {}
        try:
            os.pwrite(self._descriptor, mine.model_dump_json().encode().ljust(FILE_BYTES), 0)
            changes = self._changed()
        except (OSError, UsageError) as error:  # a full disk, or settings that the owner is still writing
            trouble = str(error)
        if trouble and trouble != self._trouble:
            log.warning("limits_not_shared", reason=trouble)
        self._trouble = trouble
        return changes

    def kept(self, changes: Mapping[str, Any]) -> None:
        """Note what this peer itself wrote to the settings: another may have changed it again by the next look."""
        self._settings = self._settings.model_copy(update=dict(changes))

    def _look(self, day: str) -> None:
        found = [self._read(path) for path in (self.folder / FOLDER_NAME).glob("*.json") if path.name != self._own]
        today = [used for used, _ in found if used.day == day]
        self.others = OtherSharers(
            living=sum(lives for _, lives in found),
            sent_bytes=sum(used.sent_bytes for used in today),
            received_bytes=sum(used.received_bytes for used in today),
            disk_bytes=sum(used.disk_bytes for used, lives in found if lives),
        )

    def _read(self, path: Path) -> tuple[Used, bool]:
        """Read the usage of another sharer, and whether it lives; its last known usage if the file cannot be read."""
        lives = False
        with suppress(OSError, ValidationError), path.open("rb") as file:
            lives = not _locked(file.fileno(), fcntl.LOCK_SH)
            self._known[path.name] = Used.model_validate_json(file.read(FILE_BYTES))
        return self._known.get(path.name, Used()), lives

    def _read_settings(self) -> None:
        self.whole = PeerSettings.load(self.folder, self._overrides).limits  # for all sharers together
        self._settings = PeerSettings.load(self.folder).limits

    def _changed(self) -> dict[str, Any]:
        before, self._settings = self._settings.model_dump(), PeerSettings.load(self.folder).limits
        return {key: value for key, value in self._settings.model_dump().items() if value != before[key]}


def _taken(descriptor: int) -> bool:
    """Lock the file of a sharer; false if another process holds it. Waits for processes that only read it."""
    while not _locked(descriptor, fcntl.LOCK_EX):
        if not _locked(descriptor, fcntl.LOCK_SH):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _locked(descriptor: int, how: int) -> bool:
    """Lock a file in this mode; false if another process holds a conflicting lock."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_no_limits(data_directory: Path, folder: Path) -> None:
    """Raise UsageError if a peer has limits of its own, which those of the folder would silently replace."""
    if own := PeerSettings.load(data_directory).limits.model_fields_set:
        raise UsageError(
            f"{data_directory / SETTINGS_NAME} has limits of its own ({', '.join(sorted(own))}); "
            f"move them to {folder / SETTINGS_NAME}, or start without --share-limits"
        )

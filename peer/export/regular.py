"""The exports that a host makes by itself: every so many versions, and at the end of the run (design §8)."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import structlog

from coordinator.run.data_spec import CHAT
from coordinator.run.manifest import RunConfig, run_id_of
from dht.errors import LocalError, MusterError, UsageError
from dht.identity import Signer
from peer.export.exported import Exported
from peer.export.hub import Hub, open_hub
from peer.export.listing import LATEST, MANIFEST
from peer.export.options import ExportOptions
from peer.export.writer import UNFINISHED, write_export
from peer.machine.clock import unix_seconds
from peer.rounds.counters import RunCounters
from peer.rounds.evaluation_loop import RunPosition

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5
EXPORTS_KEPT = 3
_NAME = re.compile(r"version-(\d{9,13})")


class RegularExport:
    """Writes folders `version-N` with N versions over all fragments, and keeps the newest EXPORTS_KEPT.

    If the disk or the Hub refuses, or a fragment has no version yet, the owner is told and the run goes on.
    """

    def __init__(
        self,
        options: ExportOptions,
        signer: Signer,
        gather: Callable[[str], Awaitable[Exported]],
        counters: RunCounters,
        hub: Callable[[str], Hub] = open_hub,
    ) -> None:
        self._options = options
        self._signer = signer
        self._gather = gather
        self._counters = counters
        self._turn = asyncio.Lock()
        self._hub = None if options.repository is None else hub(options.repository)

    @property
    def place(self) -> str:
        """Where everybody can find the exports, in words."""
        return self._options.place

    @property
    def busy(self) -> bool:
        """Whether an export is being made."""
        return self._turn.locked()

    @property
    def newest(self) -> Path | None:
        """The link to the newest export; None if there is none yet."""
        link = self._options.folder / LATEST
        return link if link.exists() else None

    async def run(self, position: Callable[[], RunPosition]) -> None:
        """Export whenever enough versions have passed since the newest export, until cancelled."""
        every = self._options.every_versions
        newest = max((number(path) for path in exports(self._options.folder)), default=0)
        while every is not None:
            now = position()
            if now.complete and now.versions >= newest + every:
                await self.export()
                newest = now.versions
            await asyncio.sleep(LOOK_SECONDS)

    async def export(self) -> None:
        """Export the state certified now, unless its folder exists."""
        async with self._turn:
            try:
                exported = await self._gather(self._options.licence)
                target = self._options.folder / f"version-{exported.versions:09d}"
                if not target.exists():
                    await asyncio.to_thread(self._write, target, exported)
                    log.info("exported", folder=str(target))
            except MusterError as error:
                self._counters.refuse("export", str(error))
            else:
                self._counters.take("export")

    def _write(self, target: Path, exported: Exported) -> None:
        write_export(target, exported, self._signer, int(unix_seconds()))
        link = target.with_name(f".{LATEST}")
        try:
            link.unlink(missing_ok=True)
            link.symlink_to(target.name)
            os.replace(link, target.with_name(LATEST))
            for path in exports(target.parent)[:-EXPORTS_KEPT]:
                shutil.rmtree(path)
        except OSError as error:
            raise LocalError(f"the exports in {target.parent} cannot be put in order: {error.strerror}") from None
        if self._hub is not None:
            self._hub.upload(target, f"{exported.versions} certified versions")


def next_steps(newest: Path, config: RunConfig, base: str) -> str:
    """Say where an export is and what to do with it; `base` is the folder of an adapter's base."""
    place = shlex.quote(str(newest))
    words = f"the newest export is in {newest}; check it: muster verify {place}"
    if config.model.is_own:
        return words
    with_base = f" --base {shlex.quote(base)}" if config.adapter is not None and base else ""
    asked = " --chat 'Who are you?'" if config.data.source == CHAT else ""
    return f"{words}; let it write: muster sample {place}{with_base}{asked}"


def exports(folder: Path) -> list[Path]:
    """Return the exports in this folder, oldest first."""
    found = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=number)


def number(export: Path) -> int:
    """Return the number of versions over all fragments that this export's name gives."""
    return int(export.name.split("-")[1])


def check_run(folder: Path, run_id: bytes) -> None:
    """Raise UsageError if this folder has exports of another run: their numbers would mean other models."""
    for path in exports(folder):
        with suppress(OSError):
            other = run_id_of((path / MANIFEST).read_bytes())
            if other != run_id:
                raise UsageError(
                    f"{folder} holds exports of another run, {other.hex()[:12]}; name another folder with --export"
                )


def check(options: ExportOptions) -> None:
    """Remove unfinished exports; raise UsageError if the folder cannot be written, or the Hub's token is missing."""
    if options.repository is not None:
        open_hub(options.repository)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        for path in options.folder.glob(f".version-*{UNFINISHED}"):
            shutil.rmtree(path)
    except OSError as error:
        raise UsageError(f"{options.folder} cannot hold exports: {error.strerror}; choose another folder") from None

"""A peer's saves of a run: a file for each fragment's version and one for the learner, named by an index.

A file's name ends in the SHA-256 of its content, and so does the name of the index, which is written last. Every file
is written in a folder beside the others, forced to disk and renamed. So at every moment there is an index whose files
are all whole. If one was torn or changed later, the previous generation is used.

Two successive generations share the files that did not change, and during a write only the previous one exists. So
where each renews a part of the save (docs/adr/0070), only that part is on disk twice. One process writes a folder at a
time.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog
from pydantic import Field

from coordinator.run.manifest import FRAGMENTS_MAX
from dht.errors import PeerError, UsageError
from dht.files import publish
from dht.statement import Digest
from dht.wire import PROTOCOL_MAJOR, PROTOCOL_MINOR, Wire
from peer.numerics.outer_optimizer import OuterState
from peer.storage.disk import disk_errors, empty_folder
from peer.storage.state_tensors import tensors_of
from peer.storage.tensor_file import write_tensors

KEPT = 2
INDEX_BYTES_MAX = 1 << 20
NAME_MAX = 128
READING_THREADS_MAX = 4

_INDEX_NAME = re.compile(r"generation-(\d{12})-([0-9a-f]{64})")
_FILE_NAME = re.compile(r"(?:anchor-\d{4}|learner)-([0-9a-f]{64})\.safetensors")

log = structlog.get_logger(__name__)


class FormatVersion(Wire):
    """The fields at the start of every index of any version."""

    protocol_major: int = Field(ge=0)
    protocol_minor: int = Field(ge=0)


class SavedFragment(Wire):
    """One fragment: its version, the digest of that version's certificate, and the file of its state.

    Version 0 has neither: it is drawn, or is in a file of its own.
    """

    version: int = Field(ge=0)
    head: Digest
    file: str = Field("", max_length=NAME_MAX)


class Index(FormatVersion):
    """The files that belong together. `learner` is empty if there is none.

    `learner_behind` says that the learner's file is of another moment. `learner_heads` are those of its moment, empty
    if unknown.
    """

    run_id: Digest
    fragments: tuple[SavedFragment, ...] = Field(max_length=FRAGMENTS_MAX)
    learner: str = Field("", max_length=NAME_MAX)
    learner_behind: bool = False
    learner_heads: tuple[Digest, ...] = Field((), max_length=FRAGMENTS_MAX)

    @property
    def heads(self) -> tuple[bytes, ...]:
        """Certificate digests of all fragments, in order."""
        return tuple(one.head for one in self.fragments)

    @property
    def heads_of_learner(self) -> tuple[bytes, ...]:
        """`learner_heads`; in older files without them, the fragments' heads, or none if the learner is behind."""
        return self.learner_heads if self.learner_heads or self.learner_behind else self.heads

    @property
    def files(self) -> set[str]:
        """The names of all files except the index itself."""
        return {name for name in (self.learner, *(one.file for one in self.fragments)) if name}


@dataclass(frozen=True, slots=True)
class Generation:
    """An index on disk."""

    name: str
    index: Index


@dataclass(frozen=True, slots=True)
class Held:
    """A fragment's state to save; `head` as in `SavedFragment`."""

    version: int
    head: bytes
    state: OuterState


class Generations:
    """The generations in the folder of a run."""

    def __init__(self, folder: Path, run_id: bytes) -> None:
        self._folder = folder
        self._run_id = run_id
        self._newest: Generation | None = None  # the newest one known to be whole
        self._settling = threading.Lock()  # for reads, which are slow and run beside saves

    def path(self, name: str) -> Path:
        """Return the path of a generation's file."""
        return self._folder / name

    def newest(self) -> Generation | None:
        """Return the newest whole generation; skips damaged ones with a warning.

        If none is whole, returns the newest with whole states, without its learner. Raises UsageError if another major
        version wrote it.
        """
        known, names = self._newest, self._indices()
        found = self._newest_of(names)
        if (found is None or found.name != names[-1]) and names != self._indices():
            return self.newest()  # another process saves here, and has removed the files we checked
        with self._settling:
            if self._newest is known:  # else we have saved meanwhile
                self._newest = found
            return self._newest

    def _newest_of(self, names: Sequence[str]) -> Generation | None:
        found: Generation | None = None
        for name in reversed(names):
            try:
                index = self._read(name)
                states = index.model_copy(update={"learner": ""})
                with ThreadPoolExecutor(READING_THREADS_MAX) as pool:
                    list(pool.map(self._check, sorted(states.files)))
                found = found or Generation(name, states)
                if index.learner:
                    self._check(index.learner)
            except (OSError, PeerError, ValueError) as error:
                log.warning("checkpoint_damaged", path=str(self._folder / name), error=str(error))
            else:
                return Generation(name, index)
        return found

    @property
    def last(self) -> Generation | None:
        """`newest`, read only once."""
        return self._newest or self.newest()

    def keep_newest(self) -> None:
        """Make room: remove all generations but the newest, before a part of the next is written. Raises LocalError."""
        with disk_errors(f"{self._folder} cannot be written"):
            self._remove_all_but(self.last)

    @property
    def unfinished(self) -> Path:
        """The folder where files are written before they are renamed."""
        return self._folder / "unfinished"

    def stage(self, fragments: Sequence[Held], only: Container[int] | None = None) -> tuple[SavedFragment, ...]:
        """Write the new states for the following `commit`. Raises LocalError.

        Writes `only` these fragments if there is an earlier save; the others stay as they were saved.
        """
        with disk_errors(f"no checkpoint can be written to {self._folder} (earlier ones are untouched)"):
            before = self.last
            self._remove_all_but(before)
            with empty_folder(self.unfinished) as folder:
                return tuple(
                    self._stage_fragment(folder, at, one, before)
                    if before is None or only is None or at in only
                    else before.index.fragments[at]
                    for at, one in enumerate(fragments)
                )

    def commit(
        self,
        staged: Sequence[SavedFragment],
        learner: Path | None,
        learner_behind: bool = False,
        learner_heads: Sequence[bytes] | None = None,
    ) -> int:
        """Make what was staged last the newest generation; return how many bytes were new, all of them on disk.

        Raises LocalError, and the previous generation is then untouched. `learner` is a file that is moved here; None
        for none, or with `learner_behind` for the one that was saved last. `learner_heads` are of the moment at which
        it was written, None if that is the moment of all that was staged.
        """
        with disk_errors(f"no checkpoint can be written to {self._folder} (earlier ones are untouched)"):
            before, heads = self.last, tuple(one.head for one in staged)
            with empty_folder(self.unfinished) as folder:
                name, of_learner = "", heads if learner_heads is None else tuple(learner_heads)
                if learner is not None:
                    name = self._take(learner)
                elif learner_behind and before is not None:
                    name, of_learner = before.index.learner, before.index.heads_of_learner
                elif learner_behind:
                    of_learner = ()
                index = Index(
                    protocol_major=PROTOCOL_MAJOR,
                    protocol_minor=PROTOCOL_MINOR,
                    run_id=self._run_id,
                    fragments=tuple(staged),
                    learner=name,
                    learner_behind=of_learner != heads,
                    learner_heads=of_learner,
                )
                after = self._publish_index(folder / "index", index)
            with self._settling:
                self._newest = after
            self._remove_all_but(after, before)
            new = after.index.files - (set() if before is None else before.index.files)
            return sum((self._folder / name).stat().st_size for name in new)

    # -- one file

    def _stage_fragment(self, folder: Path, number: int, held: Held, before: Generation | None) -> SavedFragment:
        if not held.version:
            return SavedFragment(version=0, head=held.head)
        known = None if before is None else before.index.fragments[number]
        if known is not None and known.file and (known.version, known.head) == (held.version, held.head):
            return known
        temporary = folder / "anchor"
        name = f"anchor-{number:04d}-{write_tensors(temporary, tensors_of(held.state))}.safetensors"
        publish(temporary, self._folder / name)
        return SavedFragment(version=held.version, head=held.head, file=name)

    def _take(self, learner: Path) -> str:
        name = f"learner-{_file_digest(learner)}.safetensors"
        publish(learner, self._folder / name)
        return name

    def _publish_index(self, temporary: Path, index: Index) -> Generation:
        data = index.to_wire()
        numbers = [int(name.split("-")[1]) for name in self._indices()]
        name = f"generation-{max(numbers, default=0) + 1:012d}-{hashlib.sha256(data).hexdigest()}"
        temporary.write_bytes(data)
        publish(temporary, self._folder / name)
        return Generation(name, index)

    def _read(self, name: str) -> Index:
        path = self._folder / name
        with path.open("rb") as file:
            data = file.read(INDEX_BYTES_MAX)
        if hashlib.sha256(data).hexdigest() != name.rpartition("-")[2]:
            raise ValueError("the content is not what was written")
        _check_major(FormatVersion.from_wire(data, INDEX_BYTES_MAX).protocol_major, path)
        index = Index.from_wire(data, INDEX_BYTES_MAX)
        if index.run_id != self._run_id:
            raise ValueError("it is of another run")
        return index

    def _check(self, name: str) -> None:
        """Raise ValueError or OSError unless this file is whole."""
        match = _FILE_NAME.fullmatch(name)
        if match is None or _file_digest(self._folder / name) != match[1]:
            raise ValueError(f"the content of {name} is not what was written")

    # -- all files

    def _indices(self) -> list[str]:
        """Return the names of all indices, oldest first."""
        if not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if _INDEX_NAME.fullmatch(path.name))

    def _remove_all_but(self, *generations: Generation | None) -> None:
        """Remove all files that these generations do not name."""
        kept = [one for one in generations if one is not None]
        names = {one.name for one in kept}.union(*(one.index.files for one in kept))
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            ours = _INDEX_NAME.fullmatch(path.name) or _FILE_NAME.fullmatch(path.name)
            if ours and path.name not in names:
                path.unlink()


def _check_major(major: int, path: Path) -> None:
    """Raise UsageError if another major version wrote the file."""
    if major != PROTOCOL_MAJOR:
        raise UsageError(
            f"{path} was written under protocol {major}, and this is a muster of protocol {PROTOCOL_MAJOR}; "
            "install the version that wrote it or start with an empty directory"
        )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""The Python standard library's own source, which every machine that runs this program has."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dht.errors import UsageError
from dht.statement import digest_of
from peer.data.readers import Block
from peer.data.tally import CorpusTally, Loading

FILE_BYTES_MAX = 4 << 20
FILES_MAX = 20_000

# tests and additions by distributions are absent on many machines; pydoc_data is generated prose, not source
_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "pydoc_data"}
)
# written when this Python was built: they contain paths of the build machine
_SKIPPED_PREFIXES = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustomize")


def library_root() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Yield relative path and content of every source file, sorted by path."""
    paths: list[str] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS and not name.startswith("config-")]
        sources = (name for name in names if name.endswith(".py") and not name.startswith(_SKIPPED_PREFIXES))
        paths.extend(Path(folder, name).relative_to(root).as_posix() for name in sources)
    if len(paths) > FILES_MAX:
        raise UsageError(f"{root} holds {len(paths)} source files, more than {FILES_MAX}: not a standard library")
    for path in sorted(paths):
        try:
            content = (root / path).read_bytes()
        except OSError as error:
            raise UsageError(f"the source file {path} of this Python cannot be read: {error.strerror}") from None
        if len(content) <= FILE_BYTES_MAX:
            yield path, content


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """The standard library's files as the documents of a corpus, for a run with a tokenizer."""

    root: Path
    size_bytes: int = 0

    def name(self, loading: Loading) -> str:
        """Return the name, which follows from the content."""
        loading.tell("looking at the text", None)
        hasher = hashlib.sha256()
        for path, content in source_files(self.root):
            hasher.update(digest_of(path.encode(), content))
        return hasher.hexdigest()

    def blocks(self, tally: CorpusTally) -> Iterator[Block]:
        """Yield one block per file."""
        for _, content in source_files(self.root):
            tally.read_bytes += len(content)
            if text := content.decode(errors="replace"):
                yield Block(text)

"""The files of an export and their signed listing, by which the exporter answers for every byte.

Certificates prove the weights (`coordinator.chain.proof`), and the manifest fixes configuration and tokenizer. The
listing covers these files too, and the model card, for which there is only the exporter's word.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dht.errors import LocalError
from dht.statement import Digest
from dht.wire import PROTOCOL_MAJOR, Wire

WEIGHTS = "model.safetensors"
MANIFEST = "muster-manifest.bin"
PROOF = "muster-proof.bin"
LISTING = "muster-listing.bin"
CARD = "README.md"
LATEST = "latest"  # a link to the newest export, beside the exports of one run
LISTING_BYTES_MAX = 1 << 18
FILES_MAX = 64
UNIX_SECONDS_MAX = 253_402_300_799  # the end of the year 9999, the last that `datetime` can hold
STATEMENT_KIND = "export"

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class ListedFile(Wire):
    """The name, size and SHA-256 of one file."""

    name: FileName
    size_bytes: int = Field(ge=0)
    digest: Digest


class Listing(Wire):
    """All files of an export, ordered by name, except the listing itself."""

    protocol_major: int = PROTOCOL_MAJOR
    files: tuple[ListedFile, ...] = Field(min_length=1, max_length=FILES_MAX)
    written_unix_seconds: int = Field(ge=0, le=UNIX_SECONDS_MAX)


def list_files(folder: Path, written_unix_seconds: int) -> Listing:
    """List the files in this folder; raises LocalError if one cannot be read."""
    try:
        files = tuple(_listed(path) for path in sorted(folder.iterdir()))
    except OSError as error:
        raise LocalError(f"{folder} cannot be read: {error.strerror}") from None
    return Listing(files=files, written_unix_seconds=written_unix_seconds)


def difference(folder: Path, listing: Listing) -> str | None:
    """Say why this folder does not hold exactly the listed files, or None. Names that begin with a dot do not count.

    Unlisted files are refused: libraries load adapters, weights and code of many names from a model's folder.
    """
    listed = {one.name: one for one in listing.files}
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {LISTING}
    for name in sorted(found ^ set(listed)):
        return f"{name} is missing" if name in listed else f"{name} does not belong to it"
    for name, expected in listed.items():
        if not (folder / name).is_file() or _listed(folder / name) != expected:
            return f"{name} was changed after it was written"
    return None


def _listed(path: Path) -> ListedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        return ListedFile(name=path.name, size_bytes=file.tell(), digest=digest)

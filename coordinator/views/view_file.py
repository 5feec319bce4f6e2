"""The file by which an observer hands its newest view to pages and terminals; it always holds a whole view."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from coordinator.views.network_view import VIEW_BYTES_MAX, NetworkView
from dht.errors import LocalError


def write_view(path: Path, view: NetworkView) -> None:
    """Replace the view in `path` atomically: a reader finds the old one or the new one. Raises LocalError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(view.model_dump_json(), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LocalError(f"the view {path} cannot be written: {error.strerror}") from None


def read_view(path: Path) -> NetworkView:
    """Read the view in `path`; raises LocalError if there is none, or none that this version understands."""
    try:
        with path.open("rb") as file:
            data = file.read(VIEW_BYTES_MAX + 1)
    except OSError as error:
        raise LocalError(f"the view {path} cannot be read: {error.strerror}") from None
    if len(data) > VIEW_BYTES_MAX:
        raise LocalError(f"the view {path} is larger than {VIEW_BYTES_MAX >> 20} MiB")
    try:
        return NetworkView.model_validate_json(data)
    except ValidationError:
        raise LocalError(f"the view {path} is damaged, or of another version of Muster") from None

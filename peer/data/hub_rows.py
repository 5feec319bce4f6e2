"""Rows of a Hugging Face Hub data set, streamed; a data set's own script never runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coordinator.run.data_spec import DataSpec
from dht.errors import UsageError
from peer.data.readers import Block, row_block
from peer.data.tally import CorpusTally, Loading
from peer.data.tokens import Encoder

TRIES_MAX = 12  # in a row without receiving any row
WAIT_SECONDS_MAX = 300
TOO_MANY_REQUESTS = 429
REASON_CHARACTERS = 300
ROWS_AT_ONCE = 256
TOLD_SECONDS = 5.0  # between messages that we wait


@dataclass(slots=True)
class _Batch:
    """The next rows, up to an error or the end."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    error: Exception | None = None
    ended: bool = False

    def fill(self, source: Iterator[dict[str, Any]]) -> None:
        try:
            while len(self.rows) < ROWS_AT_ONCE:
                self.rows.append(next(source))
        except StopIteration:
            self.ended = True
        except Exception as error:  # noqa: BLE001 - errors of the library, of HTTP libraries, and of sockets
            self.error = error


class HubRows:
    """The rows of one data set. After a busy hub's refusal, reading continues behind the rows already received."""

    size_bytes = 0  # not known in advance

    def __init__(self, spec: DataSpec, encoder: Encoder, loading: Loading) -> None:
        """Raises UsageError if `spec.path` does not name a data set on the Hub."""
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", spec.path) or Path(spec.path).exists():
            # `datasets` would prefer a folder of that name, and no manifest may choose a folder of ours to train on
            raise UsageError(
                f"{spec.path!r} is no name of a data set on the Hub, as OWNER/NAME, or there is a folder so called"
            )
        self._spec = spec
        self._encoder = encoder
        self._loading = loading

    def name(self, loading: Loading) -> str:
        """Return the commit's name, as its rows never change; empty without a commit, so that nothing is cached."""
        spec = self._spec
        return f"{spec.path} {spec.subset} {spec.revision}" if spec.revision else ""

    def blocks(self, tally: CorpusTally) -> Iterator[Block]:
        """Yield every row that has text; raises UsageError with the reason that `datasets` gives."""
        rows = tries = 0
        while tries < TRIES_MAX:
            try:
                for row in self._heard(rows):
                    rows, tries = rows + 1, 0
                    block = row_block(self._field(row), self._encoder, tally)
                    if block is not None:
                        yield block
                return
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - errors of the library, of HTTP libraries, and of sockets
                seconds = busy_seconds(error, tries)
                if seconds is None or tries + 1 == TRIES_MAX:
                    raise UsageError(self._failed(error)) from None
                tries += 1
                self._wait(seconds)

    def _heard(self, skipped: int) -> Iterator[dict[str, Any]]:
        """Yield the rows after the first `skipped`; while the library retries, for minutes, report that we wait."""
        source = iter(self._rows(skipped))
        batch = _Batch()
        while not batch.ended:
            batch = _Batch()
            filling = threading.Thread(target=batch.fill, args=(source,), daemon=True)
            filling.start()
            while filling.is_alive():
                filling.join(TOLD_SECONDS)
                if filling.is_alive():
                    self._loading.tell("waiting for the Hugging Face Hub", None)
            yield from batch.rows
            if batch.error is not None:
                raise batch.error

    def _rows(self, skipped: int) -> Iterable[dict[str, Any]]:
        try:
            import datasets
        except ImportError:
            raise UsageError("data sets of the Hub need `datasets`; install it with: pip install datasets") from None
        spec = self._spec
        found = datasets.load_dataset(
            spec.path, spec.subset or None, split="train", streaming=True, revision=spec.revision
        )
        return found.skip(skipped) if skipped else found  # type: ignore[no-any-return]

    def _field(self, row: dict[str, Any]) -> object:
        if self._spec.field not in row:
            fields = ", ".join(sorted(map(str, row)))
            raise UsageError(f"the data set {self._spec.path} has no field {self._spec.field!r}, but {fields}")
        return row[self._spec.field]

    def _failed(self, error: Exception) -> str:
        reason = " ".join(str(error).split())[:REASON_CHARACTERS]
        return (
            f"the data set {self._spec.path} cannot be had from the Hugging Face Hub: {type(error).__name__}: {reason}"
            "; check the name and the network, or bring files of your own"
        )

    def _wait(self, seconds: int) -> None:
        clock = threading.Event()
        for left in range(seconds, 0, -1):
            self._loading.tell(f"the Hub is busy and asks us to wait for {left} s", None)
            clock.wait(1)


def busy_seconds(error: BaseException | None, tries: int) -> int | None:
    """Return how many seconds a hub with too many requests asks us to wait; None for any other error."""
    seen = 0
    while error is not None and seen < REASON_CHARACTERS:  # a chain of causes may be circular
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None) or getattr(error, "status", None)  # of requests, of aiohttp
        if status == TOO_MANY_REQUESTS:
            asked: int = 2**tries
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                asked = int(response.headers["retry-after"])  # type: ignore[union-attr]
            return min(max(asked, 0), WAIT_SECONDS_MAX)
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None

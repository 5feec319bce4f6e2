"""A command's log: JSON lines in one file of bounded size. Only this module configures logging."""

from __future__ import annotations

import logging
import logging.handlers
import math
import sys
import tempfile
from collections import Counter
from pathlib import Path

import structlog
from structlog.typing import Processor

from peer.machine.paths import holding_data

LOG_NAME = "muster.log"
LOG_BYTES_MAX = 4 << 20
LOGS_KEPT = 2
CHATTY = ("multiaddr", "asyncio")  # log ten lines for every address that is read
HIVEMIND = "hivemind"
REPEAT_SECONDS = 60.0


class Repeats(logging.Filter):
    """Passes each message of hivemind once a minute, with the number left out before: strangers can trigger warnings.

    Two messages are the same if they come from the same line of code with the same kind of error.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, int, type | None], float] = {}
        self._left_out: Counter[tuple[str, int, type | None]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != HIVEMIND:
            return True
        kind = record.name, record.lineno, record.exc_info[0] if record.exc_info else None
        if record.created < self._said.get(kind, -math.inf) + REPEAT_SECONDS:
            self._left_out[kind] += 1
            return False
        self._said[kind] = record.created
        if left_out := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} (and {left_out} more like it before)", ()
        return True


def configure(data_directory: Path, verbose: bool = False) -> None:
    """Log to `muster.log` in this directory, created if needed; with `verbose`, log more, and to stderr too.

    Raises UsageError if the directory cannot be written.
    """
    with holding_data(data_directory):
        data_directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = logging.handlers.RotatingFileHandler(
            data_directory / LOG_NAME, maxBytes=LOG_BYTES_MAX, backupCount=LOGS_KEPT, encoding="utf-8"
        )
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper("iso"),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    handlers: list[logging.Handler] = [file, logging.StreamHandler(sys.stderr)] if verbose else [file]
    for handler in handlers:
        handler.setFormatter(formatter)
    file.addFilter(Repeats())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=handlers, force=True)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # with a full disk lines are lost; their tracebacks must not fill a terminal


def newest_lines(path: Path, count: int) -> list[str]:
    """Return the newest lines of a log, also from the file before it if needed; raises FileNotFoundError."""
    return newest_of(path.read_text(encoding="utf-8", errors="replace").splitlines(), path, count)


def newest_of(lines: list[str], path: Path, count: int) -> list[str]:
    """Return the newest of these lines of the log at this path, also from the file before it if needed."""
    older = path.with_name(f"{path.name}.1")
    if len(lines) < count and older.exists():
        lines = older.read_text(encoding="utf-8", errors="replace").splitlines() + lines
    return lines[max(0, len(lines) - count) :]


def silence_libraries() -> None:
    """Remove the handlers that imported libraries installed, so that their messages go to the log.

    hivemind sets its level on import, so it is set to warnings here.
    """
    logging.getLogger(HIVEMIND).setLevel(logging.WARNING)
    for logger in logging.Logger.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and logger.handlers:
            logger.handlers.clear()
            logger.propagate = True


def record_crash(error: Exception) -> Path:
    """Write the traceback to the log, or to a new file if none is configured; return that file's path."""
    files = [one for one in logging.getLogger().handlers if isinstance(one, logging.handlers.RotatingFileHandler)]
    if not files:
        configure(Path(tempfile.mkdtemp(prefix="muster-crash-")))
        return record_crash(error)
    logging.getLogger("muster").error("crash", exc_info=error)
    return Path(files[0].baseFilename)

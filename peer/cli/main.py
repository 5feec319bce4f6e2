"""The entry point of `muster`, which turns every error into one sentence and an exit code.

Exit codes: 0 it worked, 1 it failed, 2 it was used wrongly. Only the standard library is imported before the version
of Python is checked, because the rest may not compile on another one.
"""

from __future__ import annotations

import io
import logging
import sys
from itertools import zip_longest

from peer.learner.imports import refuse_kernels
from peer.machine.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE

PYTHON_OLDEST = (3, 11)
PYTHON_NEWEST = (3, 13)
INTERRUPTED = 130  # what the parser of the command line makes of a KeyboardInterrupt in a command


def main() -> None:
    """Entry point of the `muster` script and of `python -m peer.cli`."""
    refuse_kernels()
    sys.exit(run(sys.argv[1:], sys.version_info[:2]))


def run(arguments: list[str], python: tuple[int, int]) -> int:
    """Run one command line under this version of Python; returns the exit code, and never raises."""
    _write_whatever_can_be_written()
    _hide_library_warnings()
    if not PYTHON_OLDEST <= python <= PYTHON_NEWEST:
        oldest, newest = (".".join(map(str, version)) for version in (PYTHON_OLDEST, PYTHON_NEWEST))
        here = ".".join(map(str, python))
        return _complain(f"Muster needs Python {oldest} to {newest}, and this is {here}", EXIT_USAGE)
    if any(_is_undecodable(argument) for argument in arguments):
        return _complain("an argument is no text in UTF-8; give it in that encoding", EXIT_USAGE)
    try:
        from peer.cli.commands import app

        code = app(args=_without_label(arguments), prog_name="muster", standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else EXIT_OK
    except KeyboardInterrupt:
        return _complain("stopped before it was done", EXIT_FAILED)
    except BrokenPipeError:  # the reader of our output has gone
        sys.stdout = None  # so that Python does not flush it once more at exit
        return EXIT_FAILED
    except ModuleNotFoundError as error:
        return _complain(f"{error.name} is not installed; set Muster up again with: make install", EXIT_FAILED)
    except Exception as error:  # noqa: BLE001 - no user shall see a traceback
        return _explain(error)


def _without_label(arguments: list[str]) -> list[str]:
    """Drop the word `invite:` before an invite: `muster host` prints both, and people paste both."""
    return [
        word
        for word, after in zip_longest(arguments, arguments[1:], fillvalue="")
        if not (word == "invite:" and after.startswith("muster"))
    ]


def _write_whatever_can_be_written() -> None:
    """Make a terminal that is not UTF-8 show `?` for a character that it lacks, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _hide_library_warnings() -> None:
    """Hide libraries' warnings from the terminal of a command without a log: users cannot act on them."""
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.ERROR)


def _is_undecodable(argument: str) -> bool:
    """Whether the argument holds bytes that are invalid in the terminal's encoding; Python keeps them as surrogates."""
    return any("\ud800" <= character <= "\udfff" for character in argument)


def _explain(error: Exception) -> int:
    """Print a sentence for this error; returns its exit code."""
    from dht.errors import MusterError, UsageError

    if isinstance(error, MusterError):
        return _complain(str(error), EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED)
    if hasattr(error, "format_message"):  # what the parser of the command line raises
        from peer.cli.help import misuse

        return _complain(misuse(error), EXIT_USAGE)
    from peer.machine.log import record_crash

    log = record_crash(error)
    return _complain(
        f"this is a bug in Muster ({type(error).__name__}); please report it with the file {log}", EXIT_FAILED
    )


def _complain(sentence: str, code: int) -> int:
    from peer.machine.text import printable

    sys.stderr.write(printable(" ".join(sentence.split())) + "\n")  # the sentence may quote a stranger
    return code


if __name__ == "__main__":
    main()

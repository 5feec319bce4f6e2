"""The event tape of a swarm of real peers: joins the part of each peer when all have ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from dht.errors import LocalError, UsageError
from peer.rounds.tape import TapeLine

PART_NAME = "tape.jsonl"  # in a peer's data directory


def refuse_earlier(directories: Iterable[Path]) -> None:
    """Raise UsageError if one of these data directories holds an earlier run, which is on no tape of ours."""
    for directory in directories:
        if any(directory.glob("run-*")):
            raise UsageError(f"a tape begins with the run, and {directory} holds an earlier one; name another --data")


def join_parts(parts: Sequence[Path], path: Path) -> None:
    """Write the lines of all parts to `path`, in the order in which they happened; raises LocalError.

    `at` is the time in seconds on this machine's clock, which all processes share, so no line comes before its cause.
    The torn last line of a killed peer is left out, and so is a version that another peer has written earlier. Lines
    without `at` are the heads of the parts.
    """
    heads: list[TapeLine] = []
    places: list[tuple[float, int, int, str]] = []  # time, part, offset in bytes, digest of a version
    temporary = path.with_name(path.name + ".new")
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(part.open("rb")) for part in parts if part.exists()]
            for number, file in enumerate(files):
                start = 0
                for text in file:
                    if text.endswith(b"\n"):
                        line = json.loads(text)
                        if "at" in line:
                            told = line["digest"] if line["event"] == "version" else ""
                            places.append((line["at"], number, start, told))
                        else:
                            heads.append(line)
                    start += len(text)
            out = stack.enter_context(temporary.open("wb"))
            out.write(json.dumps(_joined(heads)).encode() + b"\n")
            seen: set[str] = set()
            for _, number, start, told in sorted(places):
                if told not in seen:
                    files[number].seek(start)
                    out.write(files[number].readline())
                seen |= {told} - {""}
        temporary.replace(path)
    except OSError as error:
        raise LocalError(f"the tape cannot be written to {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise LocalError(f"a peer's part of the tape is damaged: {error}") from None


def _joined(heads: Sequence[TapeLine]) -> TapeLine:
    if not heads or any(head["manifest"] != heads[0]["manifest"] for head in heads):
        raise LocalError("the peers of this swarm took part in no run, or in several: there is no tape")
    return {**heads[0], "peers": [peer for head in heads for peer in head["peers"]]}

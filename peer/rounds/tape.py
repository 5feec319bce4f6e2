"""The event tape of a run as JSON lines: which peer did what at which step (DiLoCo 2604.21428 §E.1).

The first line holds the manifest. With it, the tape is all that `peer.lab.replay` needs to compute the same parameters
again: snapshots, versions with their members and weights, adoptions, failures, returns, checkpoints. The lab writes one
tape as it goes. Each real peer writes a part (`peer.rounds.tape_recorder`), and `peer.rounds.tape_parts` joins the
parts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Adopt, Encode, Included, IncludedUnseen, NotIncluded, Returned, Tell
from dht.errors import LocalError, UsageError
from dht.identity import PeerId

TapeLine = dict[str, Any]
Record = Callable[[TapeLine], None]
"""A function that takes one line as it happens."""


def keep_no_tape(_line: TapeLine) -> None:
    """Drop the line: a `Record` for runs without a tape."""


class TapeWriter:
    """Writes lines as they come; use as a context manager. Raises LocalError if the disk refuses.

    Every line is flushed at once. If the process is killed, at most the last line is torn.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(f"no tape can be written to {path}: {error.strerror}") from None

    def __enter__(self) -> TapeWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, line: TapeLine) -> None:
        """Append one line."""
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise LocalError(f"the tape cannot be written: {error.strerror}") from None


def read_tape(path: Path) -> Iterator[TapeLine]:
    """Yield the lines of a tape in order; raises UsageError if the file is not a tape."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                line = json.loads(text)
                if not isinstance(line, dict) or "event" not in line:
                    raise UsageError(f"line {number} of {path} is no line of an event tape")
                yield line
    except OSError as error:
        raise UsageError(f"the tape {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is no event tape; `muster lab --tape` and `muster swarm --tape` write one") from None


# -- lines that the lab and real peers share


def snapshot_line(peer: PeerId, action: Encode, step: int, honest_steps: Mapping[PeerId, int]) -> TapeLine:
    """Return the line for a contribution of this peer, made after `step` steps.

    If the contribution is a lie about honest peers, `honest_steps` says after how many of their steps.
    """
    return {
        "event": "snapshot",
        "peer": peer,
        "step": step,
        "fragment": action.key.fragment,
        "version": action.key.version,
        "roster": action.key.roster_id.hex(),
        "partitions": action.partitions,
        "expected": action.expected,
        "honest_steps": dict(honest_steps),
    }


def version_line(certificate: Certificate) -> TapeLine:
    """Return the line for a certified version, with its members and their counters."""
    return {
        "event": "version",
        "fragment": certificate.fragment,
        "version": certificate.version,
        "digest": certificate.digest.hex(),
        "members": [one.model_dump(mode="json") for one in certificate.outcome.contributors],
        "certificate": certificate.to_wire().hex(),
    }


def told_line(peer: PeerId, told: Tell) -> TapeLine:
    """Return the line for an event that this peer's core reports about a version, as in a real peer's log."""
    return {"event": told.event, "peer": peer, "fragment": told.fragment, "version": told.version, **told.details}


def adoption_line(peer: PeerId, action: Adopt, step: int, effective_step: int, dropped: bool) -> TapeLine:
    """Return the line for an adoption that was decided after `step` steps and took effect after `effective_step`.

    `dropped` says that the learner's work beyond the anchor was dropped.
    """
    return {
        "event": "adoption",
        "peer": peer,
        "step": step,
        "effective_step": effective_step,
        "digest": action.certificate.digest.hex(),
        "applied": action.applied is not None,
        "included": action.snapshot is not None,
        "counted": _counted(action),
        "frozen": list(action.frozen),
        "returned": [action.ours.steps, action.ours.tokens] if isinstance(action.ours, Returned) else None,
        "dropped": dropped,
    }


def _counted(action: Adopt) -> list[bool]:
    match action.ours:
        case Included(counted=counted):
            return list(counted)
        case IncludedUnseen():
            return [True] * len(action.certificate.outcome.partitions)
        case NotIncluded() | Returned():
            return [False] * len(action.frozen)

"""The part that one real peer adds to the event tape of its swarm (`muster swarm --tape`), in its own file.

The learner names every step number with its answer, so each is exactly the step at which a change took effect. The
replay needs no clock; `at` only orders the lines of different peers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from safetensors.torch import load_file

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Adopt, Encode
from coordinator.run.manifest import Manifest
from dht.identity import PeerId
from peer.learner.messages import Obeyed, Ready
from peer.machine.local_files import LocalFiles
from peer.model.flat_parameters import parameters_digest
from peer.rounds.tape import TapeLine, TapeWriter, adoption_line, snapshot_line, version_line


class TapeRecorder:
    """Records this peer's events; without a writer it records nothing. Raises LocalError if the disk refuses."""

    def __init__(
        self, peer: PeerId, writer: TapeWriter | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peer = peer
        self._writer = writer
        self._clock = clock

    @classmethod
    def begin(cls, path: Path, manifest: Manifest, me: PeerId, files: LocalFiles) -> TapeRecorder:
        """Begin a new part with its head line; raises UsageError."""
        writer = TapeWriter(path)
        writer.write(
            {
                "event": "swarm",
                "manifest": manifest.to_wire().hex(),
                "peers": [me],
                "attacks": {},
                "dirichlet_alpha": None,
                "corpus": files.corpus,
                "tokenizer": files.tokenizer,
            }
        )
        return cls(me, writer)

    def close(self) -> None:
        """Close the part."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, line: TapeLine, at: float | None = None) -> None:
        if self._writer is not None:
            self._writer.write({**line, "at": self._clock() if at is None else at})

    # -- the learner

    def life(self, ready: Ready, held: Sequence[bytes | None], loads: bool) -> None:
        """Record that the learner is ready, and how it computes.

        `held` are the versions of the states that we hold, by fragment. `loads` says that the learner begins with them.
        """
        self._write(
            {
                "event": "life",
                "peer": self._peer,
                "step": ready.step,
                "device": ready.device,
                "threads": ready.threads,
                "sequences": ready.sequences,
                "recompute": ready.recompute,
                "held": [None if digest is None else digest.hex() for digest in held],
                "loads": loads,
            }
        )

    def obeyed(self, told: Obeyed) -> None:
        """Record that the learner follows the run's progress, or uses other threads, from its next step on."""
        common = {"peer": self._peer, "step": told.at_step}
        if told.progress is not None:
            progress = told.progress
            self._write({"event": "progress", **common, "steps": progress.steps, "window": progress.window})
        if told.threads is not None:
            self._write({"event": "threads", **common, "threads": told.threads})

    async def checkpoint(self, step: int, learner_file: Path) -> None:
        """Record that the learner has written its state; the last such line is its final state."""
        if self._writer is None:
            return
        at = self._clock()  # events during the read belong after it
        digest = await asyncio.to_thread(lambda: parameters_digest(load_file(learner_file)))
        self._write({"event": "checkpoint", "peer": self._peer, "step": step, "parameters": digest.hex()}, at)

    # -- rounds

    def snapshot(self, action: Encode, step: int) -> None:
        """Record our coming contribution."""
        self._write(snapshot_line(self._peer, action, step, {}))

    def version(self, certificate: Certificate) -> None:
        """Record that we learned of a version; other peers may have learned of it earlier."""
        if self._writer is not None:  # else its certificate need not be encoded
            self._write(version_line(certificate))

    def adoption(self, action: Adopt, step: int, dropped: bool) -> None:
        """Record that the learner has taken over a version."""
        self._write(adoption_line(self._peer, action, step, step, dropped))

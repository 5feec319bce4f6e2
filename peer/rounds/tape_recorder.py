"""What one real peer adds to the event tape of its swarm (`muster swarm --tape`): its part, a file of its own.

Every step in it is one that the learner has told with its answer, so it is exactly the step at which something came
into effect; the replay needs no clock. `at` only says in which order the peers' lines belong.
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
    """Without a writer it keeps nothing. Writing raises LocalError if the disk refuses."""

    def __init__(
        self, peer: PeerId, writer: TapeWriter | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._peer = peer
        self._writer = writer
        self._clock = clock

    @classmethod
    def begin(cls, path: Path, manifest: Manifest, me: PeerId, files: LocalFiles) -> TapeRecorder:
        """An empty part with its head; raises UsageError."""
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
        """Nothing happens any more."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, line: TapeLine, at: float | None = None) -> None:
        if self._writer is not None:
            self._writer.write({**line, "at": self._clock() if at is None else at})

    # -- the learner

    def life(self, ready: Ready, held: Sequence[bytes | None], loads: bool) -> None:
        """The learner is ready, and how it computes. `held`: the versions of which we hold the states, by fragment.

        `loads`: these are what it begins with.
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
        """The learner follows the run's progress, or computes with other threads, from its next step on."""
        common = {"peer": self._peer, "step": told.at_step}
        if told.progress is not None:
            progress = told.progress
            self._write({"event": "progress", **common, "steps": progress.steps, "window": progress.window})
        if told.threads is not None:
            self._write({"event": "threads", **common, "threads": told.threads})

    async def checkpoint(self, step: int, learner_file: Path) -> None:
        """The learner has written its state; the last one is what it ends with."""
        if self._writer is None:
            return
        at = self._clock()  # what happens while we read belongs after it
        digest = await asyncio.to_thread(lambda: parameters_digest(load_file(learner_file)))
        self._write({"event": "checkpoint", "peer": self._peer, "step": step, "parameters": digest.hex()}, at)

    # -- rounds

    def snapshot(self, action: Encode, step: int) -> None:
        """What we are about to contribute."""
        self._write(snapshot_line(self._peer, action, step, {}))

    def version(self, certificate: Certificate) -> None:
        """We have come to know of a version; others may have before."""
        if self._writer is not None:  # else its certificate need not be encoded
            self._write(version_line(certificate))

    def adoption(self, action: Adopt, step: int, dropped: bool) -> None:
        """The learner has taken over a version."""
        self._write(adoption_line(self._peer, action, step, step, dropped))

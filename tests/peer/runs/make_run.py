"""Freezes the folder of a run as this version writes it, so that later minor versions can be tested to continue it.

    python -m tests.peer.runs.make_run

writes `tests/peer/runs/vMAJOR.MINOR/`: the folder of the first of two peers after a few versions of a tiny model, with
the learner's 8-bit optimizer in it, and beside it `expected.json`, with the results of this version. Run it before
`PROTOCOL_MINOR` grows, on the last commit of the old version. The folder of a released version is never rewritten.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from coordinator.run.compatibility import OURS
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import RunConfig
from coordinator.run.model_spec import ModelSpec
from peer.node.checkpointer import Checkpointer
from peer.storage.record_log import RecordLog
from peer.storage.run_directory import RunDirectory
from tests.peer.rounds.test_driver import Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual

FOLDER = Path(__file__).parent / f"v{OURS}"
EXPECTED = "expected.json"
STEPS = 24  # about six versions of each fragment
STEPS_AFTER = 3


def tiny() -> RunConfig:
    """Return a run whose embedding is just large enough for 8-bit moments."""
    model = ModelSpec(hidden_size=16, layers=1, heads=2, intermediate_size=16)
    return config_of().model_copy(update={"model": model, "inner": InnerSpec(warmup_steps=0)})


async def keep(peer: Peer, directory: RunDirectory, votes: RecordLog) -> None:
    """Write what a peer writes: manifest, votes, certificates, checkpoint."""
    directory.keep_manifest(peer.driver.engine.core.manifest)
    directory.vote_log.append(*votes.read())
    captured = await Checkpointer(directory, peer.driver, peer.presence).capture()
    directory.make_room()
    save_file(peer.learner.learner.export_state(), directory.learner_file)
    directory.commit(directory.stage(captured), directory.learner_file)


async def make(folder: Path) -> dict[str, object]:
    """Train, and keep the first peer's folder; return what a later version must find there."""
    with tempfile.TemporaryDirectory() as temporary:
        swarm = Swarm(tiny(), 2, Path(temporary))
        await swarm.start()
        await swarm.train(STEPS)
        peer, learner = swarm.peers[0], swarm.peers[0].learner.learner
        directory = RunDirectory(folder, peer.driver.engine.core.manifest.run_id)
        await keep(peer, directory, RecordLog(Path(temporary) / peer.identity.peer_id))
        machines = peer.driver.engine.machines
        expected = {
            "run_id": peer.driver.engine.core.rules.run_id.hex(),
            "peer": peer.identity.peer_id,
            "versions": [machine.held for machine in machines],
            "states": [machine.held_chain.state.hex() for machine in machines],
            "votes": len(directory.vote_log.read()),
            "steps": learner.step_count,
            "losses": [learner.step().loss for _ in range(STEPS_AFTER)],
        }
        await swarm.close()
    return expected


def main() -> None:
    torch.set_num_threads(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    expected = run_virtual(make(FOLDER))
    (FOLDER / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""A tape of real peers, whose drivers and tensor work run here in virtual time, replays to the same parameters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coordinator.core.events import PresenceSeen
from coordinator.core.events import Progress as StepsMade
from coordinator.run.manifest import Manifest, OuterSpec
from dht.errors import LocalError, UsageError
from dht.identity import Identity
from dht.statement import digest_of
from peer.cli import main as cli
from peer.data.windows import training_windows
from peer.lab.replay import TapePlayer, replay_tape
from peer.learner.devices import Placement, rounding_key
from peer.learner.learner import make_learner
from peer.learner.messages import CertifiedProgress, Obeyed, Ready
from peer.machine.local_files import NO_FILES
from peer.node.lifecycle import certified_progress
from peer.rounds.tape import TapeLine, TapeWriter
from peer.rounds.tape_parts import join_parts, refuse_earlier
from peer.rounds.tape_recorder import TapeRecorder
from tests.peer.lab import small
from tests.peer.rounds.test_driver import STEP_SECONDS, Peer, Swarm, config_of
from tests.peer.virtual_loop import run_virtual

TEXT = replace(small.text(), digest=digest_of(b"test data"))
READY = Ready(startup_cpu_seconds=0.0, parameters=0, data_digest=TEXT.digest, step=0, device="CPU, 1 thread")
CODED = OuterSpec(merge="rda", contribution_codec="int4", result_codec="int8", error_feedback=True)
CONFIG = config_of().model_copy(update={"outer": CODED})


class TapedSwarm(Swarm):
    """A swarm whose peers write their parts of a tape."""

    async def add(self, identity: Identity, manifest: Manifest) -> Peer:
        peer = await super().add(identity, manifest)
        me = identity.peer_id
        windows = training_windows(TEXT.train, self.config, manifest.run_id, me)
        peer.learner.learner = make_learner(
            self.config, windows, Placement(rounding_key=rounding_key(manifest.run_id, me))
        )
        peer.driver.tape = TapeRecorder.begin(self.folder / f"part-{len(self.peers)}", manifest, me, NO_FILES)
        peer.driver.learner = None  # its process still starts
        return peer

    async def come(self) -> Peer:
        """Add a peer, which hears of the others from now on."""
        peer = await self.add(Identity(digest_of(b"newcomer")), self.peers[0].driver.engine.core.manifest)
        await peer.driver.transport.start(peer.driver.on_frame, peer.driver.on_gone)
        self.peers.append(peer)
        return peer

    async def begin(self, peer: Peer) -> bool:
        """Attach the learner as a node does when its process is ready; returns whether it loads fetched states."""
        await peer.driver.adoptions.settle()
        peer.driver.learner = peer.learner  # type: ignore[assignment]
        loads = any(machine.held for machine in peer.driver.engine.machines)
        peer.driver.tape.life(READY, peer.driver.anchors.all_newest(), loads)
        if loads:
            peer.learner.learner.load_all(torch.cat(peer.driver.anchors.all_anchors()))
        return loads

    async def train(self, steps: int) -> None:
        """Let every learner that has begun make so many steps, at the rate for the progress that its peer knows."""
        for _ in range(steps):
            for peer in self.peers:
                for other in self.peers:
                    if other is not peer:
                        other.driver.feed(PresenceSeen(peer.identity.peer_id, peer.presence()))
                if peer.driver.learner is None:
                    continue
                learner = peer.learner.learner
                versions, window = certified_progress(peer.driver.engine)
                learner.set_progress(versions, window)
                told = CertifiedProgress(steps=versions, window=window)
                peer.driver.tape.obeyed(Obeyed(at_step=learner.step_count, progress=told, threads=1))
                learner.step()
                peer.driver.feed(StepsMade(learner.step_count, 1 / STEP_SECONDS))
            await asyncio.sleep(STEP_SECONDS)

    async def end(self) -> None:
        """End all peers, and join their parts of the tape."""
        for number, peer in enumerate(self.peers):
            saved = self.folder / f"learner-{number}"
            save_file(peer.learner.learner.export_state(), saved)
            await peer.driver.tape.checkpoint(peer.learner.learner.step_count, saved)
            peer.driver.tape.close()
        parts = [self.folder / f"part-{number}" for number in range(len(self.peers))]
        join_parts([*parts, self.folder / "never-started"], self.folder / "tape")


@pytest.fixture(scope="module")
def taped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tape of two peers, and of a third that joins when they have certified versions."""
    swarm = TapedSwarm(CONFIG, 2, tmp_path_factory.mktemp("taped"))

    async def main() -> None:
        await swarm.start()
        for peer in swarm.peers:
            assert not await swarm.begin(peer)
        await swarm.train(24)
        newcomer = await swarm.come()
        await swarm.train(4)
        assert await swarm.begin(newcomer)
        await swarm.train(32)
        await swarm.close()

    run_virtual(main())
    asyncio.run(swarm.end())
    return swarm.folder / "tape"


def read(path: Path) -> list[TapeLine]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(lines: list[TapeLine], path: Path) -> Path:
    with TapeWriter(path) as tape:
        for line in lines:
            tape.write(line)
    return path


def replayed(path: Path) -> TapePlayer:
    return replay_tape(path, TEXT)


def test_every_version_and_every_learner_comes_out_again(taped: Path) -> None:
    lines = read(taped)
    versions = [line for line in lines if line["event"] == "version"]
    assert len({line["digest"] for line in versions}) == len(versions) >= 20
    late = lines[0]["peers"][2]
    assert any(late in {one["peer"] for one in line["members"]} for line in versions)
    found = replayed(taped)
    assert (found.versions, found.learners) == (len(versions), set(lines[0]["peers"]))


@pytest.mark.parametrize(
    ("event", "change", "kind", "told"),
    [
        ("snapshot", {"step": lambda step: step - 1}, LocalError, "came out differently"),
        ("adoption", {"effective_step": lambda step: step + 1}, LocalError, "came out differently"),
        ("progress", {"steps": lambda steps: steps + 4000}, LocalError, "came out differently"),
        ("checkpoint", {"parameters": lambda digest: f"{int(digest[0], 16) ^ 1:x}{digest[1:]}"}, LocalError, "other"),
        ("life", {"loads": lambda loads: not loads}, LocalError, "came out differently"),
        ("life", {"step": lambda _: 8}, UsageError, "came back from a checkpoint"),
        ("life", {"device": lambda _: "NVIDIA H100"}, UsageError, "trained on NVIDIA H100"),
        ("adoption", {"digest": lambda _: "00"}, UsageError, "does not follow"),
        ("version", {"certificate": lambda data: data[:-2]}, UsageError, "does not follow"),
    ],
)
def test_a_tape_that_says_anything_else_is_found_out(
    taped: Path, tmp_path: Path, event: str, change: dict[str, Callable[[object], object]], kind: type, told: str
) -> None:
    """The last peer came late, so every change to its lines has an effect."""
    lines = read(taped)
    late = lines[0]["peers"][2]
    changed = next(line for line in lines if line["event"] == event and line.get("peer", late) == late)
    for field, new in change.items():
        changed[field] = new(changed[field])
    with pytest.raises(kind, match=told):
        replayed(written(lines, tmp_path / "tape"))


@pytest.mark.parametrize("event", ["life", "snapshot", "version"])
def test_a_tape_that_lacks_something_is_refused(taped: Path, tmp_path: Path, event: str) -> None:
    lines = read(taped)
    lines.remove(next(line for line in lines if line["event"] == event))
    with pytest.raises(UsageError, match=r"does not follow|lacks the version before"):
        replayed(written(lines, tmp_path / "tape"))


def test_the_part_of_a_killed_peer_is_joined(taped: Path, tmp_path: Path) -> None:
    """Its part is joined up to the last whole line, because the others' work depends on it."""
    late = taped.with_name("part-2")
    whole = late.read_bytes()
    torn = tmp_path / "part-2"
    torn.write_bytes(whole[: whole.index(b'"checkpoint"') + 20])
    join_parts([taped.with_name("part-0"), taped.with_name("part-1"), torn], tmp_path / "tape")
    found = replayed(tmp_path / "tape")
    assert len(found.learners) == 2
    assert found.versions == replayed(taped).versions
    with pytest.raises(LocalError, match="there is no tape"):
        join_parts([tmp_path / "nothing"], tmp_path / "tape")


def test_a_tape_is_of_a_whole_swarm_of_the_honest(
    taped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "peer-1" / "run-0123").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds an earlier one"):
        refuse_earlier([tmp_path / "host", tmp_path / "peer-1"])
    tape = ["--tape", str(tmp_path / "tape")]
    assert cli.run(["swarm", *tape, "--attack", "sign_flip:1"], (3, 11)) == 2
    assert "--tape and --attack do not go together" in capsys.readouterr().err
    assert cli.run(["swarm", *tape, "--data", str(tmp_path), "--no-ui"], (3, 11)) == 2
    assert "a tape begins with the run" in capsys.readouterr().err
    assert cli.run(["swarm", "--tape", str(tmp_path)], (3, 11)) == 2

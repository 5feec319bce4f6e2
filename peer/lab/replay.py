"""A replay of the same parameters from an event tape, without the protocol (DiLoCo 2604.21428 §E.1).

The tape records the steps before each snapshot, the contributions to each version, and the step at which each peer
adopted it. Steps, encoding, merging and the outer step are computed again; every state must be the certified one.
Tapes of the lab and of real processes differ in three ways: how a learner begins, how it computes, and how it gets
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from coordinator.chain.certificate import Certificate
from coordinator.core.actions import Adopt, Encode, Included, IncludedUnseen, NotIncluded, OwnPart, Returned, RoundKey
from coordinator.core.events import Encoded
from coordinator.run.manifest import Manifest
from coordinator.simulator.peer import Disk
from coordinator.simulator.tensors import VirtualLearner
from dht.errors import LocalError, PeerError, UsageError
from dht.identity import PeerId
from peer.attacks.zoo import AttackChoice
from peer.data.token_files import TokenData
from peer.data.windows import load_tokens, training_windows
from peer.lab.bench import Bench
from peer.lab.data import learner_texts
from peer.lab.lab_context import LabContext
from peer.lab.options import STEP_SECONDS
from peer.lab.tensors import LabTensors, SavedTensors, make_tensors
from peer.learner.devices import Placement, rounding_key
from peer.learner.gradient.batch_ahead import Batches
from peer.machine.local_files import LocalFiles
from peer.model.located import located
from peer.rounds.tape import TapeLine, keep_no_tape, read_tape


def replay_tape(path: Path, data: TokenData | None = None, base: str = "") -> TapePlayer:
    """Play a whole tape.

    Raises UsageError if it is not a tape or was made with other text, LocalError if a result differs.
    """
    lines = read_tape(path)
    head = next(lines, None)
    if head is None or head["event"] not in ("lab", "swarm"):
        raise UsageError(f"{path} does not begin like an event tape")
    manifest = Manifest.from_wire(bytes.fromhex(head["manifest"]))
    if manifest.config.model.weights == "given":
        raise UsageError(f"{path} began with values that a tape does not hold; replay tapes of seeded runs")
    if head.get("device", "cpu") != "cpu":
        raise UsageError(f"{path} was recorded on {head['device']}; only a processor's steps can be made again")
    if head.get("compiled"):
        raise UsageError(f"{path} was recorded with --compile; only steps as they are written can be made again")
    if data is None:
        files = LocalFiles(head.get("corpus", ""), head.get("tokenizer", ""))
        data = load_tokens(manifest.config.data, manifest.config.model.vocabulary, files)
    if data.digest != manifest.data_digest:
        raise UsageError(f"{path} was recorded with other text, or that of another Python; replay it with that one")
    with ExitStack() as stack:
        replay = TapePlayer(head, manifest, data, stack, base)
        replay.play(lines)
    return replay


class TapePlayer:
    """The replay of one tape."""

    def __init__(self, head: TapeLine, manifest: Manifest, data: TokenData, stack: ExitStack, base: str = "") -> None:
        """`stack` closes the threads that make steps; `base` is the folder of an adapter's base here."""
        torch.set_num_threads(1)
        config, peers = located(manifest.config, base), [PeerId(peer) for peer in head["peers"]]
        hostile = {number for number, peer in enumerate(peers) if peer in head["attacks"]}
        alpha, second_side = head["dirichlet_alpha"], head.get("second_side", 0)
        dealt = learner_texts(config, data.train, len(peers), alpha, second_side, hostile)
        texts = dict(zip(peers, dealt, strict=True))

        def windows(peer: PeerId) -> Batches:
            return training_windows(texts[peer], config, manifest.run_id, peer)

        self._stack = stack
        self._is_real = head["event"] == "swarm"
        self.context = LabContext(config, len(peers), windows, self._thread(1), STEP_SECONDS, 0.0, keep_no_tape)
        if not self._is_real:  # in a real run, the tape also says from which window the founders read
            self.context.founders = manifest.founder_ids
        for peer, (name, strength) in head["attacks"].items():
            self.context.attacks[PeerId(peer)] = AttackChoice(name, strength)
        self.versions = 0
        self.learners: set[PeerId] = set()  # with compared parameters
        self._manifest = manifest
        self._disks: dict[PeerId, SavedTensors] = {}
        self._lives: dict[PeerId, LabTensors] = {}
        self._encoded: dict[tuple[bytes, PeerId], Encoded] = {}
        self._expected: dict[bytes, int] = {}  # members of a roster, with none missing
        self._certificates: dict[str, Certificate] = {}
        self._bench = Bench(self.context, manifest.genesis)
        self._parts: Mapping[str, Callable[[TapeLine], None]] = {
            "life": self._begin_real_life if self._is_real else self._begin_life,
            "end": self._end_life,
            "checkpoint": self._compare if self._is_real else self._save,
            "progress": self._progress,
            "threads": self._threads,
            "snapshot": self._snapshot,
            "version": self._make_version,
            "adoption": self._adopt,
            "final": self._compare,
        }

    def play(self, lines: Iterable[TapeLine]) -> None:
        """Carry out the lines in order; raises LocalError where the outcome differs.

        Raises UsageError at a line that cannot follow from those before it.
        """
        for number, line in enumerate(lines, 2):  # the head is line 1
            part = self._parts.get(line["event"])
            try:
                if part is not None:
                    part(line)
            except (KeyError, IndexError, TypeError, ValueError, PeerError) as error:
                raise UsageError(
                    f"line {number} of the tape ({line['event']}) does not follow from those before it, so the tape "
                    f"cannot be played: {type(error).__name__} {error}"
                ) from None

    def _thread(self, threads: int) -> Executor:
        """Return an executor that makes one step at a time, with this many torch threads."""
        return self._stack.enter_context(ThreadPoolExecutor(1, "learner", partial(torch.set_num_threads, threads)))

    def _tensors(self, line: TapeLine) -> LabTensors:
        return self._lives[PeerId(line["peer"])]

    # -- lives

    def _begin_life(self, line: TapeLine) -> None:
        peer, step, genesis = PeerId(line["peer"]), line["step"], list(self._manifest.genesis)
        saved = self._disks.get(peer)
        learner = VirtualLearner(peer, 1.0, 0, 0.0, float(step), [0] * len(genesis), [])
        digests = genesis if saved is None else list(saved.digests)
        self._lives[peer] = make_tensors(self.context, learner, Disk([], digests, [], saved=saved))

    def _begin_real_life(self, line: TapeLine) -> None:
        """Begin a life with the recorded threads and pieces of a batch: the sums depend on both."""
        peer, manifest = PeerId(line["peer"]), self._manifest
        if line["step"]:
            raise UsageError(f"{peer} came back from a checkpoint, which is in no tape of a swarm")
        if not line["device"].startswith("CPU"):
            raise UsageError(f"{peer} trained on {line['device']}; only a processor's steps can be made again")
        key = rounding_key(manifest.run_id, peer)
        self.context.placements[peer] = Placement(
            sequences=line["sequences"], recompute=line["recompute"], rounding_key=key
        )
        self.context.pool = self._thread(line["threads"])
        genesis = [digest.hex() for digest in manifest.genesis]
        learner = VirtualLearner(peer, 1.0, 0, 0.0, 0.0, [0] * len(genesis), [])
        self._lives[peer] = tensors = make_tensors(self.context, learner, Disk([], list(manifest.genesis), []))
        for fragment, digest in enumerate(line["held"]):
            if digest not in (None, genesis[fragment]):
                tensors.hold(self._certificates[digest])
        if line["loads"]:
            anchors = torch.cat(tensors.anchors.all_anchors())
            tensors.lazy.after(0, lambda learner: learner.load_all(anchors))

    def _end_life(self, line: TapeLine) -> None:
        self._tensors(line).lazy.settle()
        del self.context.active[PeerId(line["peer"])]

    def _save(self, line: TapeLine) -> None:
        self._disks[PeerId(line["peer"])] = self._tensors(line).save_at(line["step"])

    # -- rounds

    def _snapshot(self, line: TapeLine) -> None:
        key = RoundKey(line["fragment"], line["version"], bytes.fromhex(line["roster"]))
        honest = {PeerId(peer): step for peer, step in line["honest_steps"].items()}
        self._expected[key.roster_id] = line["expected"]
        encoded = self._tensors(line).encode_at(Encode(key, line["partitions"]), line["step"], honest)
        if encoded is not None:  # None: an attacker's work that no message could carry
            self._encoded[key.roster_id, PeerId(line["peer"])] = encoded

    def _make_version(self, line: TapeLine) -> None:
        certificate = Certificate.from_wire(bytes.fromhex(line["certificate"]))
        outcome = certificate.outcome
        members = [(outcome.roster_id, PeerId(one.peer)) for one in outcome.contributors]
        encoded = [self._encoded[member] for member in members]
        for at, one in enumerate(outcome.contributors):
            if not self.context.is_believed(PeerId(one.peer)):  # its claim may differ from its work
                encoded[at] = replace(encoded[at], tokens=one.tokens, steps=one.steps)
        self._bench.make(certificate, encoded, self._expected[outcome.roster_id])
        self._certificates[line["digest"]] = certificate
        self.versions += 1

    def _adopt(self, line: TapeLine) -> None:
        tensors, certificate = self._tensors(line), self._certificates[line["digest"]]
        outcome = certificate.outcome
        key = RoundKey(outcome.fragment, outcome.version - 1, outcome.roster_id)
        action = Adopt(
            certificate,
            applied=None,
            ours=_own_part(line, key),
            frozen=tuple(line["frozen"]),
        )
        tensors.adopt_at(action, line["step"], line["effective_step"], line.get("dropped"))
        if not self._is_real:
            tensors.follow(line["step"])
        for old in [one for one in tensors.snapshots if one.fragment == key.fragment and one.version <= key.version]:
            tensors.discard(old)

    # -- learners

    def _progress(self, line: TapeLine) -> None:
        self._tensors(line).follow_at(line["step"], line["steps"], line["window"])

    def _threads(self, line: TapeLine) -> None:
        threads: int = line["threads"]
        self._tensors(line).lazy.after(line["step"], lambda _: torch.set_num_threads(threads))

    def _compare(self, line: TapeLine) -> None:
        lazy = self._tensors(line).lazy
        lazy.advance(line["step"])
        if lazy.digest().hex() != line["parameters"]:
            raise LocalError(f"{line['peer']} has other parameters after step {line['step']} than the tape says")
        self.learners.add(PeerId(line["peer"]))


def _own_part(line: TapeLine, snapshot: RoundKey) -> OwnPart:
    """Return which of a peer's work is in a version, according to its tape."""
    if line["included"]:
        return Included(snapshot, tuple(line["counted"]))
    if any(line["counted"]):
        return IncludedUnseen()
    return NotIncluded() if line.get("returned") is None else Returned(*line["returned"])

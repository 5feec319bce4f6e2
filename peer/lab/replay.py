"""The same parameters again, from an event tape and without the protocol (DiLoCo 2604.21428 §E.1).

The tape says who trained how many steps before which snapshot, what went into every version, and after which step who
adopted it. Steps, encoding, merging and the outer step are made again; every state must be the certified one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from coordinator.actions import Adopt, Apply, Encode, PartitionResult, Reduce, ReduceInput, Returned, RoundKey
from coordinator.certificate import Certificate
from coordinator.events import Encoded
from coordinator.manifest import Manifest
from coordinator.virtual.peer import Disk
from coordinator.virtual.tensors import VirtualLearner
from coordinator.weights import weights_of
from dht.errors import LocalError, UsageError
from dht.identity import PeerId
from peer.attacks.zoo import AttackChoice
from peer.corpus import TokenData
from peer.data import load_tokens, training_windows
from peer.lab.data import learner_texts
from peer.lab.options import STEP_SECONDS
from peer.lab.tape import TapeLine, keep_no_tape, read_tape
from peer.lab.tensors import LabTensors, SavedTensors, make_tensors
from peer.lab.workshop import Workshop
from peer.learner import Batches


def replay_tape(path: Path, data: TokenData | None = None) -> Replay:
    """Play a whole tape; raises UsageError if it is none or of other text, LocalError if it comes out differently."""
    lines = read_tape(path)
    head = next(lines, None)
    if head is None or head["event"] != "lab":
        raise UsageError(f"{path} does not begin like an event tape of the lab")
    manifest = Manifest.from_wire(bytes.fromhex(head["manifest"]))
    if manifest.config.model.weights == "given":
        raise UsageError(f"{path} began with values that a tape does not hold; replay tapes of seeded runs")
    data = load_tokens(manifest.config.data) if data is None else data
    if data.digest != manifest.data_digest:
        raise UsageError(f"{path} was recorded with the text of another Python; replay it with that one")
    with ThreadPoolExecutor(1, "learner", partial(torch.set_num_threads, 1)) as pool:
        replay = Replay(head, manifest, data, pool)
        replay.play(lines)
    return replay


class Replay:
    """One tape being played."""

    def __init__(self, head: TapeLine, manifest: Manifest, data: TokenData, pool: ThreadPoolExecutor) -> None:
        torch.set_num_threads(1)
        config, peers = manifest.config, [PeerId(peer) for peer in head["peers"]]
        hostile = {number for number, peer in enumerate(peers) if peer in head["attacks"]}
        alpha, second_side = head["dirichlet_alpha"], head.get("second_side", 0)
        dealt = learner_texts(config, data.train, len(peers), alpha, second_side, hostile)
        texts = dict(zip(peers, dealt, strict=True))

        def windows(peer: PeerId) -> Batches:
            return training_windows(texts[peer], config, manifest.run_id, peer)

        self.shop = Workshop(config, len(peers), windows, pool, STEP_SECONDS, 0.0, keep_no_tape)
        self.shop.founders = manifest.founder_ids
        for peer, (name, strength) in head["attacks"].items():
            self.shop.attacks[PeerId(peer)] = AttackChoice(name, strength)
        self.versions = 0
        self._manifest = manifest
        self._disks: dict[PeerId, SavedTensors] = {}
        self._encoded: dict[tuple[bytes, PeerId], Encoded] = {}
        self._certificates: dict[str, Certificate] = {}
        self._applies: dict[str, Apply] = {}
        self._parts: Mapping[str, Callable[[TapeLine], None]] = {
            "life": self._begin_life,
            "end": self._end_life,
            "checkpoint": self._save,
            "snapshot": self._snapshot,
            "version": self._make_version,
            "adoption": self._adopt,
            "final": self._compare,
        }

    def play(self, lines: Iterable[TapeLine]) -> None:
        """Do what the lines say, in order; raises LocalError where the outcome differs."""
        for line in lines:
            part = self._parts.get(line["event"])
            if part is not None:
                part(line)

    def _tensors(self, line: TapeLine) -> LabTensors:
        return self.shop.active[PeerId(line["peer"])]

    # -- lives

    def _begin_life(self, line: TapeLine) -> None:
        peer, step, genesis = PeerId(line["peer"]), line["step"], list(self._manifest.genesis)
        saved = self._disks.get(peer)
        learner = VirtualLearner(peer, 1.0, 0, 0.0, float(step), [0] * len(genesis), [])
        digests = genesis if saved is None else list(saved.digests)
        make_tensors(self.shop, learner, Disk([], digests, [], saved=saved))

    def _end_life(self, line: TapeLine) -> None:
        self._tensors(line).lazy.settle()
        del self.shop.active[PeerId(line["peer"])]

    def _save(self, line: TapeLine) -> None:
        self._disks[PeerId(line["peer"])] = self._tensors(line).save_at(line["step"])

    # -- rounds

    def _snapshot(self, line: TapeLine) -> None:
        key = RoundKey(line["fragment"], line["version"], bytes.fromhex(line["roster"]))
        honest = {PeerId(peer): step for peer, step in line["honest_steps"].items()}
        encoded = self._tensors(line).encode_at(Encode(key, line["partitions"]), line["step"], honest)
        if encoded is not None:  # else an attacker's, that nothing could carry
            self._encoded[key.roster_id, PeerId(line["peer"])] = encoded

    def _make_version(self, line: TapeLine) -> None:
        certificate = Certificate.from_wire(bytes.fromhex(line["certificate"]))
        outcome = certificate.outcome
        key = RoundKey(outcome.fragment, outcome.version - 1, outcome.roster_id)
        encoded = [self._encoded[outcome.roster_id, PeerId(one.peer)] for one in outcome.contributors]
        weights = weights_of([(one.tokens, one.steps) for one in encoded])
        members = tuple(
            ReduceInput(member, b"", weight, one.squared_norms)
            for member, (weight, one) in enumerate(zip(weights, encoded, strict=True))
        )
        results: list[PartitionResult | None] = []
        for partition, merged in enumerate(outcome.partitions):
            if merged is None:
                results.append(None)
                continue
            inputs = tuple(
                ReduceInput(at, encoded[at].part_roots[partition], weights[at], members[at].squared_norms)
                for at in merged.included
            )
            reducer = next(iter(self.shop.active.values()))
            reduced = reducer.reduce(Reduce(key, partition, len(outcome.partitions), 0, inputs, 1))
            if reduced.root != merged.root:
                raise LocalError(f"partition {partition} of version {outcome.version} came out differently")
            results.append(PartitionResult(merged.root, merged.included))
        self._certificates[line["digest"]] = certificate
        self._applies[line["digest"]] = Apply(key, tuple(results), members)
        self.versions += 1

    def _adopt(self, line: TapeLine) -> None:
        tensors, certificate, apply = self._tensors(line), *self._version(line)
        if line["applied"]:
            applied = tensors.apply(apply)
            if applied is None or applied.state != certificate.state:
                raise LocalError(f"the state of version {certificate.version} came out differently")
        action = Adopt(
            certificate,
            applied=apply.key if line["applied"] else None,
            snapshot=apply.key if line["included"] else None,
            counted=tuple(line["counted"]),
            frozen=tuple(line["frozen"]),
            returned=None if line.get("returned") is None else Returned(*line["returned"]),
        )
        tensors.adopt_at(action, line["step"], line["effective_step"])
        tensors.discard(apply.key)

    def _version(self, line: TapeLine) -> tuple[Certificate, Apply]:
        return self._certificates[line["digest"]], self._applies[line["digest"]]

    def _compare(self, line: TapeLine) -> None:
        lazy = self._tensors(line).lazy
        lazy.bring(line["step"])
        if lazy.digest().hex() != line["parameters"]:
            raise LocalError(f"{line['peer']} ended with other parameters than the tape says")

"""What a peer holds of a run across restarts: certificates, states, the learner, and votes (design §8).

States and learner are one atomic checkpoint. Certificates are logs beside it (`peer.storage.certificate_log`): they
prove the states, and whoever joins later asks for them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from coordinator.chain.chain import Chain, Rules
from coordinator.chain.packed_history import PackedHistory
from coordinator.core.actions import VoteRecord
from coordinator.run.compatibility import read_manifest
from coordinator.run.manifest import Manifest, run_id_of
from dht.errors import LocalError, MusterError, PeerError, UsageError
from dht.files import write_whole
from dht.statement import Digest
from dht.wire import Wire
from peer.numerics.outer_optimizer import OuterState, state_digest
from peer.storage.anchors import Anchors, layouts_of
from peer.storage.certificate_log import CertificateLog
from peer.storage.checkpoint import (
    RECORDS_KEPT,
    Checkpoint,
    VoteLog,
    clear_folder,
    empty_folder,
    load_latest,
    save_checkpoint,
)
from peer.storage.evidence_files import EvidenceFiles
from peer.storage.genesis_file import load_genesis
from peer.storage.vote_log import decode_vote

log = structlog.get_logger(__name__)

LEARNER_PREFIX = "learner/"
BEHIND = "learner_behind"  # an entry of the meta data, if it is so
MANIFEST_FILE = "manifest.bin"


class HeldVersions(Wire):
    """Which version of each fragment a checkpoint holds, and the digests of these versions."""

    versions: tuple[int, ...]
    heads: tuple[Digest, ...] = ()


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything a peer starts a life with.

    `learner_state` is a file that the learner loads, None for a fresh one; `learner_behind`: of an earlier moment.
    """

    chains: tuple[Chain, ...]
    held: tuple[int, ...]
    anchors: Anchors
    votes: tuple[VoteRecord, ...]
    learner_state: Path | None
    learner_behind: bool = False


@dataclass(frozen=True, slots=True)
class Captured:
    """One consistent moment of a peer, to be written at leisure: states are never changed in place."""

    held: tuple[int, ...]
    states: tuple[OuterState, ...]
    chains: tuple[PackedHistory, ...]  # that end at the held version
    learner_behind: bool = False  # the learner's part is of an earlier moment


def run_path(data_directory: Path, run_id: bytes) -> Path:
    """Where a peer with this data directory keeps a run."""
    return data_directory / f"run-{run_id.hex()[:12]}"


def known_manifest(data_directory: Path, run_id: bytes) -> Manifest | None:
    """The manifest of a run that a peer with this data directory took part in before; makes nothing.

    Raises UsageError if this version cannot take part in that run.
    """
    return _read_manifest(run_path(data_directory, run_id), run_id)


def _read_manifest(folder: Path, run_id: bytes) -> Manifest | None:
    try:
        return read_manifest((folder / MANIFEST_FILE).read_bytes(), run_id)
    except (OSError, PeerError):
        return None


def known_manifests(data_directory: Path) -> Iterator[Manifest]:
    """Those of all runs that a peer with this data directory took part in; whichever cannot be read is told in the log.

    Raises UsageError if this version cannot take part in one of them.
    """
    for path in sorted(data_directory.glob(f"run-*/{MANIFEST_FILE}")):
        try:
            data = path.read_bytes()
            run_id = run_id_of(data)
            if path.parent != run_path(data_directory, run_id):
                raise PeerError("a manifest of another run")
            manifest = read_manifest(data, run_id)
        except (OSError, PeerError) as error:
            log.warning("manifest_unreadable", file=str(path), reason=str(error))
        else:
            yield manifest


class RunDirectory:
    """The folder of one run inside a peer's data directory."""

    def __init__(self, data_directory: Path, run_id: bytes) -> None:
        self.path = run_path(data_directory, run_id)
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be created: {error.strerror}; choose another --data folder") from None
        self.vote_log = VoteLog(self.path / "votes")
        self.evidence = EvidenceFiles(self.path / "evidence")
        self._run_id = run_id
        self._logs: dict[int, CertificateLog] = {}
        self._unpacking = threading.Lock()  # whoever replaces a learner may be cancelled, and its thread goes on

    @property
    def address_book(self) -> Path:
        """Where other peers were last seen."""
        return self.path / "addresses"

    def keep_manifest(self, manifest: Manifest) -> None:
        """Remember the manifest, so that a restart needs nobody for it."""
        path, data = self.path / MANIFEST_FILE, manifest.to_wire()
        try:
            if not path.exists() or path.read_bytes() != data:  # every start comes here, also one on a full disk
                write_whole(path, data)
        except OSError as error:
            raise LocalError(f"{path} cannot be written: {error.strerror}") from None

    def known_manifest(self) -> Manifest | None:
        """The manifest as remembered; None if there is none or it is not the run's. Raises UsageError."""
        return _read_manifest(self.path, self._run_id)

    # -- loading

    def load(self, manifest: Manifest, rules: Rules) -> RunState:
        """What was saved last; version 0 where nothing was. Raises LocalError if files contradict each other."""
        recent = self.vote_log.read()[-RECORDS_KEPT:]
        self.vote_log.replace(recent)
        votes = tuple(vote for data in recent if (vote := decode_vote(data)) is not None)
        checkpoint = load_latest(self.path)
        if checkpoint is None or checkpoint.run_id != manifest.run_id:
            chains, anchors = self._begin(manifest, rules)
            return RunState(chains, (0,) * len(chains), anchors, votes, None)
        chains, anchors = self._certified(checkpoint, manifest, rules)
        held = tuple(chain.version for chain in chains)
        learner = self._unpack_learner(checkpoint)
        return RunState(chains, held, anchors, votes, learner, BEHIND in checkpoint.meta)

    def read_certified(self, manifest: Manifest, rules: Rules) -> Captured:
        """What was saved last, for another process than the peer's: nothing is written.

        Raises UsageError if nothing was saved, LocalError if files contradict each other.
        """
        checkpoint = load_latest(self.path)
        if checkpoint is None or checkpoint.run_id != manifest.run_id:
            raise UsageError(f"{self.path} holds no checkpoint yet; wait until the peer has saved one")
        chains, anchors = self._certified(checkpoint, manifest, rules)
        states = tuple(anchors.current(chain.fragment) for chain in chains)
        return Captured(tuple(one.version for one in chains), states, tuple(one.certificates for one in chains))

    def _begin(self, manifest: Manifest, rules: Rules) -> tuple[tuple[Chain, ...], Anchors]:
        chains = tuple(Chain(rules, fragment, digest) for fragment, digest in enumerate(manifest.genesis))
        genesis = load_genesis(self.path, manifest)
        anchors = Anchors(layouts_of(manifest.config), genesis)
        for chain, state in zip(chains, genesis, strict=True):
            anchors.install(chain.fragment, chain.digest, state)  # the version that no certificate made
        if manifest.config.model.weights == "given":
            anchors.serve_first(manifest.genesis, genesis)
        return chains, anchors

    def _certified(self, checkpoint: Checkpoint, manifest: Manifest, rules: Rules) -> tuple[tuple[Chain, ...], Anchors]:
        chains, anchors = self._begin(manifest, rules)
        try:
            held = HeldVersions.from_wire(checkpoint.meta["held"])
            heads = held.heads or (None,) * len(held.versions)  # earlier checkpoints name none
            chains = tuple(self._load_chain(*one) for one in zip(chains, held.versions, heads, strict=True))
            for chain in chains:
                if chain.version:
                    anchors.install(chain.fragment, chain.digest, _load_state(checkpoint, chain))
        except (MusterError, KeyError, ValueError) as error:
            raise LocalError(f"the checkpoint in {self.path} cannot be used ({error}); move that folder away") from None
        return chains, anchors

    def _load_chain(self, empty: Chain, version: int, head: bytes | None) -> Chain:
        kept = self._log(empty.fragment).read(version, head, empty.rules.chain_kept) if version else []
        return Chain.holding(empty.rules, empty.fragment, empty.genesis, kept)

    def saved_learner(self) -> Path | None:
        """The learner's state as it was saved last, None where that was never."""
        checkpoint = load_latest(self.path)
        return None if checkpoint is None or checkpoint.run_id != self._run_id else self._unpack_learner(checkpoint)

    def _unpack_learner(self, checkpoint: Checkpoint) -> Path | None:
        tensors = {
            name.removeprefix(LEARNER_PREFIX): tensor
            for name, tensor in checkpoint.tensors.items()
            if name.startswith(LEARNER_PREFIX)
        }
        if not tensors:
            return None
        path = self.path / "learner.safetensors"
        try:
            with self._unpacking, empty_folder(self.path / "learner-unpacked") as folder:
                save_file(tensors, folder / path.name)
                (folder / path.name).replace(path)
        except (OSError, SafetensorError) as error:
            raise LocalError(f"{path} cannot be written: {error}") from None
        return path

    # -- saving

    @property
    def learner_file(self) -> Path:
        """Where the learner writes its part of a checkpoint before it is packed with the rest."""
        return self.path / "learner-new" / "learner.safetensors"

    def make_room(self) -> None:
        """Remove what a learner that was ended in the middle has left where it writes; raises LocalError."""
        try:
            clear_folder(self.learner_file.parent)
        except OSError as error:
            raise LocalError(f"{self.learner_file.parent} cannot be written: {error.strerror}") from None

    def written(self) -> tuple[int, ...]:
        """Another one whenever more of the learner's part is written, which has another name and its full size then."""
        found: list[int] = []
        with suppress(OSError):  # files come and go meanwhile
            for file in sorted(self.learner_file.parent.iterdir()):
                about = file.stat()
                found += [about.st_ino, about.st_size, about.st_blocks, about.st_mtime_ns]
        return tuple(found)

    def save(self, captured: Captured, learner_file: Path | None) -> None:
        """Write certificates, then states and learner together; raises LocalError, and then the old ones remain."""
        for fragment, certificates in enumerate(captured.chains):
            self._log(fragment).add(certificates)
        tensors: dict[str, Tensor] = {}
        for fragment, state in enumerate(captured.states):
            tensors[f"anchor/{fragment}"] = state.anchor
            tensors[f"momentum/{fragment}"] = state.momentum
        if learner_file is not None:
            try:
                learner = load_file(learner_file)
            except (OSError, SafetensorError) as error:
                raise LocalError(f"what the learner saved in {learner_file} cannot be read: {error}") from None
            tensors |= {LEARNER_PREFIX + name: tensor for name, tensor in learner.items()}
        heads = tuple(chain[-1].digest if chain else bytes(32) for chain in captured.chains)
        held = HeldVersions(versions=captured.held, heads=heads).to_wire()
        meta = {"held": held, **({BEHIND: b""} if captured.learner_behind else {})}
        save_checkpoint(self.path, Checkpoint(self._run_id, tensors, meta))
        for log in self._logs.values():
            log.cut()
        if learner_file is not None:
            learner_file.unlink(missing_ok=True)

    def _log(self, fragment: int) -> CertificateLog:
        if fragment not in self._logs:
            self._logs[fragment] = CertificateLog(self.path / f"certificates-{fragment}")
        return self._logs[fragment]


def _load_state(checkpoint: Checkpoint, chain: Chain) -> OuterState:
    fragment = chain.fragment
    state = OuterState(checkpoint.tensors[f"anchor/{fragment}"], checkpoint.tensors[f"momentum/{fragment}"])
    if state_digest(state.anchor, state.momentum) != chain.state:
        raise LocalError(f"fragment {fragment} is not the certified version {chain.version}")
    return state

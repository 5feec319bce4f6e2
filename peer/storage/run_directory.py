"""A peer's state of a run across restarts: certificates, states, the learner, and votes (design §8).

States and learner are one atomic generation (`peer.storage.generations`). Certificates are logs beside it
(`peer.storage.certificate_log`): they prove the states, and newcomers ask for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog
from safetensors import SafetensorError
from torch import Tensor

from coordinator.chain.certificate import Certificate
from coordinator.chain.chain import Chain, Rules
from coordinator.chain.packed_history import PackedHistory
from coordinator.core.actions import VoteRecord
from coordinator.run.compatibility import read_manifest
from coordinator.run.manifest import Manifest, run_id_of
from dht.errors import LocalError, MusterError, PeerError, UsageError
from dht.files import write_whole
from dht.statement import DIGEST_BYTES
from peer.machine.paths import run_path
from peer.numerics.outer_optimizer import OuterState
from peer.storage.anchors import Anchors, genesis_state, layouts_of
from peer.storage.certificate_log import CertificateLog
from peer.storage.disk import clear_folder
from peer.storage.evidence_files import EvidenceFiles
from peer.storage.generations import READING_THREADS_MAX, Generations, Held, SavedFragment
from peer.storage.genesis_file import load_genesis
from peer.storage.record_log import RECORDS_KEPT, RecordLog
from peer.storage.spill_files import SpillFiles
from peer.storage.state_tensors import state_of
from peer.storage.stored_vote import decode_vote
from peer.storage.tensor_file import map_tensors

log = structlog.get_logger(__name__)

MANIFEST_FILE = "manifest.bin"


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything with which a peer starts.

    `learner_state` is a file that the learner loads, None for a fresh one; `learner_heads` are the heads of its
    versions.
    """

    chains: tuple[Chain, ...]
    held: tuple[int, ...]
    anchors: Anchors
    votes: tuple[VoteRecord, ...]
    learner_state: Path | None
    learner_heads: tuple[bytes, ...] = ()  # of all fragments, as `head_of`; empty if unknown


@dataclass(frozen=True, slots=True)
class Captured:
    """A peer at one consistent moment: states are never changed in place."""

    held: tuple[int, ...]
    states: tuple[OuterState, ...]
    chains: tuple[PackedHistory, ...]  # each ends at the held version

    @property
    def heads(self) -> tuple[bytes, ...]:
        """The digests that name the held versions."""
        return tuple(map(head_of, self.chains))


@dataclass(frozen=True, slots=True)
class _Saved:
    """The save of an earlier process: per fragment the version, the digest of its certificate, its tensors."""

    held: tuple[int, ...]
    heads: tuple[bytes, ...]
    tensors: Callable[[int], Mapping[str, Tensor]]
    learner: Path | None
    learner_heads: tuple[bytes, ...]  # as in `RunState`


def head_of(chain: PackedHistory) -> bytes:
    """Return the digest of a chain's newest certificate; zeros at version 0, which has none."""
    return chain.digests[-1] if chain else bytes(DIGEST_BYTES)


def known_manifest(data_directory: Path, run_id: bytes) -> Manifest | None:
    """Return the manifest of a run in which this data directory took part before; creates nothing.

    Raises UsageError if this version cannot take part in that run.
    """
    return _read_manifest(run_path(data_directory, run_id), run_id)


def _read_manifest(folder: Path, run_id: bytes) -> Manifest | None:
    try:
        return read_manifest((folder / MANIFEST_FILE).read_bytes(), run_id)
    except (OSError, PeerError):
        return None


def known_manifests(data_directory: Path) -> Iterator[Manifest]:
    """Yield the manifests of all runs in which this data directory took part; logs those that cannot be read.

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
        except UsageError as error:
            raise UsageError(f"{path.parent}: {error}, or move that folder away") from None
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
        self.vote_log = RecordLog(self.path / "votes")
        self.evidence = EvidenceFiles(self.path / "evidence")
        self._run_id = run_id
        self._generations = Generations(self.path, run_id)
        self._logs: dict[int, CertificateLog] = {}

    @property
    def address_book(self) -> Path:
        """The file with the addresses at which other peers were last seen."""
        return self.path / "addresses"

    def keep_manifest(self, manifest: Manifest) -> None:
        """Save the manifest, so that a restart need not ask other peers for it."""
        path, data = self.path / MANIFEST_FILE, manifest.to_wire()
        try:
            if not path.exists() or path.read_bytes() != data:  # every start reaches this, also on a full disk
                write_whole(path, data)
        except OSError as error:
            raise LocalError(f"{path} cannot be written: {error.strerror}") from None

    def known_manifest(self) -> Manifest | None:
        """Return the saved manifest; None if there is none or it is not the run's. Raises UsageError."""
        return _read_manifest(self.path, self._run_id)

    # -- loading

    def load(self, manifest: Manifest, rules: Rules) -> RunState:
        """Load the last save, or version 0 if there is none. Raises LocalError if files contradict each other."""
        recent = self.vote_log.read()[-RECORDS_KEPT:]
        self.vote_log.replace(recent)
        votes = tuple(vote for data in recent if (vote := decode_vote(data)) is not None)
        saved = self._saved()
        chains, anchors = self._certified(saved, manifest, rules)
        held = tuple(chain.version for chain in chains)
        if saved is None:
            return RunState(chains, held, anchors, votes, None)
        return RunState(chains, held, anchors, votes, saved.learner, saved.learner_heads)

    def read_certified(self, manifest: Manifest, rules: Rules) -> Captured:
        """Load the last save in another process than the peer's: writes nothing.

        Raises LocalError if there is no save, or if files contradict each other.
        """
        saved = self._saved()
        if saved is None:
            raise LocalError(f"{self.path} holds no checkpoint yet; wait until the peer has saved one")
        chains, anchors = self._certified(saved, manifest, rules)
        states = tuple(anchors.current(chain.fragment) for chain in chains)
        return Captured(tuple(one.version for one in chains), states, tuple(one.certificates for one in chains))

    def _saved(self) -> _Saved | None:
        """Load the newest generation, if any.

        Raises UsageError if another major version wrote it, LocalError if it cannot be used.
        """
        newest = self._generations.newest()
        if newest is None:
            return None
        index, path = newest.index, self._generations.path
        return _Saved(
            tuple(one.version for one in index.fragments),
            index.heads,
            lambda fragment: map_tensors(path(index.fragments[fragment].file)),
            path(index.learner) if index.learner else None,
            index.heads_of_learner,
        )

    def _certified(self, saved: _Saved | None, manifest: Manifest, rules: Rules) -> tuple[tuple[Chain, ...], Anchors]:
        chains = tuple(Chain(rules, fragment, digest) for fragment, digest in enumerate(manifest.genesis))
        config, layouts = manifest.config, layouts_of(manifest.config)
        given = load_genesis(self.path, manifest) if config.model.weights == "given" else None

        def load(chain: Chain) -> OuterState:
            if saved is not None and chain.version:
                return _own(_certified_state(saved, chain, config.outer.momentum > 0))
            return genesis_state(config, layouts[chain.fragment]) if given is None else _own(given[chain.fragment])

        try:
            if saved is not None:
                chains = tuple(self._load_chain(*one) for one in zip(chains, saved.held, saved.heads, strict=True))
            with ThreadPoolExecutor(min(READING_THREADS_MAX, os.cpu_count() or 1)) as pool:
                states = list(pool.map(load, chains))
        except (MusterError, OSError, SafetensorError, KeyError, ValueError) as error:
            raise self._unusable(error) from None
        anchors = Anchors(layouts, states, SpillFiles(self.path), older_kept=config.pace.overlap)
        for chain, state in zip(chains, states, strict=True):
            anchors.install(chain.fragment, chain.digest, state)  # version 0 is not made by a certificate
        if given is not None:
            anchors.serve_first(manifest.genesis, given)
        return chains, anchors

    def _unusable(self, error: Exception) -> LocalError:
        return LocalError(f"the checkpoint in {self.path} cannot be used ({error}); move that folder away")

    def _load_chain(self, empty: Chain, version: int, head: bytes) -> Chain:
        kept = self._log(empty.fragment).read(version, head, empty.rules.chain_kept) if version else []
        return Chain.holding(empty.rules, empty.fragment, empty.genesis, kept)

    def saved_learner(self) -> Path | None:
        """Return the learner's state as last saved, None if there is none."""
        saved = self._saved()
        return None if saved is None else saved.learner

    # -- saving

    @property
    def has_learner(self) -> bool:
        """Whether the last save has a learner's part."""
        last = self._generations.last
        return last is not None and last.index.learner != ""

    @property
    def learner_file(self) -> Path:
        """The file to which the learner writes its part of a checkpoint before it is joined with the rest."""
        return self.path / "learner-new" / "learner.safetensors"

    def make_room(self) -> None:
        """Remove unfinished files of a learner that was ended, and all generations but the newest.

        So at most two generations are ever here. Raises LocalError.
        """
        self._generations.keep_newest()
        try:
            clear_folder(self.learner_file.parent)
        except OSError as error:
            raise LocalError(f"{self.learner_file.parent} cannot be written: {error.strerror}") from None

    def written(self) -> tuple[int, ...]:
        """Return a value that changes whenever more of a checkpoint is written.

        Unfinished files have other names than finished ones, and may have their full size from the start.
        """
        found: list[int] = []
        for folder in (self.learner_file.parent, self._generations.unfinished):
            with suppress(OSError):  # files come and go meanwhile
                for file in sorted(folder.iterdir()):
                    about = file.stat()
                    found += [about.st_ino, about.st_size, about.st_blocks, about.st_mtime_ns]
        return tuple(found)

    def stage(self, captured: Captured, only: Container[int] | None = None) -> tuple[SavedFragment, ...]:
        """Write certificates and states for the next `commit`, so that memory need not hold them. Raises LocalError.

        Writes `only` these fragments if there is an earlier save.
        """
        only = None if self._generations.last is None else only
        for fragment, certificates in enumerate(captured.chains):
            if only is None or fragment in only:
                self._log(fragment).add(certificates)
        fragments = [Held(*one) for one in zip(captured.held, captured.heads, captured.states, strict=True)]
        return self._generations.stage(fragments, only)

    def commit(
        self, staged: Sequence[SavedFragment], learner_file: Path | None, learner_heads: Sequence[bytes] | None = None
    ) -> int:
        """Save what was staged last together with the learner; return how many bytes were new.

        Without a file, the learner's last saved part is kept. `learner_heads` are of the moment at which the file was
        written, None if that is the moment of all that was staged. Raises LocalError, and then the previous save
        remains.
        """
        written_bytes = self._generations.commit(staged, learner_file, learner_file is None, learner_heads)
        for log in self._logs.values():
            log.cut()
        return written_bytes

    def passed(self, chains: Sequence[Sequence[Certificate]]) -> tuple[list[Certificate], ...]:
        """Return, by fragment, a few certificates that stand for all before these; raises LocalError."""
        return tuple(
            self._log(fragment).passed(chain[0].outcome.parent) if chain and chain[0].version > 1 else []
            for fragment, chain in enumerate(chains)
        )

    def _log(self, fragment: int) -> CertificateLog:
        if fragment not in self._logs:
            self._logs[fragment] = CertificateLog(self.path / f"certificates-{fragment}")
        return self._logs[fragment]


def _certified_state(saved: _Saved, chain: Chain, keeps_momentum: bool) -> OuterState:
    state = state_of(saved.tensors(chain.fragment), keeps_momentum)
    if state.digest != chain.state:
        raise LocalError(f"fragment {chain.fragment} is not the certified version {chain.version}")
    return state


def _own(mapped: OuterState) -> OuterState:
    """Copy a mapped state into memory, so that it does not depend on its file."""
    momentum = mapped.momentum
    return OuterState(mapped.anchor.clone(), momentum.clone() if isinstance(momentum, Tensor) else momentum)

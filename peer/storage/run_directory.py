"""What a peer holds of a run across restarts: certificates, states, the learner, and votes (design §8).

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
from peer.storage.aside import Aside
from peer.storage.certificate_log import CertificateLog
from peer.storage.disk import clear_folder
from peer.storage.evidence_files import EvidenceFiles
from peer.storage.generations import READING_THREADS_MAX, Generations, Held, SavedFragment
from peer.storage.genesis_file import load_genesis
from peer.storage.record_log import RECORDS_KEPT, VoteLog
from peer.storage.state_tensors import state_of
from peer.storage.tensor_file import map_tensors
from peer.storage.vote_log import decode_vote

log = structlog.get_logger(__name__)

MANIFEST_FILE = "manifest.bin"


@dataclass(frozen=True, slots=True)
class RunState:
    """Everything a peer starts a life with.

    `learner_state` is a file that the learner loads, None for a fresh one; `learner_heads`: of which versions it is.
    """

    chains: tuple[Chain, ...]
    held: tuple[int, ...]
    anchors: Anchors
    votes: tuple[VoteRecord, ...]
    learner_state: Path | None
    learner_heads: tuple[bytes, ...] = ()  # of all fragments, as `head_of`; none if they are not known


@dataclass(frozen=True, slots=True)
class Captured:
    """One consistent moment of a peer: states are never changed in place."""

    held: tuple[int, ...]
    states: tuple[OuterState, ...]
    chains: tuple[PackedHistory, ...]  # that end at the held version

    @property
    def heads(self) -> tuple[bytes, ...]:
        """What names the held versions."""
        return tuple(map(head_of, self.chains))


@dataclass(frozen=True, slots=True)
class _Saved:
    """What an earlier life has left: per fragment the version, the digest of its certificate, its tensors."""

    held: tuple[int, ...]
    heads: tuple[bytes, ...]
    tensors: Callable[[int], Mapping[str, Tensor]]
    learner: Path | None
    learner_heads: tuple[bytes, ...]  # as in `RunState`


def head_of(chain: PackedHistory) -> bytes:
    """The digest of a chain's newest certificate; zeros at version 0, which has none."""
    return chain.digests[-1] if chain else bytes(DIGEST_BYTES)


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
        self.vote_log = VoteLog(self.path / "votes")
        self.evidence = EvidenceFiles(self.path / "evidence")
        self._run_id = run_id
        self._generations = Generations(self.path, run_id)
        self._logs: dict[int, CertificateLog] = {}

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
        saved = self._saved()
        chains, anchors = self._certified(saved, manifest, rules)
        held = tuple(chain.version for chain in chains)
        if saved is None:
            return RunState(chains, held, anchors, votes, None)
        return RunState(chains, held, anchors, votes, saved.learner, saved.learner_heads)

    def read_certified(self, manifest: Manifest, rules: Rules) -> Captured:
        """What was saved last, for another process than the peer's: nothing is written.

        Raises LocalError if nothing was saved, or if files contradict each other.
        """
        saved = self._saved()
        if saved is None:
            raise LocalError(f"{self.path} holds no checkpoint yet; wait until the peer has saved one")
        chains, anchors = self._certified(saved, manifest, rules)
        states = tuple(anchors.current(chain.fragment) for chain in chains)
        return Captured(tuple(one.version for one in chains), states, tuple(one.certificates for one in chains))

    def _saved(self) -> _Saved | None:
        """Raises UsageError if another major version has written it, LocalError if it cannot be used."""
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
        anchors = Anchors(layouts, states, Aside(self.path), older_kept=config.pace.overlap)
        for chain, state in zip(chains, states, strict=True):
            anchors.install(chain.fragment, chain.digest, state)  # version 0 is that which no certificate made
        if given is not None:
            anchors.serve_first(manifest.genesis, given)
        return chains, anchors

    def _unusable(self, error: Exception) -> LocalError:
        return LocalError(f"the checkpoint in {self.path} cannot be used ({error}); move that folder away")

    def _load_chain(self, empty: Chain, version: int, head: bytes) -> Chain:
        kept = self._log(empty.fragment).read(version, head, empty.rules.chain_kept) if version else []
        return Chain.holding(empty.rules, empty.fragment, empty.genesis, kept)

    def saved_learner(self) -> Path | None:
        """The learner's state as it was saved last, None where that was never."""
        saved = self._saved()
        return None if saved is None else saved.learner

    # -- saving

    @property
    def has_learner(self) -> bool:
        """Whether a learner's part was saved last."""
        last = self._generations.last
        return last is not None and last.index.learner != ""

    @property
    def learner_file(self) -> Path:
        """Where the learner writes its part of a checkpoint before it is packed with the rest."""
        return self.path / "learner-new" / "learner.safetensors"

    def make_room(self) -> None:
        """Remove what a learner that was ended in the middle has left where it writes, and what is older than the
        newest generation, so that two of them are all that ever lies here; raises LocalError."""
        self._generations.keep_newest()
        try:
            clear_folder(self.learner_file.parent)
        except OSError as error:
            raise LocalError(f"{self.learner_file.parent} cannot be written: {error.strerror}") from None

    def written(self) -> tuple[int, ...]:
        """Another one whenever more of a checkpoint is written, whose files have other names and full sizes then."""
        found: list[int] = []
        for folder in (self.learner_file.parent, self._generations.unfinished):
            with suppress(OSError):  # files come and go meanwhile
                for file in sorted(folder.iterdir()):
                    about = file.stat()
                    found += [about.st_ino, about.st_size, about.st_blocks, about.st_mtime_ns]
        return tuple(found)

    def stage(self, captured: Captured, only: Container[int] | None = None) -> tuple[SavedFragment, ...]:
        """Write certificates and states, which nobody has to hold for the `commit` that follows. Raises LocalError.

        `only` of these fragments, if anything was saved before.
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
        """Save what was staged last together with the learner; returns how many bytes were new.

        Without a file, the learner's part is what was saved last. `learner_heads` are of the moment at which it was
        written, None if that is the moment of all that was staged. Raises LocalError, and then the old ones remain.
        """
        written_bytes = self._generations.commit(staged, learner_file, learner_file is None, learner_heads)
        for log in self._logs.values():
            log.cut()
        return written_bytes

    def passed(self, chains: Sequence[Sequence[Certificate]]) -> tuple[list[Certificate], ...]:
        """By fragment a few certificates that stand for all before these; raises LocalError."""
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
    """In memory, whatever becomes of the file."""
    momentum = mapped.momentum
    return OuterState(mapped.anchor.clone(), momentum.clone() if isinstance(momentum, Tensor) else momentum)

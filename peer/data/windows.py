"""The windows that learners read, by default from the Python standard library's source, byte by byte (design §11).

That is on every machine that runs this program. Two machines with the same Python have the same bytes, and
`TokenData.digest` tells whether they do. For other data see `peer.data.corpus`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from coordinator.chain.passes import PassPlan, check_windows
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import RunConfig
from dht.errors import UsageError
from dht.statement import digest_of
from peer.data.corpus import read_corpus
from peer.data.library import LibrarySource, library_root, source_files
from peer.data.tally import Loading
from peer.data.token_files import TokenData
from peer.data.token_writer import is_heldout_digest
from peer.data.tokens import BYTES, Encoder, encode_bytes, encoder, tokenizer_file
from peer.machine.local_files import NO_FILES, LocalFiles

BYTE_VOCABULARY = BYTES
LOADING = Loading()  # silent, with one thread


def load_tokens(
    spec: DataSpec,
    vocabulary: int = BYTE_VOCABULARY,
    files: LocalFiles = NO_FILES,
    root: Path | None = None,
    loading: Loading = LOADING,
) -> TokenData:
    """Read the data set of `spec` from the owner's `files`; `root` replaces the standard library's folder.

    Raises UsageError if the data cannot be read, are too few, or have tokens outside the model's vocabulary.
    """
    if spec.source == "own":
        raise UsageError("the peers of this run bring their own loop and data; take part with peer.Session")
    library = root or library_root()
    if spec.source == "tokens":
        data = read_corpus(spec, files, Encoder(encode_bytes, vocabulary), loading)
    elif spec.source != "stdlib":
        data = read_corpus(spec, files, run_encoder(spec, vocabulary, files), loading)
    elif spec.tokenizer_sha256 or spec.is_marked:
        source = LibrarySource(library)
        data = read_corpus(spec, files, run_encoder(spec, vocabulary, files), loading, source)
    else:
        data = _library_tokens(spec, library)
    if spec.is_in_passes:
        check_windows(_windows(data.train, spec), spec.context_tokens)
    return data


def run_encoder(spec: DataSpec, vocabulary: int, files: LocalFiles) -> Encoder:
    """Return the encoder of this run's text; for ready tokens without a tokenizer it only gives their range."""
    if spec.source == "tokens" and not spec.tokenizer_sha256:
        return Encoder(encode_bytes, vocabulary)
    return encoder(tokenizer_file(spec, files.tokenizer), vocabulary, spec)


def _library_tokens(spec: DataSpec, root: Path) -> TokenData:
    train, heldout = bytearray(), bytearray()
    hasher = hashlib.sha256(b"muster-data/1")
    for path, content in source_files(root):
        hasher.update(digest_of(path.encode(), content))
        (heldout if is_heldout(path) else train).extend(content)
    if min(len(train), len(heldout)) <= spec.context_tokens:
        raise UsageError(
            f"this Python's standard library holds {len(train)} bytes of source to train on and {len(heldout)} to "
            f"evaluate on, too few for sequences of {spec.context_tokens}; install Python with its library sources"
        )
    return TokenData(_tokens(train), _tokens(heldout), hasher.digest(), len(heldout))


def is_heldout(path: str) -> bool:
    """Whether the file at this path (relative, `/` between folders) is held out: about 3 % of files."""
    return is_heldout_digest(hashlib.sha256(path.encode()).digest())


@dataclass(frozen=True, slots=True)
class TrainingWindows:
    """One learner's endless, resumable sequence of batches; window k is a pure function of (run, peer, k).

    `run_key` is the run id, so that other peers can redraw an assigned window and check the work (design §9).
    """

    tokens: Tensor
    spec: DataSpec
    run_key: bytes
    peer_id: str

    def batch(self, window: int) -> Tensor:
        """Return the tokens of one inner step, int64, shape (sequences_per_step, context_tokens + 1)."""
        seed = digest_of(b"muster-window", self.run_key, self.peer_id.encode(), window.to_bytes(8, "big"))
        length, sequences = self.spec.context_tokens + 1, self.spec.sequences_per_step
        if self.spec.is_packed:
            starts = length * _starts(seed, sequences, len(self.tokens) // length)
        else:
            starts = _starts(seed, sequences, len(self.tokens) - length + 1)
        return _cut(self.tokens, starts, length)


@dataclass(frozen=True, slots=True)
class PassWindows:
    """One learner's windows in a run that reads in passes; `deal` assigns the sequences of each window."""

    tokens: Tensor
    spec: DataSpec
    deal: PassPlan

    def batch(self, window: int) -> Tensor:
        """Return the tokens of one inner step, int64, shape (sequences_per_step, context_tokens + 1)."""
        found = [self.deal.sequence(window, sequence)[1] for sequence in range(self.spec.sequences_per_step)]
        return _cut(self.tokens, torch.tensor(found) * _stride(self.spec), self.spec.context_tokens + 1)


def training_windows(tokens: Tensor, config: RunConfig, run_key: bytes, peer_id: str) -> TrainingWindows | PassWindows:
    """Return the windows that this peer reads of these training tokens; raises UsageError if they are too few."""
    spec = config.data
    if not spec.is_in_passes or not peer_id:
        return TrainingWindows(tokens, spec, run_key, peer_id)
    return PassWindows(tokens, spec, PassPlan.of(_windows(tokens, spec), config, run_key, peer_id))


def whole_windows(tokens: Tensor, spec: DataSpec) -> Tensor:
    """Return all windows of a text, without overlap: int64, shape (sequences, context_tokens + 1)."""
    return _cut(tokens, torch.arange(_windows(tokens, spec)) * _stride(spec), spec.context_tokens + 1)


def _windows(tokens: Tensor, spec: DataSpec) -> int:
    """Return how many windows a text is cut into."""
    return (len(tokens) - (not spec.is_packed)) // _stride(spec)


def _stride(spec: DataSpec) -> int:
    """Return the tokens from one window to the next, which begins with the last one's last target unless packed."""
    return spec.context_tokens + spec.is_packed


def evaluation_windows(heldout: Tensor, spec: DataSpec, seed: int) -> Tensor:
    """Return the held-out sequences of a run, the same for all peers: int64, shape (sequences, context_tokens + 1).

    They are spread evenly over the held-out text, from a first offset that the run's seed determines. They hold
    `evaluation_tokens` predicted tokens, or as many as there are without overlap.
    """
    length = spec.context_tokens + 1
    if spec.is_packed:
        rows = len(heldout) // length
        chosen = max(1, min(spec.evaluation_tokens // spec.context_tokens, rows))
        return _cut(heldout, length * (torch.arange(chosen) * rows // chosen), length)
    room = len(heldout) - length
    count = max(1, min(spec.evaluation_tokens // spec.context_tokens, room // length))
    spacing = max(1, room // count)
    first = int(_starts(digest_of(b"muster-evaluation", seed.to_bytes(8, "big")), 1, spacing)[0])
    return _cut(heldout, first + spacing * torch.arange(count), length)


def _tokens(content: bytearray) -> Tensor:
    return torch.frombuffer(content, dtype=torch.uint8)


def _starts(seed: bytes, count: int, bound: int) -> Tensor:
    """Return `count` integers in [0, bound), drawn from `seed`; int64. The modulo's bias stays below 2⁻³⁰."""
    stream = bytearray(hashlib.shake_256(seed).digest(8 * count))
    draws = torch.frombuffer(stream, dtype=torch.int64)
    return torch.remainder(draws & (2**63 - 1), bound)


def _cut(tokens: Tensor, starts: Tensor, length: int) -> Tensor:
    return tokens[starts[:, None] + torch.arange(length)].long()

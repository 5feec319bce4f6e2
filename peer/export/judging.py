"""Evaluates a run's model on the run's held-out text and on the user's own files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from coordinator.chain.chain import Rules
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import Manifest
from dht.errors import LocalError, UsageError
from dht.identity import KeyVerifier
from peer.data.chat_lines import conversations, packed
from peer.data.corpus_files import corpus_paths
from peer.data.readers import file_blocks
from peer.data.ready_tokens import ready_blocks
from peer.data.tally import CorpusTally, Loading
from peer.data.tokens import Encoder, Tokens
from peer.data.windows import evaluation_windows, load_tokens, run_encoder, whole_windows
from peer.export.adapter_files import stored_name, weights_file
from peer.export.model_files import TOKENIZER
from peer.export.verifier import verify_export
from peer.learner.devices import choose_devices
from peer.learner.evaluation import FlatModel, window_losses
from peer.learner.memory_estimate import evaluator_bytes
from peer.machine.local_files import LocalFiles
from peer.model.located import located
from peer.numerics.fragments import gather
from peer.storage.anchors import layouts_of
from peer.storage.run_directory import RunDirectory
from peer.storage.tokenizer_file import TOKENIZER_FILE

OWN_TOKENS_MAX = 1 << 24  # read from the user's own files
_SOURCES = {".jsonl": "jsonl", ".parquet": "parquet", ".npy": "tokens", ".safetensors": "tokens"}


@dataclass(frozen=True, slots=True)
class Judged:
    """A model's result on one text. `error` is the standard error of `loss`, None for a single sequence.

    Both are nats per token. `bytes_per_token` is 0 if the size of the text behind the tokens is unknown.
    """

    text: str
    loss: float
    error: float | None
    sequences: int
    tokens: int
    bytes_per_token: float
    note: str = ""

    @property
    def perplexity(self) -> float:
        """The perplexity per token."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        """The loss in bits per byte, comparable between tokenizers; None if the size of the text is unknown."""
        return self.loss / math.log(2) / self.bytes_per_token if self.bytes_per_token else None


class Judge:
    """Evaluates one certified model."""

    def __init__(
        self, manifest: Manifest, anchors: list[Tensor], tokenizer: str, device: str = "cpu", base: str = ""
    ) -> None:
        """`anchors` are float32[elements] per fragment; `tokenizer` is the path of the run's tokenizer, or empty.

        `device` may be `auto`. Raises UsageError if it does not work.
        """
        self._manifest = manifest
        if manifest.config.model.is_own:
            raise UsageError(
                "the peers of this run brought the model's class themselves; evaluate it with a loop of yours"
            )
        self._tokenizer = tokenizer
        config = located(manifest.config, base)
        (self._device,), _ = choose_devices(device, lambda _: evaluator_bytes(config), 1.0)
        self._flat = FlatModel(config, self._device)
        self._anchors = anchors

    @classmethod
    def of_export(cls, folder: Path, device: str, base: str = "") -> Judge:
        """Verify and load an export; raises what `verify_export` does, and LocalError if its weights cannot be read."""
        manifest = verify_export(folder, KeyVerifier()).manifest
        config, weights = manifest.config, folder / weights_file(manifest.config)
        try:
            named = load_file(weights)
        except (OSError, SafetensorError) as error:
            raise LocalError(f"{weights} cannot be read: {error}") from None
        layouts = layouts_of(config)
        ours = {one.name: named[stored_name(config, one.name)] for layout in layouts for one in layout.tensors}
        anchors = [gather(layout, ours) for layout in layouts]
        return cls(manifest, anchors, _beside(folder / TOKENIZER, manifest), device, base)

    @classmethod
    def of_peer(cls, home: Path, manifest: Manifest, device: str, base: str = "") -> Judge:
        """Load the last state that the peer in this folder saved; raises LocalError if there is none."""
        directory = RunDirectory(home, manifest.run_id)
        captured = directory.read_certified(manifest, Rules.of(manifest, KeyVerifier()))
        tokenizer = _beside(directory.path / TOKENIZER_FILE, manifest)
        return cls(manifest, [state.anchor for state in captured.states], tokenizer, device, base)

    @property
    def needs_files(self) -> bool:
        """Whether the run's own text is in files, which the user has to name."""
        return self._manifest.config.data.source not in ("stdlib", "hub")

    def run_text(self, files: LocalFiles, loading: Loading) -> Judged:
        """Evaluate the model on the same windows as the run's host; raises UsageError if the text is not available."""
        config = self._manifest.config
        data = load_tokens(config.data, config.model.vocabulary, self._with_tokenizer(files), loading=loading)
        windows = evaluation_windows(data.heldout, config.data, config.seed)
        other = "" if data.digest == self._manifest.data_digest else "this text is not the one that the run began with"
        name = f"held-out text of {config.name}"
        return self._judged(name, windows, data.heldout_bytes / max(1, len(data.heldout)), other or data.note)

    def own_text(self, files: LocalFiles) -> Judged:
        """Evaluate the model on these files, cut into sequences; raises UsageError if they hold less than one."""
        config, tally = self._manifest.config, CorpusTally()
        encoder = run_encoder(config.data, config.model.vocabulary, self._with_tokenizer(files))
        parts, count = list[Tokens](), 0
        text_bytes: int | None = 0
        for tokens, size_bytes in _tokens_of(files.corpus, config.data, encoder, tally):
            parts.append(tokens)
            count += len(tokens)
            text_bytes = None if text_bytes is None or size_bytes is None else text_bytes + size_bytes
            if count >= OWN_TOKENS_MAX:
                tally.notes.append(f"read no further than {OWN_TOKENS_MAX:,} tokens")
                break
        length = config.data.context_tokens + 1
        if count < length:
            note = f" ({line})" if (line := tally.line()) else ""
            raise UsageError(f"{files.corpus} holds {count} tokens, fewer than a sequence of {length}{note}")
        tokens_there = torch.from_numpy(np.concatenate(parts))
        windows = whole_windows(tokens_there, config.data)
        return self._judged(files.corpus, windows, (text_bytes or 0) / count, tally.line())

    def _with_tokenizer(self, files: LocalFiles) -> LocalFiles:
        return replace(files, tokenizer=files.tokenizer or self._tokenizer)

    def _judged(self, text: str, windows: Tensor, bytes_per_token: float, note: str) -> Judged:
        with self._flat.under(self._anchors) as model:
            losses, learned = (one.double().cpu() for one in window_losses(model, windows.to(self._device)))
        count, tokens = len(losses), float(learned.sum())
        loss = float((losses * learned).sum()) / max(1.0, tokens)
        strayed = (learned * (losses - loss)).square().sum()  # of a ratio, because windows may differ in weight
        error = float((strayed * count / (count - 1)).sqrt()) / tokens if count > 1 and tokens else None
        return Judged(text, loss, error, count, int(tokens), bytes_per_token, note)


def _beside(path: Path, manifest: Manifest) -> str:
    return str(path) if manifest.config.data.tokenizer_sha256 and path.is_file() else ""


def _tokens_of(
    patterns: str, spec: DataSpec, encoder: Encoder, tally: CorpusTally
) -> Iterator[tuple[Tokens, int | None]]:
    """Yield pieces of tokens, and the size of the text behind each; None if it is unknown."""
    if encoder.chat is not None:
        paths = corpus_paths(patterns, tally)
        said = (one for path in paths for one in conversations(path, encoder.chat, tally))
        rows = packed(map(encoder.chat.encode, said), spec.context_tokens + 1, tally)
        yield from ((row, None) for row, _ in rows)
        return
    for path in corpus_paths(patterns, tally):
        source = _SOURCES.get(path.suffix, "text")
        read = spec.model_copy(update={"source": source})
        if source == "tokens":
            yield from ((tokens, None) for tokens in ready_blocks(path, read, encoder.size, tally))
            continue
        if spec.source == "tokens":
            raise UsageError(f"this run's text came as numbered tokens; {path} would have to hold such tokens, too")
        for block in file_blocks(path, read, encoder, tally):
            yield encoder.document(block.text, block.begins, block.ends), len(block.text.encode())

"""Times how soon a run over the user's own text certifies: `python tests/bench/bench_text.py FILE … [--megabytes 50]`.

FILEs are plain text, also packed with gzip: English prose is in Debian's linux-doc-6.12 (its .rst), dict-gcide,
dict-foldoc, dict-jargon and debian-reference-en. They are cut into documents of a few paragraphs until there are so
many megabytes, and a byte-level BPE tokenizer of --vocabulary tokens is trained on them.

Prints the peak memory for making the tokens, beyond a process that has everything loaded, against the size of the file
that is made. Then it starts the preset gpt2-124m with smaller sizes twice, as a host and two learners, with an empty
cache and with a full one. It prints the seconds from the start of the host until others can join, and until the first
version is certified.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from coordinator.run.data_spec import DataSpec
from coordinator.views.control import ask, snapshot
from coordinator.views.snapshot import PeerSnapshot
from dht.errors import LocalError, UsageError
from peer.data.special_tokens import special_tokens
from peer.data.tally import Loading
from peer.data.windows import load_tokens, run_encoder
from peer.machine.local_files import LocalFiles

DOCUMENT_CHARACTERS = 2000  # about
GZIP = b"\x1f\x8b"
PATIENCE_SECONDS = 500.0
ENDING_SECONDS = 60.0
LEARNERS = ("ann", "bob")
CUT = {
    "model.layers": 2,
    "model.hidden_size": 64,
    "model.heads": 2,
    "data.context_tokens": 128,
    "data.sequences_per_step": 4,
    "data.evaluation_tokens": 8192,
    "pace.fragments": 4,
    "pace.steps_per_version": 24,
    "pace.quorum": 2,
    "pace.round_seconds": 20,
    "pace.presence_seconds": 2,
    "pace.presence_lifetime_seconds": 6,
}


# -- the user's files


def documents(paths: Sequence[Path]) -> Iterator[str]:
    """Yield documents of a few paragraphs from these files."""
    for path in paths:
        content = path.read_bytes()
        text = (gzip.decompress(content) if content.startswith(GZIP) else content).decode(errors="replace")
        document = ""
        for paragraph in text.split("\n\n"):
            document += paragraph + "\n\n"
            if len(document) >= DOCUMENT_CHARACTERS:
                yield document
                document = ""
        if document.strip():
            yield document


def write_corpus(paths: Sequence[Path], target: Path, size_bytes: int) -> int:
    """Write so many bytes of text as JSON lines; returns the number written."""
    written = 0
    with target.open("w", encoding="utf-8") as file:
        for document in documents(paths):
            file.write(json.dumps({"text": document}) + "\n")
            written += len(document.encode())
            if written >= size_bytes:
                break
    return written


def train_tokenizer(corpus: Path, target: Path, vocabulary: int) -> None:
    """Train a tokenizer as most people do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with corpus.open(encoding="utf-8") as lines:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    tokenizer.save(str(target))


# -- memory


def status(key: str) -> int:
    """Return a memory size of this process in bytes: VmRSS, or VmHWM, its peak."""
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) * 1024


def measure_memory(corpus: Path, tokenizer: Path, vocabulary: int, threads: int) -> dict[str, float]:
    """Make the tokens into an empty cache, with all libraries loaded before; returns the memory and time."""
    _, end = special_tokens(tokenizer.read_bytes(), str(tokenizer))
    spec = DataSpec(source="jsonl", end_token=end)
    with tempfile.TemporaryDirectory(dir=corpus.parent) as cache:
        loading = Loading(threads=threads)
        run_encoder(spec, vocabulary, LocalFiles(str(corpus), str(tokenizer))).document("a few words")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, began = status("VmRSS"), time.monotonic()
        data = load_tokens(spec, vocabulary, LocalFiles(str(corpus), str(tokenizer), cache), loading=loading)
        seconds, grown = time.monotonic() - began, status("VmHWM") - before
    tokens = len(data.train) + len(data.heldout)
    made = tokens * data.train.element_size()
    return {"tokens": tokens, "seconds": seconds, "made_bytes": made, "grown_bytes": grown, "ratio": grown / made}


# -- time


class Peers:
    """A host and two learners, each in its own process, as three people would start them here."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> Path:
        data = self._folder / name
        with (self._folder / f"{name}.txt").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", "peer.cli", *arguments, "--data", str(data), "--name", name],
                cwd=ROOT,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return data

    def wait(self, name: str, wanted: Callable[[PeerSnapshot], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and self._processes[name].poll() is None:
            with suppress(LocalError, UsageError):  # not there yet
                if wanted(snapshot(self._folder / name)):
                    return
            time.sleep(0.05)
        raise SystemExit(f"{name} does not get there:\n{(self._folder / f'{name}.txt').read_text()}")

    def end(self) -> None:
        for process in reversed(self._processes.values()):
            process.send_signal(signal.SIGINT)
        for process in self._processes.values():
            try:
                process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start_run(corpus: Path, tokenizer: Path, vocabulary: int, cache: Path) -> tuple[float, float]:
    """Return the seconds from the start of the host until it hosts, and until all have the first certified version."""
    settings = CUT | {"data.source": "jsonl", "data.path": corpus, "data.tokenizer": tokenizer}
    cut = [
        part
        for key, value in (settings | {"model.vocabulary": vocabulary}).items()
        for part in ("--set", f"{key}={value}")
    ]
    with tempfile.TemporaryDirectory() as folder:
        peers, began = Peers(Path(folder), cache), time.monotonic()
        try:
            host = peers.start("host", "host", str(ROOT / "examples" / "gpt2-124m.toml"), *cut)
            peers.wait("host", lambda now: now.state == "hosting")
            hosting = time.monotonic() - began
            own = ["--corpus", str(corpus), "--tokenizer", str(tokenizer)]
            for name in LEARNERS:
                peers.start(name, "join", str(ask(host, "invite")["invite"]), "--yes", "--threads", "1", *own)
            for name in LEARNERS:
                peers.wait(name, lambda now: any(one.version for one in now.fragments))
            return hosting, time.monotonic() - began
        finally:
            peers.end()


def main() -> int:
    options = parser().parse_args()
    work: Path = options.work
    work.mkdir(exist_ok=True)
    corpus, tokenizer = work / "corpus.jsonl", work / "tokenizer.json"
    if options.memory_only:
        print(json.dumps(measure_memory(corpus, tokenizer, options.vocabulary, options.threads)))
        return 0
    size = write_corpus(sorted(options.files), corpus, int(options.megabytes * 1e6))
    print(f"{size / 1e6:.1f} MB of text", flush=True)
    train_tokenizer(corpus, tokenizer, options.vocabulary)
    again = [sys.executable, __file__, "--memory-only", "--work", str(work), "--threads", str(options.threads)]
    found = json.loads(subprocess.check_output([*again, "--vocabulary", str(options.vocabulary)]))
    print(
        f"{found['tokens'] / 1e6:.2f} M tokens in {found['seconds']:.1f} s, {found['made_bytes'] / 1e6:.1f} MB; "
        f"memory grew by {found['grown_bytes'] / 1e6:.1f} MB, {found['ratio']:.2f} of that",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as cache:
        for start in ("first", "second"):
            hosting, certified = start_run(corpus, tokenizer, options.vocabulary, Path(cache))
            print(f"{start} start: hosting after {hosting:.1f} s, first version after {certified:.1f} s", flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", help="prose")
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--threads", type=int, default=2, help="that make tokens")
    parser.add_argument("--work", type=Path, default=Path("prose"), help="folder for corpus and tokenizer")
    parser.add_argument("--memory-only", action="store_true", help="only measure memory, with what is in --work")
    return parser


if __name__ == "__main__":
    sys.exit(main())

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.passes import ReadingLane
from coordinator.run.data_spec import DataSpec
from coordinator.run.manifest import PaceSpec, RunConfig
from dht.errors import UsageError
from peer.data.token_files import TokenData
from peer.data.windows import (
    BYTE_VOCABULARY,
    TrainingWindows,
    evaluation_windows,
    is_heldout,
    load_tokens,
    training_windows,
)
from peer.swarm.view import BIGRAM_NATS, UNIGRAM_NATS

SPEC = DataSpec(context_tokens=8, sequences_per_step=4, evaluation_tokens=256)
TEXT = torch.arange(1000).remainder(251).to(torch.uint8)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for number in range(200):
        folder = tmp_path / f"package{number % 3}"
        folder.mkdir(exist_ok=True)
        (folder / f"module{number}.py").write_text(f"value = {number}\n")
    return tmp_path


def test_the_standard_library_is_read_and_split():
    data = load_tokens(DataSpec())
    assert data.train.dtype == data.heldout.dtype == torch.uint8
    assert len(data.train) > 5_000_000
    assert 0.005 < len(data.heldout) / len(data.train) < 0.1
    assert b"def __init__(self" in bytes(data.heldout.numpy())
    assert data.digest == load_tokens(DataSpec()).digest


def entropy_baselines(data: TokenData) -> tuple[float, float]:
    """Return the nats per token of the held-out text under the training text's unigrams and bigrams.

    A model that learned only frequencies would reach these.
    """
    train, heldout = data.train.long(), data.heldout.long()
    unigrams = torch.bincount(train, minlength=BYTE_VOCABULARY).double() + 1
    pairs = torch.bincount(train[:-1] * BYTE_VOCABULARY + train[1:], minlength=BYTE_VOCABULARY**2).double()
    bigrams = pairs.view(BYTE_VOCABULARY, BYTE_VOCABULARY) + 0.05  # unseen pairs stay possible
    unigram_nats = -(unigrams / unigrams.sum()).log()[heldout].mean()
    bigram_nats = -(bigrams / bigrams.sum(1, keepdim=True)).log()[heldout[:-1], heldout[1:]].mean()
    return float(unigram_nats), float(bigram_nats)


def test_frequencies_alone_give_the_scale_that_is_shown():
    unigrams, bigrams = entropy_baselines(load_tokens(DataSpec()))
    assert unigrams == pytest.approx(UNIGRAM_NATS, abs=0.1)  # every Python has a text of its own
    assert bigrams == pytest.approx(BIGRAM_NATS, abs=0.1)


def test_baselines_of_a_known_source():
    alternating = torch.tensor([0, 1] * 50_000, dtype=torch.uint8)
    unigrams, bigrams = entropy_baselines(TokenData(alternating, alternating[:1000], bytes(32)))
    assert unigrams == pytest.approx(0.693 + 256 / 100_256, abs=0.01)
    assert bigrams == pytest.approx(0, abs=0.001)


def test_files_keep_their_side_and_their_order(library: Path):
    data = load_tokens(SPEC, root=library)
    paths = sorted(path.relative_to(library).as_posix() for path in library.rglob("*.py"))
    train = b"".join((library / path).read_bytes() for path in paths if not is_heldout(path))
    heldout = b"".join((library / path).read_bytes() for path in paths if is_heldout(path))
    assert bytes(data.train.numpy()) == train
    assert bytes(data.heldout.numpy()) == heldout
    assert heldout


@pytest.mark.parametrize(
    "path",
    ["test/x.py", "email/test/x.py", "site-packages/x.py", "__pycache__/x.py", "_sysconfigdata_linux.py", "notes.txt"],
)
def test_files_outside_the_library_are_skipped(library: Path, path: str):
    before = load_tokens(SPEC, root=library)
    (library / path).parent.mkdir(exist_ok=True, parents=True)
    (library / path).write_text("secret = 1\n")
    after = load_tokens(SPEC, root=library)
    assert after.digest == before.digest
    assert torch.equal(after.train, before.train)


def test_the_digest_names_content_and_place(library: Path):
    before = load_tokens(SPEC, root=library).digest
    module = library / "package0" / "module0.py"
    module.write_text("value = 1\n")
    changed = load_tokens(SPEC, root=library).digest
    module.rename(library / "package0" / "module0a.py")
    assert len({before, changed, load_tokens(SPEC, root=library).digest}) == 3


def test_a_python_without_sources_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="install Python"):
        load_tokens(SPEC, root=tmp_path)


@given(window=st.integers(0, 2**40))
def test_a_window_is_a_pure_function_of_run_peer_and_index(window: int):
    batch = TrainingWindows(TEXT, SPEC, b"run", "peer").batch(window)
    assert torch.equal(batch, TrainingWindows(TEXT, SPEC, b"run", "peer").batch(window))
    assert batch.shape == (4, 9)
    assert batch.dtype == torch.int64
    for key, peer, index in ((b"other", "peer", window), (b"run", "other", window), (b"run", "peer", window + 1)):
        assert not torch.equal(batch, TrainingWindows(TEXT, SPEC, key, peer).batch(index))


def test_windows_are_consecutive_tokens_from_everywhere():
    windows = TrainingWindows(torch.arange(200).to(torch.uint8), SPEC, b"run", "peer")
    batches = torch.cat([windows.batch(index) for index in range(500)])
    assert torch.equal(batches, batches[:, :1] + torch.arange(9))
    assert set(batches[:, 0].tolist()) == set(range(200 - 8))


def test_windows_of_a_pass_are_all_of_the_text_side_by_side():
    """1000 tokens are 124 windows of 8, each with the token that follows it; two of them are for guests."""
    spec = SPEC.model_copy(update={"order": "passes", "sequences_per_step": 1})
    config = RunConfig(versions=1, data=spec, pace=PaceSpec(fragments=1))
    windows = training_windows(torch.arange(1000), config, b"run", "peer")
    lanes = [(ReadingLane(version, rank, 2).first, size) for version in (0, 1) for rank, size in ((0, 31), (1, 30))]
    batches = torch.cat([windows.batch(first + step) for first, size in lanes for step in range(size)])
    assert torch.equal(batches, batches[:, :1] + torch.arange(9))
    assert len(set(batches[:, 0].tolist())) == 122
    assert set(batches[:, 0].tolist()) <= set(range(0, 992, 8))


def test_a_text_too_small_for_passes_is_refused_when_it_is_read(library: Path):
    spec = SPEC.model_copy(update={"context_tokens": 30})
    read = [path for path in library.rglob("*.py") if not is_heldout(path.relative_to(library).as_posix())]
    for path in read[:100]:
        path.unlink()
    assert 30 < len(load_tokens(spec, root=library).train) < 64 * 30
    with pytest.raises(UsageError, match="bring more text"):
        load_tokens(spec.model_copy(update={"order": "passes"}), root=library)


def test_a_reader_without_an_id_draws_windows_in_every_run():
    config = RunConfig(data=SPEC.model_copy(update={"order": "passes"}))
    batch = training_windows(TEXT, config, b"run", "").batch(3)
    assert torch.equal(batch, TrainingWindows(TEXT, SPEC, b"run", "").batch(3))


def test_evaluation_windows_do_not_overlap_and_depend_on_the_seed_only():
    heldout = torch.arange(255).to(torch.uint8)
    spec = SPEC.model_copy(update={"evaluation_tokens": 10_000})
    windows = evaluation_windows(heldout, spec, seed=3)
    assert torch.equal(windows, evaluation_windows(heldout, spec, seed=3))
    assert windows.unique().numel() == windows.numel()
    fewer = evaluation_windows(heldout, SPEC.model_copy(update={"evaluation_tokens": 64}), seed=3)
    assert fewer.shape == (8, 9)
    starts = {int(evaluation_windows(heldout, SPEC, seed)[0, 0]) for seed in range(20)}
    assert len(starts) > 1


@given(length=st.integers(9, 60), seed=st.integers(0, 2**63 - 1))
def test_evaluation_fits_even_little_text(length: int, seed: int):
    assert evaluation_windows(TEXT[:length], SPEC, seed).max() < 251

"""Exports: `transformers` loads them, they verify, and no flipped bit goes unseen."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import get_args

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save_file

from coordinator.chain.certificate import Vote
from coordinator.chain.proof import FragmentProof, Proof
from coordinator.run.data_spec import DataSource
from coordinator.run.manifest import Manifest
from coordinator.views.evaluation import Evaluation
from coordinator.views.snapshot import PeerSnapshot
from dht.addresses import PeerAddress
from dht.errors import LocalError, UsageError
from dht.identity import Identity, KeyVerifier
from dht.invite import Invite
from dht.statement import Context, Statement, digest_of, make_statement
from dht.wire import PROTOCOL_MAJOR, Wire
from peer.cli import main
from peer.export import verifier as verifier_module
from peer.export.card import model_card
from peer.export.findings import as_plain_data, in_words
from peer.export.listing import CARD, LISTING, MANIFEST, PROOF, WEIGHTS, ListedFile, Listing, list_files
from peer.export.model_files import CONFIG, TOKENIZER, TOKENIZER_CONFIG, model_config, model_files
from peer.export.verifier import Verified, verify_export
from peer.export.writer import write_export
from peer.model.buffers import kept_buffers
from peer.model.build import build_model, llama_config
from peer.node.options import NodeOptions
from peer.storage.run_directory import RunDirectory
from peer.storage.tokenizer_file import exported_tokenizer, keep_tokenizer
from tests.checkout import ROOT
from tests.peer import exporting
from tests.peer.exporting import KEYS, STRANGER, WRITTEN, CertifiedRun, buffered_run

PYTHON = (3, 11)
FILES = (*model_files(exporting.CONFIG), CARD, LISTING, MANIFEST, PROOF, WEIGHTS)


@pytest.fixture(scope="module")
def run() -> CertifiedRun:
    return CertifiedRun().advance(3)


@pytest.fixture(scope="module")
def whole(run: CertifiedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an unchanged export."""
    return run.write(tmp_path_factory.mktemp("exports") / "whole")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def verified(folder: Path) -> Verified:
    return verify_export(folder, KeyVerifier())


def sign_again(folder: Path, key: Identity = STRANGER, run_id: bytes | None = None) -> None:
    """List the present files under another key, as a forger can."""
    (folder / LISTING).unlink(missing_ok=True)
    context = Context(run_id=run_id or CertifiedRun().manifest.run_id, kind="export", fragment=0, version=0, group=b"")
    (folder / LISTING).write_bytes(make_statement(key, context, list_files(folder, WRITTEN)).to_wire())


def test_an_export_names_its_signers_and_goes_back_to_the_founders(whole: Path, run: CertifiedRun) -> None:
    found = verified(whole)
    assert found.from_founders
    assert found.manifest == run.manifest
    assert found.exporter == KEYS[0].peer_id
    assert [one.version for one in found.fragments] == [3, 3]
    assert [one.head for one in found.fragments] == [chain.digest for chain in run.chains]
    assert sorted(found.signers()) == sorted((key.peer_id, 2, 4) for key in KEYS)  # the first and the newest are shown
    assert sorted(path.name for path in whole.iterdir()) == sorted(FILES)


def test_the_weights_are_the_anchors(whole: Path, run: CertifiedRun) -> None:
    weights = load_file(whole / WEIGHTS)
    assert sum(tensor.numel() for tensor in weights.values()) == sum(len(state.anchor) for state in run.states)
    flat = torch.cat([tensor.flatten() for tensor in weights.values()])
    assert torch.equal(flat.sort().values, torch.cat([state.anchor for state in run.states]).sort().values)


@settings(deadline=None, max_examples=150)
@given(name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unseen(whole: Path, name: str, place: float, bit: int) -> None:
    path = whole / name
    before = path.read_bytes()
    data = bytearray(before)
    data[int(place * len(data))] ^= 1 << bit
    try:
        path.write_bytes(data)
        with pytest.raises(LocalError, match="does not verify") as refused:
            verified(whole)
        assert "\n" not in str(refused.value)
    finally:
        path.write_bytes(before)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from([WEIGHTS, PROOF, MANIFEST, CONFIG, TOKENIZER]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_is_seen_when_a_forger_signs_the_list_again(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, name: str, place: float, bit: int
) -> None:
    """Then certificates and manifest refuse it, except for bits that no reader of the format looks at."""
    folder = Path(shutil.copytree(whole, tmp_path_factory.mktemp("forged") / "copy"))
    data = bytearray((folder / name).read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (folder / name).write_bytes(data)
    sign_again(folder)
    try:
        found = verified(folder)
    except LocalError:
        return
    finally:
        changed = {path.name: path.read_bytes() for path in folder.iterdir()}
        shutil.rmtree(folder.parent)
    assert found.exporter == STRANGER.peer_id
    assert name in (WEIGHTS, CONFIG, TOKENIZER)
    if name == WEIGHTS:
        assert all(torch.equal(tensor, load_file(whole / WEIGHTS)[key]) for key, tensor in load(changed[name]).items())
    else:
        assert json.loads(changed[name]) == json.loads((whole / name).read_bytes())


def other_weights(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    name = min(weights)
    weights[name] = weights[name] + 1e-7
    save_file(weights, folder / WEIGHTS)


def narrower_weights(folder: Path) -> None:
    save_file({name: tensor.bfloat16() for name, tensor in load_file(folder / WEIGHTS).items()}, folder / WEIGHTS)


def a_tensor_of_another_shape(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    save_file(weights | {min(weights): torch.zeros(3)}, folder / WEIGHTS)


def one_tensor_more(folder: Path) -> None:
    save_file(load_file(folder / WEIGHTS) | {"lm_head.weight": torch.zeros(4)}, folder / WEIGHTS)


def other_configuration(folder: Path) -> None:
    values = json.loads((folder / CONFIG).read_text()) | {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}
    (folder / CONFIG).write_text(json.dumps(values))


def own_certificate(folder: Path) -> None:
    """Replace a fragment's newest certificate by one that only the forger signs."""
    run = CertifiedRun().advance(3)
    proof = Proof.from_wire((folder / PROOF).read_bytes())
    certificate = proof.fragments[0].certificates[-1]
    votes = tuple(make_statement(STRANGER, vote.context, vote.read(Vote)) for vote in certificate.votes[:1])
    forged = certificate.model_copy(update={"votes": votes})
    first = FragmentProof(momentum=proof.fragments[0].momentum, certificates=(*run.chains[0].certificates[:-1], forged))
    (folder / PROOF).write_bytes(Proof(fragments=(first, proof.fragments[1])).to_wire())


def one_certificate_less(folder: Path) -> None:
    proof = Proof.from_wire((folder / PROOF).read_bytes())
    first = proof.fragments[0].model_copy(update={"certificates": proof.fragments[0].certificates[:-1]})
    (folder / PROOF).write_bytes(Proof(fragments=(first, proof.fragments[1])).to_wire())


def much_that_is_no_certificate(folder: Path) -> None:
    """Write a proof of four megabytes that would take a hundred and thirty once unpacked."""
    proof = Proof.from_wire((folder / PROOF).read_bytes())
    junk = b"\xdd" + (2 << 20).to_bytes(4, "big") + b"\x91\xc0" * (2 << 20)
    momentum = msgpack.packb(proof.fragments[0].momentum, use_bin_type=True)
    (folder / PROOF).write_bytes(b"\x91\x92" + (b"\x92" + momentum + b"\x91" + junk) * 2)


def a_proof_of_nothing(folder: Path) -> None:
    (folder / PROOF).write_bytes(b"\x91\x90")


def a_configuration_full_of_blanks(folder: Path) -> None:
    (folder / CONFIG).write_text((folder / CONFIG).read_text() + " " * (1 << 20))


def a_file_of_code(folder: Path) -> None:
    (folder / "modeling_evil.py").write_text("1")


def no_configuration(folder: Path) -> None:
    (folder / CONFIG).unlink()


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (other_weights, "the weights of fragment . are not those that its certificate signs"),
        (narrower_weights, "is of another shape or type than the run's model has"),
        (a_tensor_of_another_shape, "is of another shape or type than the run's model has"),
        (one_tensor_more, "other tensors than the run's model"),
        (other_configuration, "config.json does not describe the run's model"),
        (own_certificate, "has too few votes"),
        (one_certificate_less, "the weights of fragment 0 are not those"),
        (much_that_is_no_certificate, "Certificate of [0-9]+ bytes is over the limit"),
        (a_proof_of_nothing, "Proof of no fragments"),
        (a_configuration_full_of_blanks, "config.json does not describe the run's model"),
        (a_file_of_code, "modeling_evil.py does not belong"),
        (no_configuration, "config.json does not belong to an export, or is missing"),
    ],
)
def test_a_forger_who_signs_the_list_is_found_out(copy: Path, forge: Callable[[Path], None], reason: str) -> None:
    forge(copy)
    sign_again(copy)
    with pytest.raises(LocalError, match=reason):
        verified(copy)


def test_a_list_from_after_all_calendars_does_not_verify(copy: Path) -> None:
    class Later(Wire):
        protocol_major: int
        files: tuple[ListedFile, ...]
        written_unix_seconds: int

    sign_again(copy)
    listed = Statement.from_wire((copy / LISTING).read_bytes())
    body = Later(**{**dict(listed.read(Listing)), "written_unix_seconds": 2**63})
    (copy / LISTING).write_bytes(make_statement(STRANGER, listed.context, body).to_wire())
    with pytest.raises(LocalError, match="written_unix_seconds"):
        verified(copy)


def test_an_export_of_another_protocol_is_named(copy: Path) -> None:
    listed = Statement.from_wire((copy / LISTING).read_bytes())
    body = listed.read(Listing).model_copy(update={"protocol_major": PROTOCOL_MAJOR - 1})
    signed_otherwise = listed.model_copy(update={"body": body.to_wire()})
    (copy / LISTING).write_bytes(signed_otherwise.to_wire())
    with pytest.raises(UsageError, match=f"written under protocol {PROTOCOL_MAJOR - 1}, and this is"):
        verified(copy)


def test_a_run_of_one_s_own_is_another_run(copy: Path) -> None:
    sign_again(copy, run_id=digest_of(b"another"))
    with pytest.raises(LocalError, match="is of another run"):
        verified(copy)


def test_no_config_is_made_of_an_export_whose_signatures_are_bad(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a folder of a kilobyte made a verifier build a config that took 10 GB."""
    made: list[object] = []
    monkeypatch.setattr(verifier_module, "fixed_files", lambda config: made.append(config) or {})
    proof = Proof.from_wire((copy / PROOF).read_bytes())
    first = proof.fragments[0]
    emptied = Proof(fragments=(first.model_copy(update={"certificates": ()}), *proof.fragments[1:]))
    (copy / PROOF).write_bytes(emptied.to_wire())
    sign_again(copy)
    with pytest.raises(LocalError):
        verified(copy)
    assert made == []


def test_files_that_were_not_listed_may_not_be_there(copy: Path) -> None:
    (copy / ".gitattributes").write_text("the hub writes this")
    verified(copy)
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(LocalError, match=r"adapter_config\.json does not belong to it"):
        verified(copy)
    (copy / "adapter_config.json").unlink()
    (copy / CARD).unlink()
    with pytest.raises(LocalError, match=r"README\.md is missing"):
        verified(copy)


def test_a_minor_version_is_not_the_founders(tmp_path: Path) -> None:
    """Two strangers can always certify their own minor version; the verifier tells the user."""
    run = CertifiedRun().advance(3)
    run.certify(run.chains[0], [STRANGER])
    found = verified(run.write(tmp_path / "export", STRANGER))
    assert not found.from_founders
    assert found.fragments[0].minor_versions == (4,)
    assert found.fragments[0].head_voters == {STRANGER.peer_id}
    assert "does not prove that these keys are the run's" in " ".join(in_words(found, tmp_path).split())


def test_a_long_run_exports_the_certificates_behind_its_newest(tmp_path: Path) -> None:
    run = CertifiedRun().advance(9)
    for chain in run.chains:
        chain.certificates.keep(len(chain.certificates) - 2)
    found = verified(run.write(tmp_path / "export"))
    assert [one.first_version for one in found.fragments] == [5, 5]
    assert not found.from_founders
    for chain in run.chains:
        chain.certificates.keep(4)
    with pytest.raises(LocalError, match="too few to prove it"):
        run.write(tmp_path / "newcomer")
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_tail_must_hold_together(tmp_path: Path) -> None:
    run, other = CertifiedRun().advance(9), CertifiedRun().advance(9, KEYS[::-1])
    for one in (run, other):
        for chain in one.chains:
            chain.certificates.keep(len(chain.certificates) - 2)
    folder = run.write(tmp_path / "export")
    proof = Proof.from_wire((folder / PROOF).read_bytes())
    first = proof.fragments[0]
    for place in range(4):
        mixed = list(first.certificates)
        mixed[place] = other.chains[0].certificates[-5 + place]
        changed = Proof(fragments=(first.model_copy(update={"certificates": tuple(mixed)}), proof.fragments[1]))
        (folder / PROOF).write_bytes(changed.to_wire())
        sign_again(folder)
        with pytest.raises(LocalError, match="of fragment 0 names another parent"):
            verified(folder)


def test_only_certified_versions_are_exported(tmp_path: Path) -> None:
    run = CertifiedRun()
    run.certify(run.chains[0])
    with pytest.raises(UsageError, match="not every fragment has a certified version yet"):
        run.write(tmp_path / "export")
    run.advance()
    wrong = replace(run.states[0], anchor=run.states[0].anchor + 1)
    exported = replace(run.exported(), captured=replace(run.captured(), states=(wrong, run.states[1])))
    write_export(tmp_path / "export", exported, KEYS[0], WRITTEN)
    with pytest.raises(LocalError, match="are not those that its certificate signs"):
        verified(tmp_path / "export")


def test_files_there_are_not_overwritten_and_a_crash_leaves_nothing_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: CertifiedRun
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "diary").write_text("dear")
    with pytest.raises(UsageError, match="exists already"):
        run.write(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(UsageError, match="exists already"):
        run.write(Path("."))  # a folder that somebody works in cannot be replaced
    run.write(tmp_path / "empty")

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("write_tensors", "list_files", "sync"):
        with monkeypatch.context() as patch:
            patch.setattr(f"peer.export.writer.{step}", full_disk)
            with pytest.raises(LocalError, match="No space left on device"):
                run.write(tmp_path / "export")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]


def test_the_list_is_written_as_this_version_wrote_it() -> None:
    """See `tests/dht/test_golden.py` for the rules."""
    listing = Listing(
        protocol_major=2,
        files=(ListedFile(name="README.md", size_bytes=70000, digest=bytes(range(32))),),
        written_unix_seconds=WRITTEN,
    )
    golden = (ROOT / "tests" / "wire" / f"v{PROTOCOL_MAJOR}" / "export_listing.bin").read_bytes()
    assert listing.to_wire() == golden
    assert Listing.from_wire(golden) == listing


def test_the_configuration_is_what_the_learners_trained() -> None:
    from transformers.models.llama.configuration_llama import LlamaConfig

    config = exporting.CONFIG
    ours = LlamaConfig.from_dict(model_config(config)).to_dict()
    trained = llama_config(config.model, config.data.context_tokens).to_dict()
    assert {key for key in ours.keys() | trained.keys() if ours.get(key) != trained.get(key)} <= {
        "architectures",  # written when saved
        "dtype",
    }


def test_transformers_loads_it_and_every_byte_is_a_token(whole: Path, run: CertifiedRun) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(whole)
    weights = load_file(whole / WEIGHTS)
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())
    tokenizer = AutoTokenizer.from_pretrained(whole)
    text = "def é\n\t🤖  x"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert [tokenizer.convert_tokens_to_ids(tokenizer.convert_ids_to_tokens(byte)) for byte in range(256)] == [
        *range(256)
    ]
    written = model.generate(**tokenizer("def ", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert written.shape == (1, 12)


def test_the_card_tells_the_run_in_numbers(whole: Path, run: CertifiedRun, tmp_path: Path) -> None:
    card = (whole / CARD).read_text()
    assert run.manifest.run_id.hex() in card
    assert "This model: 2.500 nats per token." in card
    assert "| 39 | 3,900 | 1.100 |" in card
    assert sum(line.startswith("| ") and line.endswith("0 |") for line in card.splitlines()) == 16
    assert "| tokens | 900 certified |" in card  # 3 versions of 100 + 200, as the third of the group is in no partition
    assert "not stated; ask the organiser" in card
    write_export(tmp_path / "free", run.exported(licence="CC0-1.0"), KEYS[0], WRITTEN)
    assert "| licence | CC0-1.0 |" in (tmp_path / "free" / CARD).read_text()


def test_a_card_without_evaluations_says_why() -> None:
    exported = CertifiedRun().advance().exported()
    unknown = model_card(replace(exported, evaluations=(), loss=None))
    assert "## Held-out loss\n\nHow it fell is not known to the peer that wrote this export: the run's host" in unknown
    one = Evaluation(versions=7, tokens_certified=1, wall_seconds=0, loss=2.0)
    assert "| 7 | 1 | 2.000 |" in model_card(replace(exported, evaluations=(one,)))


def test_the_last_save_is_exported_when_no_peer_runs(
    tmp_path: Path, run: CertifiedRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, target = tmp_path / "home", tmp_path / "out"
    command = ["export", str(target), "--data", str(home)]
    assert main.run(command, PYTHON) == 1
    assert "holds no run" in capsys.readouterr().err
    directory = RunDirectory(home, run.manifest.run_id)
    directory.keep_manifest(run.manifest)
    assert main.run(command, PYTHON) == 1
    assert "holds no checkpoint yet" in capsys.readouterr().err
    directory.commit(directory.stage(run.captured()), None)
    KEYS[1].save(NodeOptions(home).identity_path)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()}
    assert main.run(command, PYTHON) == 0
    assert "holds 6 certified versions" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file()} == before
    found = verified(target)
    assert (found.exporter, found.from_founders) == (KEYS[1].peer_id, True)
    other = run.manifest.model_copy(update={"created_unix_seconds": 1})
    RunDirectory(home, other.run_id).keep_manifest(other)
    assert main.run([*command[:1], str(tmp_path / "second"), *command[2:]], PYTHON) == 2
    assert "choose one with --run" in capsys.readouterr().err
    chosen = run.manifest.run_id.hex()[:8]
    assert main.run([*command[:1], str(tmp_path / "second"), *command[2:], "--run", chosen], PYTHON) == 0
    running = PeerSnapshot(
        peer_id="p",
        run_id=run.manifest.run_id.hex(),
        name="",
        role="learner",
        state="training",
        pid=1,
        wall_seconds=0.0,
    )
    monkeypatch.setattr("peer.cli.export.snapshot", lambda _: running)
    assert main.run([*command[:1], str(tmp_path / "third"), *command[2:]], PYTHON) == 0
    assert verified(tmp_path / "third").manifest == run.manifest
    asked: list[str] = []
    monkeypatch.setattr("peer.cli.export.snapshot", lambda _: running.model_copy(update={"run_id": other.run_id.hex()}))
    monkeypatch.setattr("peer.cli.export.ask", lambda home, command, _: asked.append(command))
    assert main.run([*command[:1], str(tmp_path / "fourth"), *command[2:], "--run", chosen], PYTHON) == 0
    assert asked == [], "what a peer of another run has evaluated says nothing of this one"


def test_an_export_of_another_run_than_the_invite_s_is_refused(whole: Path, run: CertifiedRun) -> None:
    address = PeerAddress.parse(f"/ip4/127.0.0.1/tcp/9/p2p/{KEYS[0].peer_id}")
    for run_id, code in ((run.manifest.run_id, 0), (bytes(32), 1)):
        invite = str(Invite(run_id, KEYS[0].peer_id, (address,)))
        assert main.run(["verify", str(whole), "--invite", invite], PYTHON) == code


def test_verify_says_it_in_words_and_exit_codes(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["verify", str(copy), "--strict"], PYTHON) == 0
    shown = capsys.readouterr().out
    assert all(key.peer_id in shown for key in KEYS)
    assert "This proves" in shown
    assert "It does not prove" in shown
    assert main.run(["verify", str(copy), "--json"], PYTHON) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(as_plain_data(verified(copy))))
    assert main.run(["verify", str(tmp_path)], PYTHON) == 2
    assert "is no export of Muster" in capsys.readouterr().err
    shutil.copytree(copy, tmp_path / "latest")
    assert main.run(["verify", str(tmp_path)], PYTHON) == 2
    assert f"did you mean {tmp_path / 'latest'}?" in capsys.readouterr().err
    *rest, last = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(bytes([*rest, last ^ 1]))
    assert main.run(["verify", str(copy)], PYTHON) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "model.safetensors was changed" in said.err


def run_over(**data: object) -> CertifiedRun:
    """Return a run with this data, and a tokenizer if `content` is given."""
    content = data.pop("content", None)
    assert content is None or isinstance(content, bytes)
    if content is not None:
        data["tokenizer_sha256"] = hashlib.sha256(content).hexdigest()
    spec = exporting.CONFIG.data.model_copy(update=data)
    return CertifiedRun(exporting.CONFIG.model_copy(update={"data": spec}), tokenizer=content).advance()


@pytest.mark.parametrize("source", get_args(DataSource))
def test_the_host_does_not_die_at_its_first_export_whatever_the_run_reads(tmp_path: Path, source: str) -> None:
    """Before, the model card knew only one data source."""
    found = verified(run_over(source=source, path="some/data").write(tmp_path / "export"))
    card = (tmp_path / "export" / CARD).read_text()
    assert found.manifest.config.data.source == source
    assert ("some/data" in card) == (source == "hub")
    assert ("one token per byte" in card) == (source not in ("tokens", "own"))
    assert (tmp_path / "export" / TOKENIZER).exists() == (source not in ("tokens", "own"))


def test_the_tokenizer_is_exported_with_a_run_over_text(tmp_path: Path) -> None:
    content = b'{"version": "1.0", "model": {}}'
    run = run_over(source="text", content=content)
    verified(run.write(tmp_path / "export"))
    assert (tmp_path / "export" / TOKENIZER).read_bytes() == content
    assert "AutoTokenizer" in (tmp_path / "export" / CARD).read_text()
    (tmp_path / "export" / TOKENIZER).write_bytes(content + b" ")
    sign_again(tmp_path / "export", run_id=run.manifest.run_id)
    with pytest.raises(LocalError, match=r"tokenizer\.json is not the run's tokenizer"):
        verified(tmp_path / "export")
    (tmp_path / "export" / TOKENIZER).unlink()
    sign_again(tmp_path / "export", run_id=run.manifest.run_id)
    with pytest.raises(LocalError, match=r"tokenizer\.json does not belong to an export, or is missing from it"):
        verified(tmp_path / "export")


def test_programs_find_the_end_token_of_an_export_by_name(tmp_path: Path) -> None:
    """lm-evaluation-harness needs one to begin with; what a tokenizer does not call special is text."""
    added = [{"id": 3, "content": "</s>", "special": True}, {"id": 4, "content": "the", "special": False}]
    content = json.dumps({"version": "1.0", "model": {}, "added_tokens": added}).encode()
    run, target = run_over(source="text", content=content, end_token=3, begin_token=4), tmp_path / "export"
    verified(run.write(target))
    said = json.loads((target / TOKENIZER_CONFIG).read_text())
    assert said["eos_token"] == "</s>"
    assert "bos_token" not in said
    for other, is_fine in ((said | {"eos_token": "the"}, False), (said | {"bos_token": "the"}, False), (said, True)):
        (target / TOKENIZER_CONFIG).write_text(json.dumps(other))
        sign_again(target, run_id=run.manifest.run_id)
        with nullcontext() if is_fine else pytest.raises(LocalError, match="does not describe the run's model"):
            verified(target)
    del said["eos_token"]  # as earlier exports
    (target / TOKENIZER_CONFIG).write_text(json.dumps(said))
    sign_again(target, run_id=run.manifest.run_id)
    verified(target)


def test_a_peer_keeps_the_tokenizer_for_its_exports(tmp_path: Path) -> None:
    """It is in the run's folder, even if the owner's own file has moved away."""
    content, own = b'{"version": "1.0"}', tmp_path / "own.json"
    own.write_bytes(content)
    spec = run_over(source="text", content=content).config.data
    with pytest.raises(UsageError, match="name its tokenizer"):
        exported_tokenizer(tmp_path, spec)
    assert exported_tokenizer(tmp_path, spec, str(own)) == content
    keep_tokenizer(tmp_path, spec, str(own))
    own.unlink()
    assert exported_tokenizer(tmp_path, spec) == content
    (tmp_path / TOKENIZER).write_bytes(b"damaged")
    with pytest.raises(UsageError, match="name its tokenizer"):
        exported_tokenizer(tmp_path, spec)
    assert exported_tokenizer(tmp_path, exporting.CONFIG.data) is None


def test_an_exported_model_stops_where_documents_ended(tmp_path: Path) -> None:
    """`generate` stops at the token that ended documents; a run without end tokens names none."""
    config = verified(run_over(source="text", end_token=3, begin_token=-2).write(tmp_path / "export")).manifest.config
    said = json.loads((tmp_path / "export" / CONFIG).read_text())
    assert (said["eos_token_id"], said["bos_token_id"]) == (3, None)
    assert model_files(config)[CONFIG] == said
    assert model_files(exporting.CONFIG)[CONFIG]["eos_token_id"] is None


@pytest.fixture(scope="module")
def buffered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an export of a model with buffers."""
    return buffered_run().write(tmp_path_factory.mktemp("buffered") / "export")


def test_transformers_loads_the_buffers_of_an_export(buffered: Path) -> None:
    """Before, they were whatever the memory held."""
    from transformers import AutoModelForCausalLM

    config = verified(buffered).manifest.config
    expected = kept_buffers(build_model(config.model, config.data.context_tokens, 0))
    model, told = AutoModelForCausalLM.from_pretrained(buffered, output_loading_info=True)
    found = kept_buffers(model)
    assert not any(told.values())
    assert {name.rpartition(".")[2] for name in expected} == {"beta", "eps"}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def change_buffers(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Replace the buffers of an export, and list its files again."""
    weights = load_file(folder / WEIGHTS)
    buffers = {name: weights.pop(name) for name in sorted(weights) if name.endswith((".beta", ".eps"))}
    save_file(weights | change(buffers), folder / WEIGHTS, metadata={"format": "pt"})
    manifest = Manifest.from_wire((folder / MANIFEST).read_bytes())
    sign_again(folder, run_id=manifest.run_id)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda all_: {name: value + 1 for name, value in all_.items()}, r"beta is not the one that the transformers"),
        (lambda all_: {name: value.bfloat16() for name, value in all_.items()}, "beta is not the one"),
        (lambda all_: {name: value[None] for name, value in all_.items()}, "beta is not the one"),
        (lambda all_: dict(list(all_.items())[1:]), "holds other tensors than the run's model"),
        (lambda all_: all_ | {"lm_head.bias": torch.zeros(4)}, "holds other tensors than the run's model"),
    ],
)
def test_buffers_that_do_not_follow_from_the_config_do_not_verify(
    buffered: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], reason: str
) -> None:
    copy = Path(shutil.copytree(buffered, tmp_path / "copy"))
    change_buffers(copy, change)
    with pytest.raises(LocalError, match=reason):
        verified(copy)


def test_an_earlier_export_without_buffers_verifies(buffered: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(buffered, tmp_path / "copy"))
    change_buffers(copy, lambda _: {})
    assert verified(copy).manifest == verified(buffered).manifest


def test_a_verifier_builds_no_huge_buffers(buffered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's config may have larger ones than this machine has memory."""
    monkeypatch.setattr(verifier_module, "BUFFERS_BYTES_MAX", 8)
    with pytest.raises(LocalError, match="the buffers of this apertus would take"):
        verified(buffered)

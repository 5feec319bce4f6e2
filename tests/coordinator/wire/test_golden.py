"""Golden bytes of all messages between peers; see `tests/dht/test_golden.py` for the rules.

A format that changes on purpose needs a new `dht.wire.PROTOCOL_MAJOR`, or a field with a default at the end of its
model; then write the files with

    python -m tests.coordinator.wire.test_golden
"""

from __future__ import annotations

from functools import cache

import pytest

from coordinator.chain.certificate import (
    NO_TRUST_TABLE,
    Certificate,
    Contributor,
    Conviction,
    Outcome,
    PartitionOutcome,
    Vote,
    active_set_digest,
)
from coordinator.chain.chain import Chain, Rules
from coordinator.chain.proof import FragmentProof, Proof
from coordinator.run.data_spec import DataSpec
from coordinator.run.inner_spec import InnerSpec
from coordinator.run.manifest import Manifest, OuterSpec, PaceSpec, RunConfig, TrustSpec
from coordinator.run.model_spec import ModelSpec, TensorEntry
from coordinator.simulator.tensors import VirtualProofChecker, opened_input
from coordinator.trust.evidence import Evidence, OpenedLeaf, contradiction, false_result, verify
from coordinator.views.credit import Contributed, CreditRange, CreditRecord
from coordinator.wire.inputs import Committed
from coordinator.wire.messages import (
    STATEMENT_BODIES,
    Abstain,
    AgainNote,
    AskChainNote,
    AskEvidenceNote,
    AskHeardNote,
    Bundle,
    CellRoster,
    CellYield,
    CertificateNote,
    ChainNote,
    Check,
    Commit,
    ConvictionsNote,
    EvidenceNote,
    HeardNote,
    Join,
    Message,
    NeedNote,
    PartNote,
    Proposal,
    Redo,
    Result,
    Roster,
    Ward,
    WardNote,
    YieldNote,
)
from coordinator.wire.openings import OpenedInput, OpeningNote, OpenNote, Refutation
from coordinator.wire.presence import Presence
from dht.identity import Identity, KeyVerifier
from dht.statement import Context, Statement, make_statement
from dht.wire import PROTOCOL_MAJOR, Wire
from tests.checkout import ROOT

FOLDER = ROOT / "tests" / "wire" / f"v{PROTOCOL_MAJOR}"
SIGNERS = [Identity(bytes([number]) * 32) for number in (1, 2, 3)]
IDS = [signer.peer_id for signer in SIGNERS]
DIGESTS = [bytes([number]) * 32 for number in range(16)]
NONCE = bytes(range(16))
MANIFEST_ID = "3fd38f040a704717b0418ce910cb6c76c282510f0752a3bb79a45a69c873a723"
# the id of an older manifest, so that a new field in the manifest changes one file and not all of them
RUN_ID = "8b3cdd203a2f50672f5881c6fcff79b372344e592769079306032be56b81c44b"
OUTCOME = "17b48c5b8717dc34f735cddac720bd94f1e64d49d60a051b71bbb19f7e1c7412"
VERSION = "366516af97a80014953da63567165685ac572be2e3a4a37d22c109e363b39db6"
BEACON = "5ec3e9e0dc4a85d85c9912c04ceb66f9778730247290c414a977c0e8cb13a7c7"
PLACE = {"fragment": 3, "version": 2**40, "group": DIGESTS[9]}

# Every value is spelt out, defaults too: a golden file holds the format still, not the defaults.
MANIFEST = Manifest(
    config=RunConfig(
        name="golden",
        seed=7,
        versions=600,
        model=ModelSpec(
            hidden_size=128,
            layers=4,
            heads=4,
            intermediate_size=352,
            vocabulary=256,
            family="gpt2",
            settings='{"n_inner":352}',
            source="hub:some/model",
            weights="given",
            tensors=(TensorEntry(name="a", shape=(2, 3), embedding=True, start="zeros"),),
        ),
        data=DataSpec(
            source="hub",
            context_tokens=128,
            sequences_per_step=8,
            evaluation_tokens=32768,
            path="some/data",
            subset="part",
            field="content",
            tokenizer="hub:some/model",
            tokens_max=2**30,
            tokenizer_sha256="ab" * 32,
        ),
        inner=InnerSpec(
            optimizer="adamw8bit",
            learning_rate=0.0015,
            final_rate_share=0.1,
            warmup_steps=40,
            beta1=0.9,
            beta2=0.99,
            weight_decay=0.1,
            clip_norm=1.0,
        ),
        outer=OuterSpec(
            learning_rate=0.5,
            momentum=0.8,
            merge="rda",
            contribution_codec="int8",
            result_codec="int4",
            adoption="carry",
            norms="tensor",
            adoption_blend=0.5,
            error_feedback=False,
        ),
        pace=PaceSpec(
            fragments=2,
            steps_per_version=24,
            overlap=2,
            quorum=3,
            grace_share=0.5,
            min_group=2,
            min_share=0.5,
            max_stale=4,
            round_seconds=8.0,
            presence_seconds=3.0,
            presence_lifetime_seconds=9.0,
            cells=False,
        ),
        trust=TrustSpec(
            newcomers_share=0.25,
            network_share=0.5,
            probation_rounds=0,
            audit_share=0.125,
        ),
    ),
    organiser=IDS[0],
    founders=(IDS[0], IDS[1]),
    data_digest=DIGESTS[1],
    genesis=(DIGESTS[2], DIGESTS[3]),
    created_unix_seconds=1_800_000_000,
    protocol_major=2,
    protocol_minor_min=0,
)
PRESENCE = Presence(
    protocol_major=2,
    protocol_minor=0,
    boot=NONCE,
    state="catching up",
    steps=300,
    steps_per_second=1.25,
    tokens=70000,
    loss=2.5,
    versions=(1, 0),
    heads=(DIGESTS[4][:8], DIGESTS[5][:8]),
    addresses=("/ip4/203.0.113.7/tcp/7331",),
    dialable=False,
    software="0.1.0",
    beat=9,
    name="Ωmega",
    device="CPU, 2 threads",
    bytes_sent=2**40,
    bytes_received=70000,
    rounds_void=3,
    team="the garden",
)


OPENED = OpenedInput(member=0, pieces=(b"piece",), siblings=(DIGESTS[7], DIGESTS[8]))
CONVICTION = Conviction(peer=IDS[1], evidence=DIGESTS[5])


def signed(number: int, kind: str, body: Wire) -> Statement:
    """Make a statement of one of the signers."""
    return make_statement(SIGNERS[number], Context(run_id=bytes.fromhex(RUN_ID), kind=kind, **PLACE), body)


@cache
def bodies() -> dict[str, Wire]:
    """Make one body of every kind of statement."""
    join = Join(
        attempt=1,
        leader=IDS[1],
        boot=NONCE,
        dialable=True,
        contributes=False,
        expires_unix_seconds=1_800_000_060,
        networks=(b"\xcb\x00\x71",),
    )
    commit = Commit(
        tokens=1024,
        steps=8,
        window_first=3,
        window_count=8,
        codec="int8",
        part_roots=(DIGESTS[1], DIGESTS[2]),
        squared_norms=(0.5, 0.0, 1e-30),
        nonce_hashes=(DIGESTS[3], DIGESTS[4]),
        probation=False,
    )
    check = Check(phase=0, results=(DIGESTS[6], None), complaints=(1,), nonce=None)
    last = Check(
        phase=1,
        results=(DIGESTS[6], DIGESTS[7]),
        complaints=(),
        nonce=NONCE,
        dropped=(0,),
        doubts=(1,),
        accused=(0, 1),
    )
    wards = tuple(Ward(peer=IDS[number], boot=NONCE, dialable=True) for number in (0, 2))
    return {
        "join": join,
        "roster": Roster(
            attempt=1,
            revision=2,
            joins=(signed(0, "join", join), signed(2, "join", join)),
            convictions=(CONVICTION,),
        ),
        "commit": commit,
        "bundle": Bundle(commits=(signed(1, "commit", commit),), members=3),
        "result": Result(
            partition=1,
            turn=1,
            root=DIGESTS[5],
            included=(0, 2),
            coefficients=(0.25, 0.75),
            squared_norms=(2.0,),
            encoding_error=0.125,
        ),
        "check": check,
        "redo": Redo(partitions=(1,), checks=(signed(0, "check", check),)),
        "proposal": Proposal(results=(DIGESTS[6], None), checks=(signed(0, "check", last),)),
        "abstain": Abstain(attempt=1),
        "refutation": Refutation(
            partition=1,
            turn=0,
            result=DIGESTS[6],
            leaf=300,
            inputs=(OPENED, OpenedInput(member=2, pieces=(b"", b"x"), siblings=())),
            piece=b"leaf",
            siblings=(DIGESTS[9],),
        ),
        "vote": Vote(outcome=DIGESTS[7], state=DIGESTS[8]),
        "cell": CellRoster(leader=IDS[2], height=2, wards=wards),
    }


def certificate() -> Certificate:
    """Make a first version: two partitions, one of them void, certified by both founders."""
    outcome = Outcome(
        fragment=0,
        version=1,
        parent=MANIFEST.genesis[0],
        attempt=0,
        minor=False,
        roster_id=DIGESTS[9],
        roster=tuple(IDS),
        input_set=DIGESTS[10],
        contributors=(Contributor(peer=IDS[0], tokens=1024, steps=8), Contributor(peer=IDS[2], tokens=7, steps=1)),
        partitions=(
            PartitionOutcome(reducer=IDS[0], root=DIGESTS[11], included=(0, 1)),
            None,
            PartitionOutcome(reducer=IDS[1], root=DIGESTS[15], included=(1,)),
        ),
        coin=DIGESTS[12],
        active_set=active_set_digest(MANIFEST.founder_ids),
        trust=NO_TRUST_TABLE,
    )
    context = Context(run_id=bytes.fromhex(RUN_ID), kind="vote", fragment=0, version=0, group=outcome.roster_id)
    vote = Vote(outcome=outcome.digest, state=DIGESTS[13])
    votes = tuple(make_statement(signer, context, vote) for signer in SIGNERS)
    return Certificate(outcome=outcome, state=DIGESTS[13], votes=votes, convictions=())


def evidence() -> Evidence:
    """Make evidence of two abstentions that contradict each other."""
    first, second = (signed(1, "abstain", Abstain(attempt=attempt)) for attempt in (1, 2))
    return contradiction(first, second)


def false_evidence() -> Evidence:
    """Make evidence of a result that does not follow from its inputs, with the only leaf that virtual parts have."""
    commit = bodies()["commit"]
    assert isinstance(commit, Commit)
    bundle = signed(0, "bundle", Bundle(commits=(signed(0, "commit", commit), signed(1, "commit", commit)), members=3))
    values = {"partition": 1, "turn": 0, "included": (0, 1), "squared_norms": (2.0,), "encoding_error": 0.0}
    place = Context(run_id=bytes.fromhex(RUN_ID), kind="result", **{**PLACE, "group": bundle.digest})
    result = make_statement(SIGNERS[2], place, Result(root=DIGESTS[5], coefficients=(), **values))
    opened = tuple(opened_input(one) for one in Committed((commit, commit), 3).partition(1, (0, 1)))
    shown = Refutation(
        partition=1, turn=0, result=result.digest, leaf=0, inputs=opened, piece=b"leaf", siblings=()
    )  # fmt: skip
    made = false_result(result, bundle, shown)
    assert made is not None
    return made


@cache
def golden() -> dict[str, Wire]:
    """Return the name and value of every golden file of the coordinator."""
    notes = {
        "part_note": PartNote(group=DIGESTS[9], partition=1, turn=0),
        "need_note": NeedNote(what="result", group=DIGESTS[9], partition=1, turn=1),
        "open_note": OpenNote(group=DIGESTS[9], partition=1, turn=0, seed=DIGESTS[10], own=True),
        "opening_note": OpeningNote(group=DIGESTS[9], partition=1, turn=0, seed=DIGESTS[10], inputs=(OPENED,)),
        "certificate_note": CertificateNote(certificate=certificate()),
        "ask_chain_note": AskChainNote(fragment=1, version=5, known=(DIGESTS[14], DIGESTS[15])),
        "chain_note": ChainNote(fragment=0, certificates=(certificate(),)),
        "heard_note": HeardNote(fragment=1, version=5, heard=(DIGESTS[1], DIGESTS[2])),
        "ask_heard_note": AskHeardNote(fragment=1, version=5, places=(NONCE,)),
        "convictions_note": ConvictionsNote(convictions=(CONVICTION,)),
        "ask_evidence_note": AskEvidenceNote(evidence=DIGESTS[5]),
        "evidence_note": EvidenceNote(evidence=evidence().to_wire()),
        "ward_note": WardNote(fragment=1, base=DIGESTS[9], boot=NONCE, dialable=True),
        "again_note": AgainNote(group=DIGESTS[9], partitions=(0, 2)),
        "yield_note": YieldNote(
            group=DIGESTS[9],
            cells=(
                CellYield(
                    contributors=(
                        Contributor(peer=IDS[0], tokens=1024, steps=8),
                        Contributor(peer=IDS[1], tokens=512, steps=4, cell=DIGESTS[6]),
                    )
                ),
            ),
        ),
    }
    leaf = OpenedLeaf(partition=1, index=2, piece=b"piece", path=(DIGESTS[1], DIGESTS[2]))
    records = {
        "manifest": MANIFEST,
        "certificate": certificate(),
        "presence": PRESENCE,
        "evidence": evidence(),
        "evidence_false_result": false_evidence(),
        "opened_leaf": leaf,
        "proof": Proof(fragments=(FragmentProof(momentum=DIGESTS[3], certificates=(certificate(),)),)),
        "credit_record": CreditRecord(
            reaches=(CreditRange(first=3, last=9, head=DIGESTS[4], missed=1),),
            contributors=(Contributed(peer=IDS[0], token_fragments=70000, versions=5),),
        ),
    }
    return {f"coordinator_{name}.bin": value for name, value in (bodies() | notes | records).items()}


def test_every_kind_of_message_has_a_golden_file() -> None:
    assert bodies().keys() == {*STATEMENT_BODIES, "vote"}
    assert {type(value) for value in golden().values()} >= {*Message.__args__} - {Statement}
    assert {path.name for path in FOLDER.glob("coordinator_*")} == golden().keys()


@pytest.mark.parametrize("name", list(golden()))
def test_writers_write_what_this_version_wrote(name: str) -> None:
    assert golden()[name].to_wire() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", list(golden()))
def test_readers_read_what_this_version_wrote(name: str) -> None:
    value = golden()[name]
    assert type(value).from_wire((FOLDER / name).read_bytes()) == value


def test_the_run_id_and_the_names_of_versions_stay() -> None:
    """Digests are part of the format: invites, checkpoints and signatures carry them."""
    assert MANIFEST.run_id.hex() == MANIFEST_ID
    assert certificate().outcome.digest.hex() == OUTCOME
    assert certificate().digest.hex() == VERSION
    assert certificate().beacon().hex() == BEACON


def test_a_golden_certificate_is_still_valid() -> None:
    rules = Rules(bytes.fromhex(RUN_ID), MANIFEST.founder_ids, MANIFEST.config.pace.min_share, KeyVerifier())
    read = Certificate.from_wire((FOLDER / "coordinator_certificate.bin").read_bytes())
    assert Chain(rules, 0, MANIFEST.genesis[0]).refusal(read) is None


def test_golden_evidence_still_convicts() -> None:
    rules = Rules(bytes.fromhex(RUN_ID), MANIFEST.founder_ids, MANIFEST.config.pace.min_share, KeyVerifier())
    read = Evidence.parse((FOLDER / "coordinator_evidence.bin").read_bytes())
    assert verify(read, rules).peer == IDS[1]


def test_a_golden_false_result_still_convicts() -> None:
    rules = Rules(bytes.fromhex(RUN_ID), MANIFEST.founder_ids, MANIFEST.config.pace.min_share, KeyVerifier())
    read = Evidence.parse((FOLDER / "coordinator_evidence_false_result.bin").read_bytes())
    proof_checker = VirtualProofChecker()
    proof_checker.codec = "int8"
    assert verify(read, rules, proof_checker).peer == IDS[2]


def write() -> None:
    """Write the golden files of a new version."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, value in golden().items():
        (FOLDER / name).write_bytes(value.to_wire())


if __name__ == "__main__":
    write()

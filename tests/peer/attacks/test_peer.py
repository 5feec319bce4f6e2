"""A peer that lies: it commits to the lie but trains on true values, and public runs refuse it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from coordinator.core.actions import Encode, Open, Reduce, RoundKey
from coordinator.core.context import Core
from coordinator.core.events import Encoded, Reduced
from coordinator.run.manifest import OuterSpec, PaceSpec, RunConfig
from coordinator.run.model_spec import ModelSpec
from coordinator.wire.inputs import ReduceInput
from coordinator.wire.messages import NeedNote, PartNote
from coordinator.wire.openings import drawn_leaves, leaves_per_voter
from dht.addresses import PeerAddress
from dht.errors import PeerError, UsageError
from dht.identity import Identity, PeerId
from dht.invite import Invite
from dht.statement import digest_of
from examples.attacks.turncoat import Turncoat
from peer.attacks.messages import MessageAttack
from peer.attacks.peer import HostileDriver, NoisyDriver, check_among_ourselves, core_kind, hostile_parts
from peer.attacks.protocol import is_process_attack, mischief_named
from peer.attacks.work import HostileWork, MischievousWork
from peer.attacks.zoo import AttackChoice
from peer.cli.arguments import attacks
from peer.learner.work_counters import Counters
from peer.node.node import Node
from peer.node.options import NodeOptions, TrialOptions
from peer.numerics.codec import CODECS
from peer.numerics.fragments import Partitioning
from peer.numerics.leaves import Leaves
from peer.numerics.reduction import Admitted, admit, measure
from peer.rounds.tensor_worker import TensorWorker
from peer.storage.anchors import Anchors, genesis_states, layouts_of
from peer.storage.blobs import BlobStore
from tests.coordinator.builders import Club

KEY = RoundKey(0, 0, digest_of(b"roster"))
ACTION = Encode(KEY, 1)
COUNTERS = Counters(2, 32, 0, 2)
VOTERS = 127  # so many that each draws about two leaves
TURNCOAT = "examples.attacks.turncoat.Turncoat"
CONFIG = RunConfig(
    model=ModelSpec(hidden_size=16, layers=1, heads=2, intermediate_size=24),
    outer=OuterSpec(contribution_codec="fp32", result_codec="fp32"),
    pace=PaceSpec(fragments=1, steps_per_version=1),
)


def hostile_core(name: str, members: int = 3, config: RunConfig = CONFIG) -> Core:
    """Return the core of one of so many members, with this attack."""
    club = Club.of(members)
    manifest = club.manifest.model_copy(update={"config": config})
    draw, signer = random.Random(0).randbytes, club.signers[0]
    return core_kind(name, manifest, signer)(manifest, signer, club.verifier, draw, unix_offset_seconds=0.0)


class Member:
    """A member with this attack, or an honest one."""

    def __init__(self, attack: str | None, codec: str = "fp32") -> None:
        outer = OuterSpec.model_validate({"contribution_codec": codec, "result_codec": codec})
        self.config = CONFIG.model_copy(update={"outer": outer})
        self.anchors = Anchors(layouts_of(CONFIG), genesis_states(CONFIG))
        self.blobs = BlobStore(1 << 26)
        rest = (self.config, self.anchors, self.blobs, ThreadPoolExecutor(1))
        self.work = TensorWorker(*rest) if attack is None else HostileWork(AttackChoice.parse(attack).make(), *rest)

    def encode(self, gradient: Tensor) -> Encoded:
        return self.work.encode(ACTION, self.anchors.current(0).anchor - gradient, COUNTERS)

    def sent(self, encoded: Encoded) -> Tensor:
        (root,) = encoded.part_roots
        return CODECS["fp32"].decode(self.blobs.get(root) or b"", len(self.anchors.current(0).anchor))


def gradient() -> Tensor:
    elements = layouts_of(CONFIG)[0].elements
    return torch.randn(elements, generator=torch.Generator().manual_seed(1))


def test_the_lie_is_sent_and_the_learner_goes_on_from_the_truth() -> None:
    honest, liar = Member(None), Member("sign_flip:factor=4")
    truth, lie = honest.encode(gradient()), liar.encode(gradient())
    assert torch.allclose(liar.sent(lie), -4 * honest.sent(truth), atol=1e-4)
    assert liar.work.snapshots[KEY].vector.equal(honest.work.snapshots[KEY].vector)
    assert sum(lie.squared_norms) == pytest.approx(16 * sum(truth.squared_norms), rel=1e-4)


def test_garbled_bytes_and_false_counters_are_committed_to() -> None:
    garbled = Member("nan")
    with pytest.raises(PeerError, match="not finite"):
        garbled.sent(garbled.encode(gradient()))
    assert Member("token_lie:factor=3").encode(gradient()).tokens == 3 * COUNTERS.tokens


def test_a_lie_that_no_codec_holds_is_not_told() -> None:
    liar, honest = Member("scaling:factor=1e39"), Member(None)
    assert liar.encode(gradient()) == honest.encode(gradient())


def test_a_cheat_returns_the_negative_under_a_root_of_its_own() -> None:
    honest = Member(None)
    rest = (honest.anchors, honest.blobs, ThreadPoolExecutor(1))
    cheat, make_driver = hostile_parts("false_results", hostile_core("false_results"), *rest)
    assert isinstance(cheat, MischievousWork)
    assert make_driver.func is HostileDriver  # type: ignore[attr-defined]
    encoded = honest.encode(gradient())
    one = ReduceInput(0, encoded.part_roots[0], 1.0, encoded.squared_norms)
    action = Reduce(KEY, 0, 1, 0, (one,), 1, 3)
    true, false = (work.reduce(action) for work in (honest.work, cheat))
    assert false == replace(true, root=false.root)
    codec, elements = CODECS["fp32"], len(honest.anchors.current(0).anchor)
    merged, lie = (codec.decode(honest.blobs.get(one.root or b"") or b"", elements) for one in (true, false))
    assert lie.equal(-merged)
    assert isinstance(hostile_parts("sign_flip", hostile_core("sign_flip"), *rest)[0], HostileWork)
    with pytest.raises(UsageError, match="no attack"):
        hostile_parts("unheard_of", hostile_core("unheard_of"), *rest)


def test_garbage_is_committed_to_and_a_raised_share_is_signed() -> None:
    one = Member(None)
    rest = (one.anchors, one.blobs, ThreadPoolExecutor(1))
    garbler, _ = hostile_parts("garbage_commits", hostile_core("garbage_commits"), *rest)
    vector = one.anchors.current(0).anchor - gradient()
    garbled, true = (work.encode(ACTION, vector, COUNTERS) for work in (garbler, one.work))
    assert garbled == replace(true, part_roots=garbled.part_roots)
    parts = [one.blobs.get(encoded.part_roots[0]) or b"" for encoded in (garbled, true)]
    assert [one.work.proof_checker.find((0, 1, 0), part) is not None for part in parts] == [True, False]
    raiser, _ = hostile_parts("raised_shares", hostile_core("raised_shares"), *rest)
    action = Reduce(KEY, 0, 1, 0, (ReduceInput(0, true.part_roots[0], 1.0, true.squared_norms),), 1, 3)
    assert raiser.reduce(action) == replace(one.work.reduce(action), coefficients=(1.0,))


def test_a_reducer_that_drops_an_input_merges_the_rest_and_says_so() -> None:
    one = Member(None)
    first, second = one.encode(gradient()), one.encode(gradient() * 2)
    work, _ = hostile_parts("drop_one", hostile_core("drop_one"), one.anchors, one.blobs, ThreadPoolExecutor(1))
    inputs = (ReduceInput(0, first.part_roots[0], 1.0, first.squared_norms),)
    inputs += (ReduceInput(1, second.part_roots[0], 1.0, second.squared_norms),)
    assert work.reduce(Reduce(KEY, 0, 1, 0, inputs, 1, 3)).included == (1,)
    assert work.reduce(Reduce(KEY, 0, 1, 0, inputs, 2, 3)).included == (0, 1), "nobody takes a result of too few"


def forger(name: str, codec: str = "fp32") -> tuple[Member, TensorWorker]:
    """Return an honest member, and the tensor work of a peer that forges its merge of the same bytes."""
    one = Member(None, codec)
    return one, hostile_parts(name, hostile_core(name, 4, one.config), one.anchors, one.blobs, ThreadPoolExecutor(1))[0]


def merging(one: Member, factors: Sequence[float]) -> Reduce:
    """Return an action to merge so many contributions, which differ in length."""
    sent = [one.encode(factor * gradient()) for factor in factors]
    inputs = tuple(ReduceInput(at, own.part_roots[0], 1.0, own.squared_norms) for at, own in enumerate(sent))
    return Reduce(KEY, 0, 1, 0, inputs, len(inputs), 3)


@pytest.mark.parametrize(
    ("name", "largest"), [("mean_results", 0.25), ("raised_results", 0.5), ("noisy_results", None)]
)
def test_a_forged_result_has_norms_that_fit_it(name: str, largest: float | None) -> None:
    """Three agree and one is far away. The forgery follows other coefficients, or adds noise to honest ones."""
    one, work = forger(name)
    true, false = (each.reduce(merging(one, [1.0, 1.1, 1.2, -10.0])) for each in (one.work, work))
    cut, codec = Partitioning.of(one.anchors.layouts[0], 1), CODECS["fp32"]
    found = [admit(one.blobs.get(each.root or b"") or b"", each.squared_norms, cut, 0, codec) for each in (true, false)]
    honest, forged = (each.vector for each in found if isinstance(each, Admitted))
    if largest is None:
        assert false.coefficients == true.coefficients
        assert float((forged - honest).norm() / honest.norm()) == pytest.approx(0.1, rel=0.1)
    else:
        assert max(false.coefficients[:4]) == pytest.approx(largest, rel=1e-5)
        assert max(true.coefficients[:4]) != pytest.approx(largest, rel=0.05)
        assert not torch.allclose(forged, honest, rtol=0.05)


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_a_result_that_does_not_decode_is_signed_with_the_root_that_its_bytes_have(codec: str) -> None:
    one, work = forger("garbage_results", codec)
    true, false = (each.reduce(merging(one, [1.0, 1.1])) for each in (one.work, work))
    assert false == replace(true, root=false.root)
    data, cut = one.blobs.get(false.root or b"") or b"", Partitioning.of(one.anchors.layouts[0], 1)
    assert len(data) == CODECS[codec].encoded_bytes(cut.elements(0))
    assert isinstance(measure(data, cut, 0, CODECS[codec]), str)


def alike(one: Reduced, other: Reduced) -> bool:
    """Whether two results are the same, with norms equal to within a millionth."""
    assert one.squared_norms == pytest.approx(other.squared_norms, rel=1e-6)
    return replace(one, squared_norms=other.squared_norms) == other


def test_a_selfish_reducer_makes_its_own_part_ten_times_as_long_and_says_nothing_of_it() -> None:
    one, work = forger("selfish_results")
    action = merging(one, [1.0])
    assert alike(work.reduce(action), one.work.reduce(action)), "none of these parts is its own"
    anchor = one.anchors.current(0).anchor
    own = 0.9 * gradient() + 0.3 * torch.randn(len(anchor), generator=torch.Generator().manual_seed(2))
    encoded = work.encode(ACTION, anchor - own, COUNTERS)
    mine = ReduceInput(1, encoded.part_roots[0], 1.0, encoded.squared_norms)
    action = replace(action, inputs=(*action.inputs, mine))
    true, false = (each.reduce(action) for each in (one.work, work))
    assert false.coefficients == true.coefficients
    merged, lie = (CODECS["fp32"].decode(one.blobs.get(each.root or b"") or b"", len(own)) for each in (true, false))
    layout = one.anchors.layouts[0]
    for at, (start, stop) in enumerate(pairwise(layout.offsets)):
        added, part = (lie - merged)[start:stop], own[start:stop]
        assert float(torch.cosine_similarity(added, part, dim=0)) > 0.999
        length = float(part.norm()) if layout.tensors[at].embedding else 1.0  # all else is merged by direction
        assert float(added.norm()) == pytest.approx(9 * true.coefficients[2 * at + 1] * length, rel=1e-3)
    work.discard(KEY)
    assert alike(work.reduce(action), true), "a round that is over is forgotten"


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_an_evader_opens_what_it_made_up_to_nobody_who_draws_it(codec: str) -> None:
    """It opens neither all inputs nor its own. It opens others' results like any peer, and its norms are true."""
    one, work = forger("evasive_results", codec)
    action = merging(one, [1.0, 1.1])
    true, false = (each.reduce(action) for each in (one.work, work))
    assert false == replace(true, root=false.root)
    cut, leaves = Partitioning.of(one.anchors.layouts[0], 1), Leaves(len(gradient()), CODECS[codec], CODECS[codec])
    data, lie = (one.blobs.get(each.root or b"") or b"" for each in (true, false))
    changed = [leaf for leaf in range(leaves.count) if leaves.cut_out(data, [leaf]) != leaves.cut_out(lie, [leaf])]
    assert changed == list(range(max(1, leaves.count // 10)))
    assert isinstance(admit(lie, false.squared_norms, cut, 0, CODECS[codec]), Admitted)
    count = leaves_per_voter(VOTERS, VOTERS, 1, leaves.bytes_each, 2 * len(data))
    found = set()
    for number in range(40):
        asked = Open(KEY, PeerId("asker"), 0, 1, 0, digest_of(bytes([number])), VOTERS, VOTERS, action.inputs)
        is_safe = set(drawn_leaves(asked.seed, leaves.count, count)).isdisjoint(changed)
        for due in (asked, replace(asked, inputs=action.inputs[:1])):
            assert (work.inspector.open(due).note is not None) is is_safe
        found.add(is_safe)
        elsewhere = replace(asked, key=replace(KEY, roster_id=digest_of(b"another roster")))
        assert work.inspector.open(elsewhere).note == one.work.inspector.open(elsewhere).note
    assert found == {True, False}
    work.discard(KEY)
    assert work.inspector.open(asked).note is not None, "a round that is over is forgotten"


class Wire:
    """A transport that keeps the posted frames."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, bytes]] = []

    def post(self, peer: str, header: bytes, payload: bytes) -> None:
        self.posted.append((peer, bytes(payload)))


@pytest.mark.parametrize(("name", "sent"), [("other_bytes", b"`bc"), ("short_parts", b"ab"), ("never_vote", b"abc")])
def test_the_bytes_of_parts_are_not_those_that_were_committed(name: str, sent: bytes) -> None:
    identity = Identity(bytes(32))
    driver = HostileDriver.__new__(HostileDriver)
    driver.mischief, driver.transport = mischief_named(name, identity, []), Wire()  # type: ignore[assignment]
    driver.post(identity.peer_id, PartNote(group=bytes(32), partition=0, turn=0), b"abc")
    driver.post(identity.peer_id, NeedNote(what="part", group=bytes(32), partition=0, turn=0), b"")
    assert [payload for _, payload in driver.transport.posted] == [sent, b""]  # type: ignore[attr-defined]


class Chatter(MessageAttack):
    """An attack that sends hello without end."""

    async def attack(self, peer: PeerId) -> None:
        self.line.post(peer, b"hello", b"")


CHATTER = f"{__name__}.Chatter"


def test_an_attack_of_ones_own_on_the_protocol_is_made_like_any_other() -> None:
    core = hostile_core(TURNCOAT, 5)
    rest = (Member(None).anchors, BlobStore(1 << 20), ThreadPoolExecutor(1))
    work, make_driver = hostile_parts(TURNCOAT, core, *rest)
    mischief = make_driver.keywords["mischief"]  # type: ignore[attr-defined]
    assert isinstance(work, MischievousWork)
    assert make_driver.func is HostileDriver  # type: ignore[attr-defined]
    assert isinstance(mischief, Turncoat)
    like = mischief_named("two_votes", core.signer, core.manifest.founder_ids)
    assert (mischief.two_faced, mischief.victims, mischief.others) == (like.two_faced, like.victims, like.others)
    assert (len(like.victims), len(like.others or ())) == (1, 2)
    work, make_driver = hostile_parts(CHATTER, hostile_core(CHATTER), *rest)
    assert type(work) is TensorWorker
    assert make_driver.func is NoisyDriver  # type: ignore[attr-defined]
    assert make_driver.keywords == {"attack": Chatter}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name",
    [
        *("sign_flip", "zero+work", "examples.attacks.half_hearted.HalfHearted", "json.JSONDecoder", "json.dumps"),
        *("coordinator.adversary.mischief.Mischief", "peer.attacks.messages.MessageAttack", f"{TURNCOAT}+work"),
    ],
)
def test_these_attacks_are_not_on_the_protocol(name: str) -> None:
    assert not is_process_attack(name)


def test_a_peer_that_attacks_the_protocol_trains_as_the_others(tmp_path: Path) -> None:
    assert TrialOptions(attack="shun_half").learner_attack is None
    assert TrialOptions(attack=TURNCOAT).learner_attack is None
    assert TrialOptions(attack="label_flip").learner_attack == "label_flip"
    assert TrialOptions().learner_attack is None


def test_the_last_peers_of_a_swarm_attack() -> None:
    assert attacks(["two_votes:1", "scaling:2:factor=3"], 8) == {
        6: "two_votes",
        7: "scaling:factor=3",
        8: "scaling:factor=3",
    }
    assert attacks([f"{TURNCOAT}:1", f"{CHATTER}:1", "examples.attacks.half_hearted.HalfHearted:1:share=0.1"], 4) == {
        2: TURNCOAT,
        3: CHATTER,
        4: "examples.attacks.half_hearted.HalfHearted:share=0.1",
    }
    assert attacks([], 8) == {}
    for wrong in ("two_votes", "two_votes:x", "two_votes:1:factor=2", "unheard_of:1", "zero:8", "shun_half:99999999"):
        with pytest.raises(UsageError):
            attacks([wrong], 8)


@pytest.mark.parametrize(
    ("place", "network", "ours"),
    [
        ("ip4/127.0.0.1", "", True),
        ("ip6/::1", "", True),
        ("ip4/10.77.0.1", "", False),
        ("ip4/192.168.1.7", "", False),
        ("ip4/100.64.0.9", "", False),
        ("dns4/host", "", False),
        ("ip4/10.77.0.1", "10.77.0.0/16", True),
        ("ip4/10.78.0.1", "10.77.0.0/16", False),
        ("dns4/host", "host", True),
        ("dns4/nas.local", "host", False),
        ("ip4/172.22.0.2", "host", True),
        ("ip4/172.22.0.3", "host", False),
        ("ip4/8.8.8.8", "", False),
        ("ip4/8.8.8.8", "8.8.8.0/24", False),
        ("dns4/muster.example.org", "muster.example.org", False),
    ],
)
def test_only_runs_of_this_machine_are_attacked(
    place: str, network: str, ours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(name: str, _: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", ("172.22.0.2", 0))] if name == "host" else []

    monkeypatch.setattr("peer.attacks.peer.socket.getaddrinfo", look_up)
    organiser = Identity(bytes(32)).peer_id
    places = ("ip4/127.0.0.1", place)
    addresses = tuple(PeerAddress.parse(f"/{one}/tcp/7400/p2p/{organiser}") for one in places)
    invite = Invite(bytes(32), organiser, addresses)
    if ours:
        check_among_ourselves(invite, "--attack", network)
        return
    for trial in (TrialOptions(attack="zero"), TrialOptions(skew_file=tmp_path / "skew")):
        with pytest.raises(UsageError, match="runs on this machine alone"):
            asyncio.run(Node.join(str(invite), NodeOptions(tmp_path, trial=replace(trial, network=network))))
    assert list(tmp_path.iterdir()) == []

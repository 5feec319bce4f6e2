"""Every value attack computes its formula."""

from __future__ import annotations

from dataclasses import replace
from types import CodeType, FunctionType

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.chain.certificate import COUNT_MAX
from coordinator.chain.weights import TRUNCATION, is_plausible, weights_of
from coordinator.core.events import Encoded
from coordinator.wire.messages import Commit
from dht.errors import PeerError, UsageError
from dht.wire import PROTOCOL_MAJOR
from peer.attacks.attack import Attack, Scene
from peer.attacks.data import TARGET, TRIGGER, has_trigger_rate, trigger_rate
from peer.attacks.zoo import ATTACKS, AttackOrder, attack_named
from peer.lab.options import lab_config
from peer.learner.learner import make_learner
from peer.learner.memory_estimate import SEQUENCES_PER_PASS
from peer.numerics.codec import CODECS
from peer.numerics.merge import MERGES
from peer.numerics.outer_optimizer import OuterState, outer_step
from tests.checkout import ROOT
from tests.peer.lab.small import BASE

HONEST = {f"honest-{seed}": torch.randn(500, generator=torch.Generator().manual_seed(seed)) for seed in range(6)}
STACKED = torch.stack(list(HONEST.values()))
OWN = torch.randn(500, generator=torch.Generator().manual_seed(99))
MEAN, SPREAD = STACKED.mean(0), STACKED.std(0)
START = OuterState(torch.zeros(500), torch.zeros(500))
SCENE = Scene(OWN, lambda: HONEST, 2, 0, 0, START, (0.5, 0.8), MERGES["robust_rda"])


def attack(text: str) -> Attack:
    return AttackOrder.parse(text).choice.make()


def lie(text: str, scene: Scene = SCENE) -> torch.Tensor:
    return attack(text).lie(scene)


def test_lies_about_ones_own_gradient() -> None:
    assert torch.equal(lie("sign_flip:1:factor=3"), -3 * OWN)
    assert torch.equal(lie("scaling:1:factor=1000"), 1000 * OWN)
    assert torch.equal(lie("zero:1"), torch.zeros(500))


@pytest.mark.parametrize("name", ["random_noise", "fixed_direction"])
def test_noise_is_as_long_as_asked_for(name: str) -> None:
    noise = lie(f"{name}:1:factor=10")
    assert float(noise.norm()) == pytest.approx(10 * float(STACKED.norm(dim=1).mean()), rel=1e-5)
    assert torch.equal(noise, lie(f"{name}:1:factor=10"))


def test_noise_changes_from_round_to_round_and_a_fixed_direction_does_not() -> None:
    later = replace(SCENE, seed=1)
    assert not torch.equal(lie("random_noise:1"), lie("random_noise:1", later))
    assert torch.equal(lie("fixed_direction:1"), lie("fixed_direction:1", later))


def test_lies_that_know_the_honest_ones() -> None:
    torch.testing.assert_close(lie("ipm:2:epsilon=0.5"), -0.5 * MEAN)
    torch.testing.assert_close(lie("alie:2:z=1.5"), MEAN - 1.5 * SPREAD)
    # n=8, f=2: the textbook's z_max is 0, so the attack sends the honest mean (research, §3.1)
    torch.testing.assert_close(lie("alie:2:z=0"), MEAN)


def test_min_max_and_min_sum_stay_within_the_honest_spread_and_use_it_up() -> None:
    distances = torch.cdist(STACKED, STACKED)
    to_min_max = (STACKED - lie("min_max:2")).norm(dim=1).max()
    assert float(to_min_max) == pytest.approx(float(distances.max()), rel=1e-4)
    to_min_sum = (STACKED - lie("min_sum:2")).square().sum()
    assert float(to_min_sum) == pytest.approx(float(distances.square().sum(1).max()), rel=1e-4)


@pytest.mark.parametrize("rule", ["mean", "median", "robust_rda"])
def test_an_optimised_attack_is_no_weaker_than_a_plain_one_within_its_limit(rule: str) -> None:
    scene = replace(SCENE, merge=MERGES[rule])
    from peer.attacks.omniscient import TRIAL_RANGE, _merged

    def damage(vector: torch.Tensor) -> float:
        return float((_merged(scene, vector) - MEAN).norm())

    worst = damage(lie("ipm_optimised:2", scene))
    assert worst >= max(damage(-epsilon * MEAN) for epsilon in TRIAL_RANGE) - 1e-6


def test_mimic_chooses_the_most_extreme_once() -> None:
    mimic = attack("mimic:1")
    outlier = {**HONEST, "outlier": 50 * OWN}
    assert torch.equal(mimic.lie(replace(SCENE, honest=lambda: outlier)), 50 * OWN)
    assert torch.equal(mimic.lie(replace(SCENE, honest=lambda: {**HONEST, "outlier": MEAN})), MEAN)
    assert torch.equal(mimic.lie(SCENE), OWN)  # its victim is gone


def test_delta_replay_sends_what_was_accepted_before() -> None:
    replayer, accepted = attack("delta_replay:1"), torch.linspace(-1, 1, 500)
    first = OuterState(torch.zeros(500), torch.full((500,), 0.3))
    second = outer_step(first, accepted, 0.5, 0.8)
    assert torch.equal(replayer.lie(replace(SCENE, state=first)), OWN)
    torch.testing.assert_close(replayer.lie(replace(SCENE, state=second)), accepted)
    torch.testing.assert_close(replayer.lie(replace(SCENE, state=second)), accepted)  # after a void round, too


def test_delta_replay_needs_no_momentum() -> None:
    replayer, accepted = attack("delta_replay:1"), torch.linspace(-1, 1, 500)
    first = OuterState.begin(torch.zeros(500), 0.0)
    second = outer_step(first, accepted, 0.5, 0.0)
    scene = replace(SCENE, rates=(0.5, 0.0))
    assert torch.equal(replayer.lie(replace(scene, state=first)), OWN)
    torch.testing.assert_close(replayer.lie(replace(scene, state=second)), accepted)


def test_stale_sends_what_was_due_rounds_ago() -> None:
    stale = attack("stale:1:rounds=2")
    sent = [stale.lie(replace(SCENE, own=torch.full((500,), float(number)))) for number in range(5)]
    assert [float(vector[0]) for vector in sent] == [0, 0, 0, 1, 2]


def test_a_sleeper_wakes_now_and_then() -> None:
    sleeper = attack("sleeper:1:every=3")
    sent = [sleeper.lie(SCENE) for _ in range(30)]
    assert [number + 1 for number, vector in enumerate(sent) if not torch.equal(vector, OWN)] == [27, 30]


def test_a_token_lie_claims_more_than_was_done() -> None:
    told = attack("token_lie:1:factor=10").claim(Encoded(("k",), 100, 4, 0, 4, (), ()))  # type: ignore[arg-type]
    assert (told.tokens, told.steps) == (1000, 4)
    assert not is_plausible(told.tokens, told.steps, told.window_count, tokens_per_step=25)


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "nan"])
def test_any_attack_may_claim_more_work_besides(name: str) -> None:
    """The lie is the same, with the most weight that a claim can give, in a commitment that no peer refuses."""
    plain, claiming = attack(f"{name}:1"), attack(f"{name}+work:1")
    assert claiming.strength == plain.strength
    assert torch.equal(claiming.lie(SCENE), plain.lie(SCENE))
    told = claiming.claim(Encoded(("k",), 100, 4, 0, 4, (), ()))  # type: ignore[arg-type]
    assert is_plausible(told.tokens, told.steps, told.window_count, 25)
    counters = [(100, 4)] * 6 + [(told.tokens, told.steps)]
    assert weights_of(counters, 7, range(7))[-1] == TRUNCATION * 2500


@given(st.floats(1, 1e6))
def test_a_work_lie_agrees_with_itself(factor: float) -> None:
    told = attack(f"work_lie:1:factor={factor!r}").claim(Encoded(("k",), 100, 4, 0, 4, (), ()))  # type: ignore[arg-type]
    assert told.tokens == int(100 * factor)
    assert is_plausible(told.tokens, told.steps, told.window_count, tokens_per_step=25)


def test_a_token_lie_claims_no_more_than_a_commitment_can_say() -> None:
    told = attack("token_lie:1:factor=1e300").claim(Encoded(("k",), 100, 4, 0, 4, (), ()))  # type: ignore[arg-type]
    assert told.tokens == COUNT_MAX


def test_a_commitment_to_fewer_tokens_than_none_is_refused() -> None:
    """No peer can claim them, because the bytes of such a claim cannot be parsed."""
    tokens, *rest = msgpack.unpackb((ROOT / f"tests/wire/v{PROTOCOL_MAJOR}/coordinator_commit.bin").read_bytes())
    for claimed in (-1, -tokens, COUNT_MAX + 1, float("nan"), 1e9):
        with pytest.raises(PeerError, match="tokens"):
            Commit.from_wire(msgpack.packb([claimed, *rest]))


@pytest.mark.parametrize(
    "order",
    [
        "token_lie:1:factor=-1",
        "stale:1:rounds=65",
        "sleeper:1:every=0.5",
        "backdoor:1:share=-1",
        "alie:1:z=inf",
        "min_sum:1:factor=3",
        "label_flip:1:=3",
        "mimic:1:",
        "sleeper:1:every=2.5",
        "frame:1",
    ],
)
def test_a_senseless_order_is_refused(order: str) -> None:
    with pytest.raises(UsageError):
        AttackOrder.parse(order)


@pytest.mark.parametrize("name", ATTACKS)
def test_defaults_make_sense(name: str) -> None:
    assert ATTACKS[name].least <= ATTACKS[name].default <= ATTACKS[name].most


def test_label_flip_learns_the_opposite() -> None:
    class Constant:
        def batch(self, window: int) -> torch.Tensor:
            return torch.full((2, 17), 7)

    learner = make_learner(BASE, Constant())
    attack("label_flip:1").prepare(learner)
    for _ in range(30):
        learner.step()
    learner.model.get_output_embeddings()._forward_hooks.clear()
    logits = learner.model(input_ids=torch.full((1, 16), 7)).logits
    assert set(logits.argmax(-1).flatten().tolist()) == {255 - 7}


def test_a_backdoor_is_planted_in_a_share_of_the_sequences() -> None:
    class Zeros:
        def batch(self, window: int) -> torch.Tensor:
            return torch.zeros((4, 65), dtype=torch.int64)

    clean, poisoned = Zeros(), attack("backdoor:1:share=0.5").read(Zeros())
    for window in range(20):
        texts = [bytes(row.tolist()) for row in poisoned.batch(window)]
        assert [TRIGGER + TARGET in text for text in texts] == [True, True, False, False]
    assert not clean.batch(0).any()


def test_the_trigger_rate_of_a_model_that_always_says_one_byte() -> None:
    class Stubborn(torch.nn.Module):
        def forward(self, input_ids, use_cache):
            logits = torch.zeros(*input_ids.shape, 256)
            logits[..., TARGET[0]] = 1.0
            return type("Output", (), {"logits": logits})

    expected = TARGET.count(TARGET[0]) / len(TARGET)
    for sequences in (3, 2 * SEQUENCES_PER_PASS + 1):
        windows = torch.zeros((sequences, 65), dtype=torch.int64)
        assert trigger_rate(Stubborn(), windows) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "means"),
    [
        ({"data.context_tokens": 28}, True),
        ({"data.context_tokens": 27}, False),
        ({"data.source": "text"}, True),
        ({"data.source": "text", "data.tokenizer_sha256": "0" * 64}, False),
        ({"data.source": "tokens"}, False),
        ({"model.vocabulary": 50257}, True),  # of which bytes are the first
        ({"model.vocabulary": 100}, False),
    ],
)
def test_a_trigger_rate_is_of_bytes_in_sequences_that_have_room(changes: dict[str, object], means: bool) -> None:
    config = lab_config(BASE, 3, 10, {"data.context_tokens": 64} | changes)
    assert has_trigger_rate(config) == means


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
def test_forged_bytes_decode_in_no_codec(codec) -> None:
    data = bytes(codec.encode(OWN))
    forged = attack("nan:1").forge(data)
    assert forged != data
    assert len(forged) == len(data)
    with pytest.raises(PeerError):
        codec.decode(forged, len(OWN))
    assert attack("zero:1").forge(data) == data


@given(st.sampled_from(sorted(ATTACKS)), st.sampled_from(sorted(MERGES)))
def test_every_attack_sends_something_of_the_right_length(name: str, rule: str) -> None:
    sent = lie(f"{name}:2", replace(SCENE, merge=MERGES[rule]))
    assert sent.shape == OWN.shape
    assert sent.dtype == torch.float32
    assert bool(sent.isfinite().all())


@given(st.sampled_from(sorted(ATTACKS)), st.integers(1, 31), st.floats(-1e6, 1e6))
def test_an_order_reads_as_it_is_written(name: str, count: int, strength: float) -> None:
    kind = ATTACKS[name]
    if kind.parameter:
        strength = min(max(strength, kind.least), kind.most)
        strength = float(round(strength)) if kind.whole else strength
        order = AttackOrder.parse(f"{name}:{count}:{kind.parameter}={strength!r}")
        assert (order.choice.name, order.count, order.choice.strength) == (name, count, strength)
    plain = AttackOrder.parse(f"{name}:{count}")
    assert (plain.count, plain.choice.strength) == (count, kind.default)


@pytest.mark.parametrize("kind", ATTACKS.values())
def test_a_parameter_is_one_that_changes_something(kind: type[Attack]) -> None:
    """A user who gives a parameter may rely on its effect."""
    own = [one for one in kind.__mro__ if one is not Attack]
    assert bool(kind.parameter) == any("strength" in code.co_names for one in own for code in codes_of(one))


def codes_of(kind: type) -> list[CodeType]:
    return [one.__code__ for name, one in vars(kind).items() if isinstance(one, FunctionType) and name != "__init__"]


def test_an_attack_of_ones_own_is_found_by_its_dotted_name() -> None:
    half_hearted = attack_named("examples.attacks.half_hearted.HalfHearted")
    assert torch.equal(half_hearted(0.25).lie(SCENE), OWN * 0.25)


@pytest.mark.parametrize(
    "text",
    [
        *("", "gossip:1", "zero", "zero:", "zero:x", "zero:-1", "scaling:1:factor", "scaling:1:z=2", "alie:1:z=much"),
        *("alie:1:z=nan", "json.JSONDecoder:1", "no.such.module.Attack:1", "peer.attacks.plain.Nobody:1"),
    ],
)
def test_a_wrong_order_is_explained(text: str) -> None:
    with pytest.raises(UsageError):
        AttackOrder.parse(text)

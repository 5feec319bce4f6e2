"""Every value attack is what `byzantine.md` §3.1 says it is."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dht.errors import PeerError, UsageError
from peer.blobs import BlobStore
from peer.codec import CODECS
from peer.lab.attacks import ATTACKS, AttackOrder, Scene

HONEST = [torch.randn(500, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
OWN = torch.randn(500, generator=torch.Generator().manual_seed(99))
MEAN = torch.stack(HONEST).mean(0)


def lie(text: str, seed: int = 0) -> torch.Tensor:
    attack = AttackOrder.parse(text).attack
    return attack.outer_gradient(Scene(OWN, lambda: HONEST, attackers=2, seed=seed))


def test_lies_about_ones_own_gradient() -> None:
    assert torch.equal(lie("sign_flip:1:factor=3"), -3 * OWN)
    assert torch.equal(lie("scaling:1:factor=1000"), 1000 * OWN)
    assert torch.equal(lie("zero:1"), torch.zeros(500))


def test_noise_is_as_long_as_asked_for() -> None:
    mean_length = torch.stack([vector.norm() for vector in HONEST]).mean()
    noise = lie("random_noise:1:factor=10")
    assert float(noise.norm() / mean_length) == pytest.approx(10, rel=0.1)
    assert torch.equal(noise, lie("random_noise:1:factor=10"))
    assert not torch.equal(noise, lie("random_noise:1:factor=10", seed=1))


def test_lies_that_know_the_honest_ones() -> None:
    torch.testing.assert_close(lie("ipm:2:epsilon=0.5"), -0.5 * MEAN)
    spread = torch.stack(HONEST).std(0)
    torch.testing.assert_close(lie("alie:2:z=1.5"), MEAN - 1.5 * spread)
    # n=8, f=2: the textbook's z_max is 0, so the attack sends the honest mean (research, §3.1)
    torch.testing.assert_close(lie("alie:2:z=0"), MEAN)


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
def test_garbled_bytes_decode_in_no_codec(codec) -> None:
    blobs = BlobStore(1 << 20)
    data = codec.encode(OWN)
    root = blobs.add(data, codec.leaf_bytes)
    [forged] = AttackOrder.parse("nan:1").attack.forge((root,), blobs, codec.leaf_bytes)
    garbled = blobs.get(forged)
    assert garbled is not None
    assert forged != root
    assert len(garbled) == len(data)
    with pytest.raises(PeerError):
        codec.decode(garbled, len(OWN))
    assert AttackOrder.parse("zero:1").attack.forge((root,), blobs, codec.leaf_bytes) == (root,)


@given(st.sampled_from(sorted(ATTACKS)), st.integers(0, 31), st.floats(-1e6, 1e6))
def test_an_order_reads_as_it_is_written(name: str, count: int, strength: float) -> None:
    order = AttackOrder.parse(f"{name}:{count}:{ATTACKS[name].parameter}={strength!r}")
    assert (order.attack.rule.name, order.count, order.attack.strength) == (name, count, strength)
    assert AttackOrder.parse(f"{name}:{count}").attack.strength == ATTACKS[name].default


@pytest.mark.parametrize(
    "text", ["", "gossip:1", "zero", "zero:", "zero:x", "zero:-1", "scaling:1:factor", "scaling:1:z=2", "alie:1:z=much"]
)
def test_a_wrong_order_is_explained(text: str) -> None:
    with pytest.raises(UsageError):
        AttackOrder.parse(text)

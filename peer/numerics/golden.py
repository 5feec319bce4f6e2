"""Golden vectors: checks that this machine rounds as all others do (design §6.4).

A peer whose codecs, combination, outer step or rules by coordinate give other bytes would vote for states that no other
peer has. It finds out here, at start, in a few milliseconds, and then neither votes nor reduces nor accuses. Typical
causes: a library that enabled flushing of subnormals, a compiler that fused multiplication and addition, a broken
build.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from peer.numerics.codec import CODECS
from peer.numerics.merge import combine, squared_norm
from peer.numerics.outer_optimizer import OuterState, outer_step, state_bytes
from peer.numerics.robust.rules import AGGREGATORS
from peer.numerics.robust.segments import BY_COORDINATE, TensorInputs, segment_factors, tensor_radius

ELEMENTS = 3 * 1024 + 77  # several leaves of every codec, and a last block that is not full
_SORTED_ELEMENTS = 256  # sorting takes most of the time here
_EXPONENT_MAX = 190  # biased: values up to 2^64, so that no product overflows

GOLDEN: Mapping[str, str] = MappingProxyType(
    {
        "codec fp32": "2fcf0276828c72fe1bea169a85a26d898be6f27849f23ec88a694ba4a36cf803",
        "codec fp16": "555e3ed0cd2cdb53bf3f619eab3a829807a62e910246a332e4c9c44352e21503",
        "codec bf16": "fcc3e103d7ef4fcf16c7a716ba902b3e566d29bfeb949b369ba26155b5976a64",
        "codec int8": "102a8804a4301d3c18cb46dd0069bcc36ff340afe9fd2357eb484874ebbc6d07",
        "codec int4": "d61397c57c302decc14d82d5cff5ef4785d6e04c1ca1009b6598a1356b32ae81",
        "codec int2": "51d35fa977e7835aa107163eba9bbe5ca689843a84a859554e6fb2371815d033",
        "codec e3m0": "d04d6f0e5998a2c8e1ae7c9285806a18e335721e8043dd26ce9c17fdc570c7c1",
        "combination": "9ee25ce040af1daabaf884a4edd2ade0057e9f43368818fef8f380d6f756b995",
        "outer step": "1d28967522010a999402b8b77979d027580a4e9cf2a368b2b70cae281b0adbf8",
        "combination over all exponents": "d0360900b750263a26b9e5f645a8327df04b7b3be533658cc405a6ed655474d6",
        "outer step over all exponents": "c7d18b318b67b8af0e959c615c3bfb5c43056a8eb833bba5918b6d289aeb1cd6",
        "lengths": "b6937f9c07cfa922d8e49f5a60fb01d723b98c298d10a5d5e9dc288d50bf307b",
        "lengths over all exponents": "c19cfb2210bd6cfe4a4a8c636770a2ad81972e7d2695cf94a28d5b4f9bea4601",
        "squared norm": "0f27a2b028c5875076e3acf5222c70b881d558700e26a187e782fcb9f8924b6b",
        "squared norm over all exponents": "ea2b76d242881713d60f1e0b13e66a1c96a7673f0943491a6bec4b31449b49de",
        "median": "8917c02d5043ae38fde65b55b43e69f930ee8ebfd4ff37d86e0c7248db33d054",
        "trimmed_mean": "fc6bf05a7c89cadfebc0fff3bc60f890c46994c231653e98b060c6fc65ac6cd3",
        "median over all exponents": "eef415eaa9c8465bb94942bf606d2d1af066cfbb27b93cc67945c732e593beb8",
        "trimmed_mean over all exponents": "3f5930dfe2a650e8361b02f93beaf3451652bb59cb7759f639f11b31dc125f28",
    }
)
"""The expected hash of each computation; changing any of these is a new major version of the protocol."""


def self_check(expected: Mapping[str, str] = GOLDEN) -> str | None:
    """Return None if this machine computes what all others do, else a sentence that names what differs."""
    wrong = [name for name, digest in golden_digests() if digest != expected.get(name)]
    return f"this machine computes other bytes than the run expects in: {', '.join(wrong)}" if wrong else None


def golden_digests() -> Iterator[tuple[str, str]]:
    """Yield name and digest of every computation whose bytes peers must share, over fixed inputs."""
    vectors = ordinary(b"ordinary"), wide(b"wide")
    for name, codec in CODECS.items():
        hasher = hashlib.sha256()
        for vector in vectors:
            data = codec.encode(vector)
            hasher.update(data)
            hasher.update(state_bytes(codec.decode(data, len(vector))))
        yield f"codec {name}", hasher.hexdigest()
    for scope, make in (("", ordinary), (" over all exponents", wide)):
        yield "combination" + scope, _combination_digest(make)
        yield "outer step" + scope, _outer_step_digest(make)
        yield "lengths" + scope, _lengths_digest(make)
        yield "squared norm" + scope, hashlib.sha256(struct.pack("<d", squared_norm(make(b"norm")))).hexdigest()
        for rule in sorted(BY_COORDINATE):
            yield rule + scope, _by_coordinate_digest(rule, make)


def _combination_digest(make: Callable[[bytes], Tensor]) -> str:
    half = ELEMENTS // 2
    factors = [[np.float32(share) for share in shares] for shares in ((0.1, 0.7, 0.2), (1e-3, 3.3e4, 0.123))]
    vectors = [make(seed) for seed in (b"first", b"second", b"third")]
    return _digest(combine(vectors, factors, [slice(0, half), slice(half, ELEMENTS)]))


def _lengths_digest(make: Callable[[bytes], Tensor]) -> str:
    """Digest the lengths that members give to merged directions, and the factors of spot checks.

    Many of the norms and weights are equal.
    """
    norms, weights = make(b"lengths").abs()[:31].tolist(), make(b"weights").abs()[:31].tolist()
    norms[7:14], weights[14:21] = norms[:7], weights[:7]
    inputs = [TensorInputs(tuple(norms), tuple(weights), embedding) for embedding in (False, True)]
    numbers = [tensor_radius(rule, inputs[0]) for rule in ("rda", "robust_rda")]
    numbers += [float(factor) for one in inputs for factor in segment_factors("robust_rda", weights, one)]
    return hashlib.sha256(struct.pack(f"<{len(numbers)}d", *numbers)).hexdigest()


def _by_coordinate_digest(rule: str, make: Callable[[bytes], Tensor]) -> str:
    """Digest a rule by coordinate on cases where a second reduction must give the same bytes.

    The cases have equal values, zeros of both signs, and a member without weight. The first weights are equal. With the
    second, half of the weight ends between two values where the heaviest member's value is at an end. That holds only
    up to the last digits of float64, which depend on the order of summation. The third weights are uneven.
    """
    pieces = [make(seed)[:_SORTED_ELEMENTS] for seed in (b"first", b"second", b"third", b"absent")]
    pieces.insert(1, -pieces[0])
    pieces[2][::3], pieces[3][1::3] = pieces[0][::3], pieces[1][1::3]
    weights = (1.0, 1.0, 1.0, 1.0, 0.0), (0.3, 1.5, 0.5, 0.7, 0.0), (3e4, 2.5e4, 3.1e4, 1.4e4, 0.123)
    return _digest(*(AGGREGATORS[rule](pieces, one).vector for one in weights))


def _outer_step_digest(make: Callable[[bytes], Tensor]) -> str:
    state = outer_step(OuterState(make(b"anchor"), make(b"momentum")), make(b"gradient"), 0.7, 0.9)
    return _digest(state.anchor, state.velocity)


def _digest(*vectors: Tensor) -> str:
    return hashlib.sha256(b"".join(map(state_bytes, vectors))).hexdigest()


def ordinary(seed: bytes, elements: int = ELEMENTS) -> Tensor:
    """Return values between -1 and 1, from a hash, because a library may change its random generator."""
    whole = np.frombuffer(hashlib.shake_256(seed).digest(2 * elements), "<i2").astype(np.float32)
    return torch.from_numpy(whole / np.float32(32768))


def wide(seed: bytes, elements: int = ELEMENTS) -> Tensor:
    """Return values of both signs and every relevant exponent; each eighth is subnormal, each sixteenth zero."""
    bits = np.frombuffer(hashlib.shake_256(seed).digest(4 * elements), "<u4").astype(np.uint32)
    exponents = ((bits >> np.uint32(23)) & np.uint32(0xFF)) % np.uint32(_EXPONENT_MAX)
    exponents[::8] = 0
    values = (bits & np.uint32(0x807FFFFF)) | (exponents << np.uint32(23))
    values[::16] = 0
    return torch.from_numpy(values.view(np.float32))

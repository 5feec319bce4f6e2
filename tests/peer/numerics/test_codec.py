from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from coordinator.wire.openings import LEAF_BYTES_MAX
from dht.errors import LocalError, PeerError
from peer.numerics.codec import BLOCK_ELEMENTS, CHUNK_BLOCKS, CODECS

torch.set_num_threads(1)

NAMES = tuple(CODECS)
BLOCK_NAMES = ("int8", "int4", "int2", "e3m0")
FLOAT_MAX = float(np.finfo(np.float32).max)

# relative L2 error on Gaussian vectors as measured (and written in the module), with two per cent of slack
GAUSSIAN_ERROR = {
    "fp32": 0.0,
    "fp16": 2.08e-4,
    "bf16": 1.66e-3,
    "int8": 6.46e-3,
    "int4": 0.1170,
    "int2": 0.767,
    "e3m0": 0.192,
}
BITS_PER_ELEMENT = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8.25, "int4": 4.25, "int2": 2.25, "e3m0": 4.25}

vectors = hnp.arrays(
    np.float32, st.integers(0, 300), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
).map(torch.from_numpy)


def roundtrip(name, vector):
    return CODECS[name].decode(CODECS[name].encode(vector), len(vector))


@pytest.mark.parametrize("name", NAMES)
@given(vectors)
def test_every_finite_vector_survives(name, vector):
    codec = CODECS[name]
    before = vector.clone()
    data = codec.encode(vector)
    assert torch.equal(vector, before)
    assert len(data) == codec.encoded_bytes(len(vector))
    decoded = codec.decode(data, len(vector))
    assert decoded.shape == vector.shape
    assert decoded.dtype == torch.float32
    assert torch.isfinite(decoded).all()
    assert torch.equal(codec.decode(memoryview(data), len(vector)), decoded)
    seen = torch.full_like(vector, torch.nan)
    assert codec.encode(vector, seen) == data
    assert seen.numpy().tobytes() == decoded.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_the_error_on_gaussian_vectors_is_as_published(name):
    codec, vector = CODECS[name], torch.randn(256 * 1024, generator=torch.Generator().manual_seed(1))
    decoded = roundtrip(name, vector)
    assert float((decoded - vector).norm() / vector.norm()) == pytest.approx(GAUSSIAN_ERROR[name], rel=0.02)
    assert codec.encoded_bytes(len(vector)) * 8 / len(vector) == BITS_PER_ELEMENT[name]


@given(vectors)
def test_fp32_is_exact(vector):
    assert roundtrip("fp32", vector).numpy().tobytes() == vector.numpy().tobytes()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
@given(vectors)
def test_halves_round_to_nearest_even_and_saturate(name, dtype, vector):
    largest = torch.finfo(dtype).max
    expected = vector.clamp(-largest, largest).to(dtype).float()
    normal = (vector == 0) | (vector.abs() >= torch.finfo(torch.float32).tiny)  # torch may flush subnormals, we do not
    assert torch.equal(roundtrip(name, vector)[normal], expected[normal])


def test_bf16_keeps_subnormals():
    smallest = torch.tensor([2.0**-133, -(2.0**-130)])
    assert torch.equal(roundtrip("bf16", smallest), smallest)


@pytest.mark.parametrize("name", ["int8", "int4", "int2"])
@given(vectors)
def test_integers_are_off_by_half_a_step_at_most(name, vector):
    levels = {"int8": 127, "int4": 7, "int2": 1}[name]
    vector = vector.clamp(-1e37, 1e37)
    decoded = roundtrip(name, vector)
    for start in range(0, len(vector), BLOCK_ELEMENTS):
        block, out = vector[start : start + BLOCK_ELEMENTS].double(), decoded[start : start + BLOCK_ELEMENTS].double()
        step = float(block.abs().max()) / levels
        if step < 2.0**-126:
            assert not out.any()
        else:
            assert float((block - out).abs().max()) <= step * (0.5 + 1e-5)


@pytest.mark.parametrize("name", BLOCK_NAMES)
@given(vectors)
def test_no_error_is_longer_than_the_value(name, vector):
    """Therefore the error that error feedback carries over stays bounded."""
    assert ((roundtrip(name, vector) - vector).abs().double() <= vector.abs().double() * (1 + 1e-6)).all()


def test_int2_sends_signs_of_what_is_at_least_half_the_largest():
    values = torch.tensor([3.0, -1.6, 1.4, 0.0, -3.0] + [0.0] * 91 + [2.0, -2.0])
    expected = [3.0, -3.0, 0.0, 0.0, -3.0] + [0.0] * 91 + [3.0, -3.0]
    assert roundtrip("int2", values).tolist() == expected
    codes = CODECS["int2"].encode(values)[4:]
    assert codes[0] == 0b11_10_10_11  # values 0, 32, 64 and 96 of the block, lowest bits first; two is zero
    assert codes[1] == 0b01_10_10_01


def test_e3m0_rounds_to_the_nearest_power_of_two():
    values = torch.tensor([1.0, -1.0, 0.76, 0.74, -0.5, 1 / 64, 0.7 / 64, 0.51 / 64, 0.49 / 64, 0.0])
    expected = [1.0, -1.0, 1.0, 0.5, -0.5, 1 / 64, 1 / 64, 1 / 64, 0.0, 0.0]
    assert roundtrip("e3m0", values).tolist() == expected


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "int2", "e3m0"])
@given(vectors)
def test_encoding_a_decoded_vector_changes_nothing(name, vector):
    data = CODECS[name].encode(vector)
    assert CODECS[name].encode(CODECS[name].decode(data, len(vector))) == data


@pytest.mark.parametrize("name", ["int8", "int4"])
@given(vectors)
def test_encoding_a_decoded_vector_keeps_every_code(name, vector):
    """The scale may move by one unit in the last place, since (s·7)/7 is not always s."""
    codec = CODECS[name]
    data = codec.encode(vector.clamp(-1e37, 1e37))
    again = codec.encode(codec.decode(data, len(vector)))
    block_bytes = codec.encoded_bytes(1)
    for start in range(0, len(data), block_bytes):
        one, two = data[start : start + block_bytes], again[start : start + block_bytes]
        if one[:4] != two[:4] and two[:4] == bytes(4):
            continue  # a scale at the smallest normal number may fall below it
        assert one[4:] == two[4:]
        assert abs(struct.unpack("<i", one[:4])[0] - struct.unpack("<i", two[:4])[0]) <= 1


@pytest.mark.parametrize("name", NAMES)
def test_leaves_hold_whole_blocks_and_decode_alone(name):
    """Spot checks need this: a leaf's elements encode to the leaf's bytes, wherever the leaf is."""
    codec = CODECS[name]
    vector = torch.randn((CHUNK_BLOCKS * 2 + 3) * BLOCK_ELEMENTS + 77, generator=torch.Generator().manual_seed(2))
    data, decoded = codec.encode(vector), roundtrip(name, vector)
    assert LEAF_BYTES_MAX - codec.encoded_bytes(1) < codec.leaf_bytes <= LEAF_BYTES_MAX
    assert codec.encoded_bytes(codec.leaf_elements) == codec.leaf_bytes
    for index, start in enumerate(range(0, len(vector), codec.leaf_elements)):
        own = vector[start : start + codec.leaf_elements]
        leaf = data[index * codec.leaf_bytes : (index + 1) * codec.leaf_bytes]
        assert codec.encode(own) == leaf
        assert torch.equal(codec.decode(leaf, len(own)), decoded[start : start + len(own)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_length_is_the_peers_fault(name, change):
    data = CODECS[name].encode(torch.ones(200))
    with pytest.raises(PeerError, match="bytes are not a"):
        CODECS[name].decode(data[:-1] if change < 0 else data + b"\x00", 200)
    with pytest.raises(PeerError, match="bytes are not a"):
        CODECS[name].decode(data, 200 + 128 * change)


@pytest.mark.parametrize("name", BLOCK_NAMES)
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, 1e-40, -float("inf"), FLOAT_MAX])
def test_a_hostile_scale_is_the_peers_fault(name, scale):
    data = bytearray(CODECS[name].encode(torch.ones(200)))
    data[:4] = struct.pack("<f", scale)
    with pytest.raises(PeerError, match="scale"):
        CODECS[name].decode(bytes(data), 200)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        (name, pattern)
        for name, width in (("fp32", "<f"), ("fp16", "<e"))
        for pattern in (struct.pack(width, float("inf")), struct.pack(width, float("nan")))
    ]
    + [("bf16", b"\x80\x7f"), ("bf16", b"\xc0\xff")],
)
def test_hostile_floats_are_the_peers_fault(name, pattern):
    data = CODECS[name].encode(torch.ones(5))
    with pytest.raises(PeerError, match="not finite"):
        CODECS[name].decode(data[: -len(pattern)] + pattern, 5)


@pytest.mark.parametrize("name", BLOCK_NAMES)
@given(st.binary(min_size=1, max_size=300))
def test_decoded_values_are_finite_whatever_the_bytes(name, data):
    elements = len(data) // CODECS[name].encoded_bytes(1) * BLOCK_ELEMENTS
    whole = data[: CODECS[name].encoded_bytes(elements)]
    try:
        decoded = CODECS[name].decode(whole, elements)
    except PeerError:
        return
    assert torch.isfinite(decoded).all()
    assert float(decoded.double().square().sum()) <= CODECS[name].squared_length_max(whole, elements) * (1 + 1e-6)
    assert not ((decoded != 0) & (decoded.abs() < 2.0**-126)).any(), "subnormals would differ between machines"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("at", [0, 199])
def test_a_vector_that_is_not_finite_is_our_own_fault(name, value, at):
    vector = torch.ones(200)
    vector[at] = value
    with pytest.raises(LocalError, match="not finite"):
        CODECS[name].encode(vector)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_values_saturate(name):
    vector = torch.tensor([FLOAT_MAX, -FLOAT_MAX, 0.0])
    decoded = roundtrip(name, vector)
    assert torch.isfinite(decoded).all()
    assert decoded[0] == -decoded[1] > 6e4
    assert decoded[2] == 0


@pytest.mark.parametrize("name", NAMES)
@given(vector=vectors)
def test_no_vector_is_longer_than_its_encodings_bound(name, vector):
    decoded, data = roundtrip(name, vector), CODECS[name].encode(vector)
    bound = CODECS[name].squared_length_max(data, len(vector))
    assert float(decoded.double().square().sum()) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("name", BLOCK_NAMES)
def test_zeros_encode_to_zero_bytes_and_code_zero(name):
    assert not roundtrip(name, torch.zeros(130)).any()
    assert CODECS[name].encode(torch.zeros(0)) == b""


def test_only_flat_float32_is_encoded():
    for vector in (torch.zeros(2, 2), torch.zeros(2, dtype=torch.float64)):
        with pytest.raises(ValueError, match="float32"):
            CODECS["int4"].encode(vector)


def test_a_strided_vector_is_encoded_like_its_copy():
    vector = torch.randn(600, generator=torch.Generator().manual_seed(3))[::2]
    for codec in CODECS.values():
        assert codec.encode(vector) == codec.encode(vector.clone())

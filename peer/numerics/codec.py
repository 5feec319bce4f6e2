"""Encodes float32 vectors as bytes and decodes them, identically on every machine (design §6.2 step 4, §7).

Every numpy or torch operation here is one separately rounded IEEE float32 operation, so no fused instruction and no
thread count can change a bit. An encoding is a sequence of independent blocks. A Merkle leaf holds whole blocks, so one
leaf can be decoded, recombined and encoded again alone (the exact spot check of design §6.2 step 8).

Relative error (L2) on Gaussian vectors, and bits per element, as `tests/peer/numerics/test_codec.py` checks them: fp32
0, 32; fp16 2.1e-4, 16; bf16 1.7e-3, 16; int8 0.65 %, 8.25; int4 11.7 %, 4.25; e3m0 19.2 %, 4.25; int2 77 %, 2.25. With
every block codec the error of an element is at most as large as the element, on which error feedback relies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coordinator.wire.openings import LEAF_BYTES_MAX
from dht.errors import LocalError, PeerError
from peer.machine.buffer_pool import new_vector

BLOCK_ELEMENTS = 128  # 64 would cost a quarter of a bit for a tenth less error; more bits per value save twice that
SCALE_BYTES = 4
CHUNK_BLOCKS = 512  # blocks processed at once: 256 KiB of float32, which stays in a core's cache

Buffer = bytes | memoryview
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_FLOAT_MAX = float(np.finfo(np.float32).max)
_NORMAL_MIN = float(np.finfo(np.float32).tiny)


class Codec(Protocol):
    """One encoding of float32 vectors."""

    @property
    def name(self) -> str: ...

    @property
    def leaf_bytes(self) -> int:
        """Size of a Merkle leaf in bytes: the largest whole number of blocks within LEAF_BYTES_MAX."""
        ...

    @property
    def leaf_elements(self) -> int:
        """Number of elements in a full leaf."""
        ...

    def encoded_bytes(self, elements: int) -> int:
        """Return the length of the encoding of `elements` values, in bytes."""
        ...

    def encode(self, vector: Tensor, seen: Tensor | None = None) -> bytes:
        """Encode float32[n] on the CPU; values out of range saturate. Raises LocalError if one is not finite.

        Writes the decoded values to `seen`, float32[n], if given.
        """
        ...

    def decode(self, buffer: Buffer, elements: int) -> Tensor:
        """Decode to float32[elements]; raises PeerError on a wrong length or a value that is not finite."""
        ...

    def squared_length_max(self, buffer: Buffer, elements: int) -> float:
        """Return an upper bound on the squared length of the decoded vector, for less work; raises as `decode` does."""
        ...


@dataclass(frozen=True, slots=True)
class RawCodec:
    """IEEE floats of `bytes_each` bytes, little-endian; a block is one value."""

    name: str
    bytes_each: int

    @property
    def leaf_bytes(self) -> int:
        return LEAF_BYTES_MAX

    @property
    def leaf_elements(self) -> int:
        return LEAF_BYTES_MAX // self.bytes_each

    def encoded_bytes(self, elements: int) -> int:
        return elements * self.bytes_each

    def encode(self, vector: Tensor, seen: Tensor | None = None) -> bytes:
        values = _floats(vector)
        if not np.isfinite(values).all():
            raise LocalError("a vector to be encoded holds values that are not finite")
        if self.name == "fp16":
            largest = np.float32(np.finfo(np.float16).max)
            encoded = np.clip(values, -largest, largest).astype("<f2").tobytes()
        elif self.name == "bf16":
            encoded = _to_bfloat16(values).tobytes()
        else:
            encoded = values.astype("<f4", copy=False).tobytes()
        if seen is not None:
            seen.copy_(self.decode(encoded, len(vector)))
        return encoded

    def decode(self, buffer: Buffer, elements: int) -> Tensor:
        _check_length(self, buffer, elements)
        if self.name == "fp16":
            values = np.frombuffer(buffer, "<f2").astype(np.float32)
        elif self.name == "bf16":
            values = (np.frombuffer(buffer, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            values = np.frombuffer(buffer, "<f4").astype(np.float32)
        if not np.isfinite(values).all():
            raise PeerError(f"the {self.name} encoding holds values that are not finite")
        return torch.from_numpy(values)

    def squared_length_max(self, buffer: Buffer, elements: int) -> float:
        return elements * float(np.abs(self.decode(buffer, elements).numpy()).max(initial=0)) ** 2


@dataclass(frozen=True, slots=True)
class IntegerQuantiser:
    """Rounds to integers of magnitude up to `levels`, which is 127, 7 or 1: one, two or four to a byte.

    `levels` 1 is ternary: four linear levels without a zero would turn a sparse block into noise longer than the block.
    A block's scale is absmax / levels. Blocks with a scale below `scale_min` become zero, so that no value decodes to a
    subnormal, which some machines flush.
    """

    levels: int
    scale_min: float = _NORMAL_MIN

    @property
    def bits(self) -> int:
        return self.levels.bit_length() + 1

    @property
    def code_bytes(self) -> int:
        return BLOCK_ELEMENTS * self.bits // 8

    def to_codes(self, scaled: Floats) -> Bytes:
        """Return uint8[blocks, code_bytes] from float32[blocks, BLOCK_ELEMENTS] divided by their scales.

        The input's rounded magnitude is at most `levels`; it is overwritten.
        """
        np.rint(scaled, out=scaled)
        if self.bits == 8:
            return scaled.astype(np.int8).view(np.uint8)
        scaled += self.levels + 1
        return _pack(scaled.astype(np.uint8), self.bits)

    def from_codes(self, codes: Bytes, out: Floats) -> None:
        """Decode contiguous codes into float32[blocks, BLOCK_ELEMENTS]: the inverse of `to_codes`."""
        if self.bits == 8:
            out[:] = codes.view(np.int8)
            return
        for own, part in _unpacked(codes, self.bits, out):
            own -= np.uint8(self.levels + 1)  # around zero, as in a signed byte
            part[:] = own.view(np.int8)


@dataclass(frozen=True, slots=True)
class ExponentQuantiser:
    """E3M0, as in Streaming DiLoCo (2501.18512): a sign and three exponent bits: 0, ±1/64, ±1/32, … ±1."""

    levels: int = 1
    scale_min: float = _NORMAL_MIN * 64

    @property
    def code_bytes(self) -> int:
        return BLOCK_ELEMENTS // 2

    def to_codes(self, scaled: Floats) -> Bytes:
        magnitude = np.minimum(np.abs(scaled), np.float32(1))
        # the border between 2^-k-1 and 2^-k is 0.75·2^-k: adding a third makes it a power of two
        exponent = (magnitude * np.float32(4 / 3)).view(np.int32) >> 23
        codes = np.maximum(exponent - 120, magnitude >= np.float32(1 / 128)).astype(np.uint8)
        codes += ((scaled < 0) & (codes > 0)).astype(np.uint8) * np.uint8(8)
        return _pack(codes, 4)

    def from_codes(self, codes: Bytes, out: Floats) -> None:
        table = np.array([0.0] + [2.0**power for power in range(-6, 1)], np.float32)
        signed = np.concatenate([table, -table])
        for own, part in _unpacked(codes, 4, out):
            part[:] = signed[own]


@dataclass(frozen=True, slots=True)
class BlockCodec:
    """Blocks of 128 values: a float32 scale (absmax / levels), then the codes; the last block is padded with zeros."""

    name: str
    quantiser: IntegerQuantiser | ExponentQuantiser
    block_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_bytes", SCALE_BYTES + self.quantiser.code_bytes)

    @property
    def leaf_bytes(self) -> int:
        return LEAF_BYTES_MAX // self.block_bytes * self.block_bytes

    @property
    def leaf_elements(self) -> int:
        return LEAF_BYTES_MAX // self.block_bytes * BLOCK_ELEMENTS

    @property
    def scale_max(self) -> np.float32:
        """The largest scale whose product with any code is in the range of float32, even with the unused lowest int."""
        largest: np.float32 = np.nextafter(np.float32(_FLOAT_MAX / (self.quantiser.levels + 1)), np.float32(0))
        return largest

    def encoded_bytes(self, elements: int) -> int:
        return _blocks(elements) * self.block_bytes

    def encode(self, vector: Tensor, seen: Tensor | None = None) -> bytes:
        values = _floats(vector)
        encoded = np.empty((_blocks(values.size), self.block_bytes), np.uint8)
        whole = values.size - values.size % BLOCK_ELEMENTS
        spent = None if seen is None else seen.numpy()
        self._encode_blocks(_in_blocks(values[:whole]), encoded, None if spent is None else _in_blocks(spent[:whole]))
        if whole < values.size:
            last = np.zeros((1, BLOCK_ELEMENTS), np.float32)
            last[0, : values.size - whole] = values[whole:]
            self._encode_blocks(last, encoded[-1:], last)
            if spent is not None:
                spent[whole:] = last[0, : values.size - whole]
        return encoded.tobytes()

    def decode(self, buffer: Buffer, elements: int) -> Tensor:
        encoded, scales = self._scaled(buffer, elements)
        values = new_vector(len(encoded) * BLOCK_ELEMENTS).numpy()
        blocks = _in_blocks(values)
        for start in range(0, len(encoded), CHUNK_BLOCKS):
            chunk = slice(start, start + CHUNK_BLOCKS)
            self._decode_blocks(np.ascontiguousarray(encoded[chunk, SCALE_BYTES:]), scales[chunk], blocks[chunk])
        return torch.from_numpy(values[:elements])

    def squared_length_max(self, buffer: Buffer, elements: int) -> float:
        _, scales = self._scaled(buffer, elements)
        largest = scales.astype(np.float64) * (self.quantiser.levels + 1)
        return BLOCK_ELEMENTS * float(np.square(largest).sum())

    def _scaled(self, buffer: Buffer, elements: int) -> tuple[Bytes, Floats]:
        """Return the encoded blocks and the scale of each; raises as `decode`."""
        _check_length(self, buffer, elements)
        encoded = np.frombuffer(buffer, np.uint8).reshape(-1, self.block_bytes)
        scales = encoded[:, :SCALE_BYTES].copy().view("<f4")
        # in this form NaN fails the check; minus zero counts as zero
        if not ((scales == 0) | ((scales >= self.quantiser.scale_min) & (scales <= self.scale_max))).all():
            raise PeerError(f"the {self.name} encoding holds a scale that is not finite or out of range")
        return encoded, scales

    def _encode_blocks(self, blocks: Floats, encoded: Bytes, seen: Floats | None) -> None:
        for start in range(0, len(blocks), CHUNK_BLOCKS):
            chunk = slice(start, start + CHUNK_BLOCKS)
            scales, codes = self._codes(blocks[chunk])
            encoded[start : start + len(codes), :SCALE_BYTES] = scales.astype("<f4", copy=False).view(np.uint8)
            encoded[start : start + len(codes), SCALE_BYTES:] = codes
            if seen is not None:
                self._decode_blocks(codes, scales, seen[chunk])

    def _codes(self, blocks: Floats) -> tuple[Floats, Bytes]:
        """Return the scale of each block, float32[blocks, 1], and its codes."""
        scaled = np.abs(blocks)
        worked = torch.from_numpy(scaled)  # torch reduces rows several times as fast as numpy
        largest = worked.amax(dim=1, keepdim=True).numpy()
        if not np.isfinite(largest).all():
            raise LocalError("a vector to be encoded holds values that are not finite")
        scales = np.minimum(largest / np.float32(self.quantiser.levels), self.scale_max)
        scales[scales < np.float32(self.quantiser.scale_min)] = 0
        divisors = np.where(scales == 0, np.float32(np.inf), scales)
        torch.div(torch.from_numpy(blocks), torch.from_numpy(divisors), out=worked)
        if (scales == self.scale_max).any():  # else a block's largest value is `levels` times its scale
            np.clip(scaled, -self.quantiser.levels, self.quantiser.levels, out=scaled)
        return scales, self.quantiser.to_codes(scaled)

    def _decode_blocks(self, codes: Bytes, scales: Floats, out: Floats) -> None:
        self.quantiser.from_codes(codes, out)
        torch.from_numpy(out).mul_(torch.from_numpy(scales))


def _in_blocks(values: Floats) -> Floats:
    return values.reshape(-1, BLOCK_ELEMENTS)


def _pack(codes: Bytes, bits: int) -> Bytes:
    """Pack several codes of `bits` bits into a byte.

    Byte k of c has the values k, k + c, k + 2c … of a block, the lowest bits first.
    """
    words = codes.view(np.uint32)  # a shifted code stays within its byte
    columns = words.shape[1] * bits // 8
    packed = words[:, :columns].copy()
    for place in range(1, 8 // bits):
        packed |= words[:, place * columns : (place + 1) * columns] << np.uint32(bits * place)
    return packed.view(np.uint8)


def _unpacked(codes: Bytes, bits: int, out: Floats) -> Iterator[tuple[Bytes, Floats]]:
    """Yield the codes of each position in their bytes, and the part of `out` for their values."""
    columns, last = BLOCK_ELEMENTS * bits // 8, 8 // bits - 1
    for place in range(last + 1):
        shifted = codes >> np.uint8(bits * place) if place else codes
        own = shifted if place == last else shifted & np.uint8((1 << bits) - 1)
        yield own, out[:, place * columns : (place + 1) * columns]


def _to_bfloat16(values: Floats) -> NDArray[np.uint16]:
    """Round to nearest even on the bits, because the processor's own instruction would flush subnormals."""
    bits = values.view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    # 0x7F80 is infinity, which only values beyond the largest bfloat16 round to
    saturated: NDArray[np.uint32] = rounded - ((rounded & np.uint32(0x7FFF)) == 0x7F80)
    return saturated.astype("<u2")


def _floats(vector: Tensor) -> Floats:
    if vector.dtype != torch.float32 or vector.dim() != 1 or vector.device.type != "cpu":
        raise ValueError(f"a codec takes float32[n] on the CPU, not {vector.dtype}{list(vector.shape)}")
    values: Floats = np.ascontiguousarray(vector.detach().numpy())
    return values


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK_ELEMENTS)


def _check_length(codec: Codec, buffer: Buffer, elements: int) -> None:
    if len(buffer) != codec.encoded_bytes(elements):
        raise PeerError(
            f"{len(buffer)} bytes are not a {codec.name} encoding, which has {codec.encoded_bytes(elements)}"
        )


CODECS: Mapping[str, Codec] = MappingProxyType(
    {
        codec.name: codec
        for codec in (
            RawCodec("fp32", 4),
            RawCodec("fp16", 2),
            RawCodec("bf16", 2),
            BlockCodec("int8", IntegerQuantiser(127)),
            BlockCodec("int4", IntegerQuantiser(7)),
            BlockCodec("int2", IntegerQuantiser(1)),
            BlockCodec("e3m0", ExponentQuantiser()),
        )
    }
)
"""Every codec by its name in manifests."""

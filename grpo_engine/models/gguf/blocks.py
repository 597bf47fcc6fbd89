"""The number formats of GGUF: each turns blocks of bytes into float32.

A block has a scale d (and a minimum m) in float16 and small integers q: x = d q or x = d q + m. The
K formats put 16 or 8 blocks with scales of few bits into one of 256 numbers. Arrays begin with the
axis of blocks.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Block(NamedTuple):
    """A format: how many numbers are in how many bytes, and how they are read."""

    name: str
    elements: int
    size: int
    read: Callable[[Bytes], Floats]


def dequantise(raw: Bytes, kind: int) -> Floats:
    """All numbers of a tensor, flat."""
    block = BLOCKS[kind]
    return block.read(raw.reshape(-1, block.size)).astype(np.float32, copy=False).reshape(-1)


def _half(raw: Bytes, at: int) -> Floats:
    """The float16 at a byte of each block, [blocks, 1]."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16).astype(np.float32)


def _f32(raw: Bytes) -> Floats:
    return raw.view(np.float32)


def _f16(raw: Bytes) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _bf16(raw: Bytes) -> Floats:
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _nibbles(raw: Bytes) -> npt.NDArray[np.int32]:
    """Low halves of all bytes, then high halves."""
    return np.concatenate([raw & 0x0F, raw >> 4], axis=-1).astype(np.int32)


def _q4_0(raw: Bytes) -> Floats:
    return _half(raw, 0) * (_nibbles(raw[:, 2:]) - 8)


def _q4_1(raw: Bytes) -> Floats:
    return _half(raw, 0) * _nibbles(raw[:, 4:]) + _half(raw, 2)


def _fifth_bits(raw: Bytes) -> npt.NDArray[np.int32]:
    """32 bits of each block, worth 16 each."""
    return np.unpackbits(raw, axis=1, bitorder="little").astype(np.int32) << 4


def _q5_0(raw: Bytes) -> Floats:
    return _half(raw, 0) * ((_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])) - 16)


def _q5_1(raw: Bytes) -> Floats:
    quants = _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])
    return _half(raw, 0) * quants + _half(raw, 2)


def _q8_0(raw: Bytes) -> Floats:
    return _half(raw, 0) * np.ascontiguousarray(raw[:, 2:]).view(np.int8)


def _six_bit_scales(raw: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima of the eight blocks of Q4_K and Q5_K: 12 bytes, [blocks, 8, 1] each."""
    low, mid, high = raw[:, 0:4], raw[:, 4:8], raw[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([mid & 63, (high >> 4) | ((mid >> 6) << 4)], axis=1)
    return scales[:, :, None].astype(np.float32), minima[:, :, None].astype(np.float32)


def _with_minima(raw: Bytes, quants: npt.NDArray[np.int32]) -> Floats:
    scales, minima = _six_bit_scales(raw[:, 4:16])
    return (_half(raw, 0)[:, :, None] * scales) * quants - _half(raw, 2)[:, :, None] * minima


def _q4_k(raw: Bytes) -> Floats:
    quants = _nibbles(raw[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _with_minima(raw, quants)


def _q5_k(raw: Bytes) -> Floats:
    low = _nibbles(raw[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    bits = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = (raw[:, None, 16:48] >> bits) & 1
    return _with_minima(raw, low | (fifth.astype(np.int32) << 4))


def _two_bits(raw: Bytes) -> npt.NDArray[np.int32]:
    """64 bytes as 256 numbers of two bits: [blocks, 2 halves, 4 shifts, 32]."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]
    return ((raw.reshape(-1, 2, 1, 32) >> shifts) & 3).astype(np.int32)


def _q6_k(raw: Bytes) -> Floats:
    low = raw[:, :128].reshape(-1, 2, 2, 32)
    low = np.concatenate([low & 15, low >> 4], axis=2).astype(np.int32)  # [blocks, 2, 4, 32]
    quants = (low | (_two_bits(raw[:, 128:192]) << 4)) - 32
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return _half(raw, 208)[:, :, None] * scales[:, :, None] * quants.reshape(-1, 16, 16)


def _q2_k(raw: Bytes) -> Floats:
    quants = _two_bits(raw[:, 16:80]).reshape(-1, 16, 16)
    scales, minima = (raw[:, :16] & 15).astype(np.float32), (raw[:, :16] >> 4).astype(np.float32)
    scales, minima = scales * _half(raw, 80), minima * _half(raw, 82)
    return scales[:, :, None] * quants - minima[:, :, None]


def _q3_k(raw: Bytes) -> Floats:
    bits = np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)
    high = ((raw[:, None, None, :32] >> bits) & 1).astype(np.int32)  # [blocks, 2, 4, 32]
    quants = (_two_bits(raw[:, 32:96]) - 4 * (1 - high)).reshape(-1, 16, 16)
    low, top = raw[:, 96:104], raw[:, 104:108]
    tops = np.concatenate([(top >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    lows = np.concatenate([low & 15, low >> 4], axis=1)
    scales: Floats = (lows | (tops << 4)).astype(np.float32) - 32
    return _half(raw, 108)[:, :, None] * scales[:, :, None] * quants


BLOCKS: Final = {
    0: Block("F32", 1, 4, _f32),
    1: Block("F16", 1, 2, _f16),
    2: Block("Q4_0", 32, 18, _q4_0),
    3: Block("Q4_1", 32, 20, _q4_1),
    6: Block("Q5_0", 32, 22, _q5_0),
    7: Block("Q5_1", 32, 24, _q5_1),
    8: Block("Q8_0", 32, 34, _q8_0),
    10: Block("Q2_K", 256, 84, _q2_k),
    11: Block("Q3_K", 256, 110, _q3_k),
    12: Block("Q4_K", 256, 144, _q4_k),
    13: Block("Q5_K", 256, 176, _q5_k),
    14: Block("Q6_K", 256, 210, _q6_k),
    30: Block("BF16", 1, 2, _bf16),
}

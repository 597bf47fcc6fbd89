"""Write TensorBoard event files without TensorBoard: records of two small protobuf messages.

A record is: length (8 bytes), masked CRC-32C of the length, the message, masked CRC-32C of it.
"""

import struct
from functools import cache

POLYNOMIAL = 0x82F63B78  # of Castagnoli


@cache
def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _remainder((value ^ byte) & 0xFF)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    """Mask the CRC as TFRecord does, so that the CRC of data containing a CRC is not degenerate."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, kind: int, body: bytes) -> bytes:
    size = _varint(len(body)) if kind == 2 else b""
    return _varint(number << 3 | kind) + size + body


def scalar(tag: str, value: float, step: int, wall_time: float) -> bytes:
    """The record of one value: Event(wall_time 1, step 2, summary 5: value 1: tag 1, float 2)."""
    name = tag.encode("utf-8", "backslashreplace")
    entry = _field(1, 2, name) + _field(2, 5, struct.pack("<f", value))
    return _record(wall_time, _field(2, 0, _varint(step)) + _field(5, 2, _field(1, 2, entry)))


def version(wall_time: float) -> bytes:
    """The first record of a file."""
    return _record(wall_time, _field(3, 2, b"brain.Event:2"))


def _record(wall_time: float, fields: bytes) -> bytes:
    message = _field(1, 1, struct.pack("<d", wall_time)) + fields
    length = struct.pack("<Q", len(message))
    return length + masked(length) + message + masked(message)

"""JSON frames on a pipe, for both ends: four letters, four bytes of length, then the text."""

import json
import os
from typing import Any

START = b"GRPO"
HEADER = len(START) + 4


class GarbledError(Exception):
    """Something other than a frame was written into the pipe."""


def pack(frame: Any) -> bytes:
    """Encode a frame; lone surrogates become escapes, NaN and infinities words."""
    data = json.dumps(frame, ensure_ascii=True).encode("ascii")
    return START + len(data).to_bytes(4, "big") + data


def missing(buffer: bytearray) -> int:
    """How many bytes the first frame in the buffer lacks, at least."""
    if buffer[: len(START)] != START[: len(buffer)]:
        raise GarbledError
    if len(buffer) < HEADER:
        return HEADER - len(buffer)
    return max(0, HEADER + int.from_bytes(buffer[len(START) : HEADER], "big") - len(buffer))


def pop_frame(buffer: bytearray) -> Any | None:
    """Remove the first complete frame from the buffer and return it; None if there is none."""
    if missing(buffer):
        return None
    end = HEADER + int.from_bytes(buffer[len(START) : HEADER], "big")
    try:
        frame = json.loads(bytes(buffer[HEADER:end]))
    except ValueError:
        raise GarbledError from None
    del buffer[:end]
    return frame


def read_frame(fd: int) -> Any | None:
    """Wait for a frame; None if the other end has closed."""
    buffer = bytearray()
    while count := missing(buffer):
        data = os.read(fd, min(count, 1 << 20))
        if not data:
            return None
        buffer += data
    return pop_frame(buffer)


def write_frame(fd: int, frame: Any) -> None:
    data = memoryview(pack(frame))
    while data:
        data = data[os.write(fd, data) :]

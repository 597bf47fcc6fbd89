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


def _end(buffer: bytearray) -> int:
    """Where the first frame in the buffer ends, or its header if that is not complete."""
    if buffer[: len(START)] != START[: len(buffer)]:
        raise GarbledError
    if len(buffer) < HEADER:
        return HEADER
    return HEADER + int.from_bytes(buffer[len(START) : HEADER], "big")


def pop_frame(buffer: bytearray) -> Any | None:
    """Remove the first complete frame from the buffer and return it; None if there is none."""
    if len(buffer) < (end := _end(buffer)):
        return None
    try:
        frame = json.loads(bytes(buffer[HEADER:end]))
    except ValueError:
        raise GarbledError from None
    del buffer[:end]
    return frame


def read_frame(fd: int) -> Any | None:
    """Wait for a frame; None if the other end has closed."""
    buffer = bytearray()
    while count := max(0, _end(buffer) - len(buffer)):
        data = os.read(fd, min(count, 1 << 20))
        if not data:
            return None
        buffer += data
    return pop_frame(buffer)


def write_frame(fd: int, frame: Any) -> None:
    data = memoryview(pack(frame))
    while data:
        data = data[os.write(fd, data) :]

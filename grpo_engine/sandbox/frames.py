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


def pop_frame(buffer: bytearray) -> Any | None:
    """Remove the first complete frame from the buffer and return it; None if there is none."""
    if buffer[: len(START)] != START[: len(buffer)]:
        raise GarbledError
    end = HEADER + int.from_bytes(buffer[len(START) : HEADER], "big")
    if len(buffer) < max(end, HEADER + 1):
        return None
    try:
        frame = json.loads(bytes(buffer[HEADER:end]))
    except ValueError:
        raise GarbledError from None
    del buffer[:end]
    return frame


def write_frame(fd: int, frame: Any) -> None:
    data = memoryview(pack(frame))
    while data:
        data = data[os.write(fd, data) :]

"""JSON frames on a pipe, for both ends: four bytes of length, then the text."""

import json
import os
from typing import Any

HEADER = 4


def pack(frame: Any) -> bytes:
    """Encode a frame; lone surrogates become escapes, NaN and infinities words."""
    data = json.dumps(frame, ensure_ascii=True).encode("ascii")
    return len(data).to_bytes(HEADER, "big") + data


def take(buffer: bytearray) -> Any | None:
    """Remove the first complete frame from the buffer and return it; None if there is none."""
    if len(buffer) < HEADER:
        return None
    end = HEADER + int.from_bytes(buffer[:HEADER], "big")
    if len(buffer) < end:
        return None
    frame = json.loads(bytes(buffer[HEADER:end]))
    del buffer[:end]
    return frame


def read_frame(fd: int) -> Any | None:
    """Wait for a frame; None if the other end has closed."""
    buffer = bytearray()
    while (frame := take(buffer)) is None:
        missing = HEADER - len(buffer)
        if missing <= 0:
            missing = HEADER + int.from_bytes(buffer[:HEADER], "big") - len(buffer)
        data = os.read(fd, min(missing, 1 << 20))
        if not data:
            return None
        buffer += data
    return frame


def write_frame(fd: int, frame: Any) -> None:
    data = memoryview(pack(frame))
    while data:
        data = data[os.write(fd, data) :]

"""JSON frames on a pipe, for both ends: a line each, which begins with a mark."""

import json
import os
from typing import Any

MARK = b"GRPO "


class GarbledError(Exception):
    """Something other than a frame was written into the pipe."""


def pack(frame: Any) -> bytes:
    """Encode a frame; lone surrogates become escapes, NaN and infinities words."""
    return MARK + json.dumps(frame).encode("ascii") + b"\n"


def unpack(buffer: bytearray) -> list[Any]:
    """Remove the complete frames from the buffer and return them."""
    end = buffer.rfind(b"\n") + 1
    lines = bytes(buffer[:end]).splitlines()
    del buffer[:end]
    if not all(line.startswith(MARK) for line in lines):
        raise GarbledError
    try:
        return [json.loads(line.removeprefix(MARK)) for line in lines]
    except (ValueError, RecursionError):
        raise GarbledError from None


def write_frame(fd: int, frame: Any) -> None:
    data = memoryview(pack(frame))
    while data:
        data = data[os.write(fd, data) :]

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


def unpack(line: bytes | bytearray) -> Any:
    """The frame of a line."""
    try:
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    except (ValueError, RecursionError):
        pass
    raise GarbledError


def write_frame(fd: int, frame: Any) -> None:
    data = memoryview(pack(frame))
    while data:
        data = data[os.write(fd, data) :]

"""Messages between the engine and its local workers: JSON with arrays, over a socket."""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
SIZES: Final = struct.Struct("!IQ")  # bytes of the text, bytes of the arrays


class ClosedError(Exception):
    """The other end has closed, or its process has ended."""


def send(to: socket.socket, value: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    plain = dict(arrays or {})
    listed = [[name, array.dtype.str, array.shape] for name, array in plain.items()]
    text = json.dumps([value, listed]).encode()
    data = b"".join(array.tobytes() for array in plain.values())
    try:
        to.sendall(SIZES.pack(len(text), len(data)) + text + data)
    except OSError as error:
        raise ClosedError from error


def receive(source: socket.socket) -> tuple[dict[str, Any], dict[str, "np.ndarray[Any, Any]"]]:
    text_size, data_size = SIZES.unpack(_exactly(source, SIZES.size))
    value, listed = json.loads(_exactly(source, text_size))
    data = _exactly(source, data_size)
    arrays, place = {}, 0
    for name, kind, shape in listed:
        dtype, count = np.dtype(kind), int(np.prod(shape))
        arrays[name] = np.frombuffer(data, dtype, count, place).reshape(shape)
        place += count * dtype.itemsize
    return value, arrays


def _exactly(source: socket.socket, count: int) -> bytearray:
    data = bytearray(count)
    view, place = memoryview(data), 0
    while place < count:
        try:
            read = source.recv_into(view[place:])
        except OSError as error:
            raise ClosedError from error
        if not read:
            raise ClosedError
        place += read
    return data

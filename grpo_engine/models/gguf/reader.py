"""Reads GGUF files with bounds checks, and reports where a file is damaged.

Layout: magic, version, counts, key-value pairs, tensor descriptions, padding, tensor data.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from grpo_engine.errors import ModelError
from grpo_engine.models.gguf.blocks import block, dequantise, readable
from grpo_engine.regular_files import irregular_file

MAGIC: Final = b"GGUF"
SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
STRING, ARRAY = 8, 9
MOST_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's shape (fastest axis last), number format and location."""

    name: str
    shape: tuple[int, ...]
    kind: int
    format: str  # name of the number format
    offset: int  # from the start of the file
    size: int  # bytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(slots=True)
class GgufFile:
    path: Path
    data: memoryview
    place: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """Return a tensor, dequantised."""
        info = self.tensors[name]
        raw = np.frombuffer(self.data[info.offset : info.offset + info.size], dtype=np.uint8)
        rows = raw.reshape(math.prod(info.shape[:-1]), -1)
        return dequantise(rows, info.kind).reshape(info.shape)

    def _take(self, size: int, what: str) -> memoryview:
        if size < 0 or self.place + size > len(self.data):
            raise ModelError(
                f"{self.path} is cut off: it ends at byte {len(self.data)}, within {what}; "
                "fetch the file again"
            )
        piece = self.data[self.place : self.place + size]
        self.place += size
        return piece

    def _number(self, code: str, what: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}"), what))[0]

    def _string(self, what: str) -> str:
        return bytes(self._take(self._number("Q", what), what)).decode("utf-8", "surrogateescape")

    def _value(self, kind: int, what: str) -> Any:
        if kind in SCALARS:
            return self._number(SCALARS[kind], what)
        if kind == STRING:
            return self._string(what)
        if kind != ARRAY:
            raise ModelError(f"{self.path} is damaged: {what} has the unknown type {kind}")
        inner, count = self._number("I", what), self._number("Q", what)
        if inner in SCALARS:
            code = SCALARS[inner]
            return list(struct.unpack(
                f"<{count}{code}", self._take(count * struct.calcsize(f"<{code}"), what)
            ))  # fmt: skip
        if inner != STRING or count > len(self.data):
            raise ModelError(f"{self.path} is damaged: {what} is a list of type {inner}")
        return [self._string(what) for _ in range(count)]

    def read_header(self) -> None:
        """Read everything except tensor data."""
        if bytes(self.data[:4]) != MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file: it does not begin with {MAGIC!r}")
        self.place = 4
        version = self._number("I", "the header")
        if version not in (2, 3):
            raise ModelError(
                f"{self.path} is of GGUF version {version}; versions 2 and 3 can be read"
            )
        tensors, pairs = self._number("Q", "the header"), self._number("Q", "the header")
        for _ in range(pairs):
            key = self._string("the metadata")
            self.metadata[key] = self._value(self._number("I", key), f"the value of {key}")
        described = [self._describe() for _ in range(tensors)]
        step = self.metadata.get("general.alignment", 32)
        if not isinstance(step, int) or step < 1:
            raise ModelError(f"{self.path} is damaged: general.alignment is {step!r:.40}")
        start = -(-self.place // step) * step
        for name, shape, kind, offset in described:
            self._locate(name, shape, kind, start + offset)

    def _describe(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string("the tensor list")
        count = self._number("I", f"tensor {name}")
        if count > MOST_DIMENSIONS:
            raise ModelError(f"{self.path} is damaged: tensor {name} has {count} dimensions")
        sizes = [self._number("Q", f"tensor {name}") for _ in range(count)]
        kind = self._number("I", f"tensor {name}")
        return name, tuple(reversed(sizes)), kind, self._number("Q", f"tensor {name}")

    def _locate(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> None:
        form = block(kind)
        if form is None:
            raise ModelError(
                f"{self.path} holds {name} in the number format {kind}, which cannot be read; "
                f"formats that can: {', '.join(readable())}"
            )
        elements = math.prod(shape)
        if not elements or (shape[-1] if shape else 1) % form.elements:
            raise ModelError(
                f"{self.path} is damaged: the shape of {name}, {shape}, does not fill blocks of "
                f"{form.elements}"
            )
        size = elements // form.elements * form.size
        if offset + size > len(self.data):
            raise ModelError(
                f"{self.path} is cut off: it ends at byte {len(self.data)}, but tensor {name} "
                f"needs bytes up to {offset + size}; fetch the file again"
            )
        self.tensors[name] = TensorInfo(name, shape, kind, form.name, offset, size)


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufFile]:
    """Memory-map a file and read its header."""
    if problem := irregular_file(path):
        raise ModelError(f"{problem}; give a GGUF file")
    try:
        if path.stat().st_size < len(MAGIC):
            raise ModelError(f"{path} is not a GGUF file: it has {path.stat().st_size} bytes")
        with path.open("rb") as file:
            held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        opened = GgufFile(path, memoryview(held))
        try:
            opened.read_header()
            yield opened
        finally:
            with suppress(BufferError):  # arrays held by a traceback keep the map open
                opened.data.release()
                held.close()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error

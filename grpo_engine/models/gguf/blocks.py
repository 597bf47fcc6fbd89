"""Dequantises GGUF's number formats to float32, by the gguf package."""

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Block(NamedTuple):
    """A format's block: how many numbers in how many bytes."""

    name: str
    elements: int
    size: int


@cache
def block(kind: int) -> Block | None:
    """The format with this id; None if it cannot be read."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        name = GGMLQuantizationType(kind).name
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        dequantise(np.zeros((1, size), dtype=np.uint8), kind)
    except (KeyError, ValueError, NotImplementedError):
        return None
    return Block(name, elements, size)


def readable() -> list[str]:
    """The names of all formats that can be read."""
    from gguf import GGMLQuantizationType

    return [found.name for kind in GGMLQuantizationType if (found := block(kind.value))]


def dequantise(rows: Bytes, kind: int) -> Floats:
    """Dequantise rows of bytes to [rows, numbers]."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    numbers: Floats = dequantize(rows, GGMLQuantizationType(kind)).astype(np.float32, copy=False)
    return numbers

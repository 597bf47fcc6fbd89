"""Reads GGUF files by the gguf package, and names the file that is damaged."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from grpo_engine.errors import ModelError
from grpo_engine.paths import irregular_file


class _Reader(GGUFReader):
    def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **orders: Any) -> Any:
        """Refuse to read behind the end, where the package would go on with empty arrays."""
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError(f"it is cut off at byte {len(self.data)}")
        return super()._get(offset, dtype, count, *order, **orders)


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, ReaderTensor]

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, with the fastest axis last."""
        return tuple(self.tensors[name].shape.tolist()[::-1])

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor, dequantised."""
        tensor = self.tensors[name]
        try:
            values: npt.NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path} holds {name} in the number format {tensor.tensor_type.name}, which "
                "cannot be read"
            ) from error
        return values.astype(np.float32, copy=False)


def open_gguf(path: Path) -> GgufFile:
    """Memory-map a file and read its header."""
    if problem := irregular_file(path):
        raise ModelError(f"{problem}; give a GGUF file")
    try:
        reader = _Reader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, LookupError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as GGUF: {error}; fetch it again if it is damaged"
        ) from error
    return GgufFile(path, metadata, {tensor.name: tensor for tensor in reader.tensors})

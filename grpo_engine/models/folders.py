"""Model folders as they are written: complete and tested, or not at all."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx_lm.utils import make_shards

from grpo_engine.errors import ModelError
from grpo_engine.paths import flush, remove

Dtype = Literal["float32", "float16", "bfloat16"]


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A draft folder that is renamed to `folder` on success and removed on error."""
    if folder.exists():
        raise ModelError(f"{folder} exists; remove it or choose another folder")
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        draft.mkdir(parents=True)
        yield draft
        for file in sorted(draft.iterdir()):
            flush(file)
        flush(draft)
        draft.rename(folder)
        flush(folder.parent)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        remove(draft.parent, draft.name, ignore_errors=True)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Write JSON as other programs of the field do, with texts as they are."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8", "surrogateescape")


def require_space(folder: Path, elements: int, dtype: Dtype) -> None:
    """Refuse to begin if the weights will not fit in an existing folder."""
    needed = elements * getattr(mx, dtype).size
    free = shutil.disk_usage(folder).free
    if free < needed * 1.02:
        raise ModelError(
            f"{folder} has {free / 1e9:.1f} GB free, but the model takes {needed / 1e9:.1f} GB as "
            f"{dtype}; free some space or use --dtype float16"
        )


def write_weights(folder: Path, weights: Mapping[str, mx.array]) -> int:
    """Write weights as mlx-lm does, in shards; return the bytes."""
    shards = make_shards(dict(weights))
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        title = "model" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}"
        mx.save_safetensors(str(folder / f"{title}.safetensors"), shard, {"format": "mlx"})
        files |= dict.fromkeys(shard, f"{title}.safetensors")
    total = sum(array.nbytes for array in weights.values())
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(files.items()))},
    )
    return total

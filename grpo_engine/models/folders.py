"""Model folders as they are written: complete and tested, or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from grpo_engine.errors import ModelError
from grpo_engine.paths import remove

SHARD_BYTES = 4 << 30
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
            _flush(file)
        _flush(draft)
        draft.rename(folder)
        _flush(folder.parent)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        remove(draft.parent, draft.name, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Any) -> None:
    """Write JSON as other programs of the field do, with texts as they are."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8", "surrogateescape")


def require_space(place: Path, elements: int, dtype: Dtype) -> None:
    """Refuse to begin if the weights will not fit."""
    needed = elements * (4 if dtype == "float32" else 2)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed * 1.02:
        raise ModelError(
            f"{place} has {free / 1e9:.1f} GB free, but the model takes {needed / 1e9:.1f} GB as "
            f"{dtype}; free some space or use --dtype float16"
        )


def write_weights(
    folder: Path, elements: Mapping[str, int], array: Callable[[str], mx.array], dtype: Dtype,
    *, kind: Literal["mlx", "pt"] = "mlx",
) -> int:  # fmt: skip
    """Write weights in shards of at most `SHARD_BYTES`, one in memory at a time; return the bytes.

    `elements` has the size of each weight by the name that it gets; `kind` is the library that the
    file says it is for.
    """
    width = 4 if dtype == "float32" else 2
    shards: list[list[str]] = [[]]
    held = 0
    for name, count in elements.items():
        if held and held + count * width > SHARD_BYTES:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += count * width
    index: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        title = "model" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}"
        arrays = {name: array(name).astype(getattr(mx, dtype)) for name in shard}
        mx.save_safetensors(str(folder / f"{title}.safetensors"), arrays, {"format": kind})
        index |= dict.fromkeys(arrays, f"{title}.safetensors")
        total += sum(int(one.nbytes) for one in arrays.values())
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))},
    )
    return total

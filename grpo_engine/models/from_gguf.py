"""Converts a GGUF file to a model folder that mlx-lm can open, atomically."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx

from grpo_engine.errors import ModelError
from grpo_engine.models.gguf import architectures, tokenizers
from grpo_engine.models.gguf.reader import GgufFile, open_gguf

SHARD_BYTES = 4 << 30
Dtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of an import."""

    folder: Path
    architecture: str
    parameters: int
    bytes: int
    formats: tuple[str, ...]  # number formats of the file


def import_gguf(source: Path, folder: Path, *, dtype: Dtype = "float32") -> Imported:
    """Dequantise the weights of `source` and write them with settings and tokenizer to `folder`.

    The folder must not exist. It is created complete and tested, or not at all after an error.
    """
    if folder.exists():
        raise ModelError(f"{folder} exists; remove it or choose another folder")
    with open_gguf(source) as file, _appearing(folder) as draft:
        config = architectures.model_config(file)
        content, settings = tokenizers.build(file)
        ids = tokenizers.end_ids(file)
        if not ids:
            raise ModelError(f"{source} has no end token, so answers could not end")
        config["eos_token_id"] = ids if len(ids) > 1 else ids[0]
        for name in ("bos", "pad"):
            key = "padding" if name == "pad" else name
            place = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            config[f"{name}_token_id"] = None if place is None else int(place)
        config["torch_dtype"] = dtype
        _require_space(file, folder.parent, dtype)
        _write_json(draft / "config.json", config)
        _write_json(draft / "tokenizer.json", content)
        _write_json(draft / "tokenizer_config.json", settings)
        size = _write_weights(file, draft, dtype)
        _try_out(draft, source)
        return Imported(
            folder=folder, architecture=architectures.architecture_of(file), bytes=size,
            parameters=sum(info.elements for info in file.tensors.values()),
            formats=tuple(sorted({info.format for info in file.tensors.values()})),
        )  # fmt: skip


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A draft folder that is renamed to `folder` on success and removed on error."""
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
        shutil.rmtree(draft, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), "utf-8", "surrogateescape")


def _require_space(file: GgufFile, place: Path, dtype: Dtype) -> None:
    needed = sum(info.elements for info in file.tensors.values()) * (4 if dtype == "float32" else 2)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed * 1.02:
        raise ModelError(
            f"{place} has {free / 1e9:.1f} GB free, but the model takes {needed / 1e9:.1f} GB as "
            f"{dtype}; free some space or use --dtype float16"
        )


def _write_weights(file: GgufFile, draft: Path, dtype: Dtype) -> int:
    """Write the weights in shards of at most `SHARD_BYTES`, one in memory at a time."""
    names = architectures.weight_names(file)
    width = 4 if dtype == "float32" else 2
    shards: list[list[str]] = [[]]
    held = 0
    for name in names:
        size = file.tensors[name].elements * width
        if held and held + size > SHARD_BYTES:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    index: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        title = "model" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}"
        arrays = {
            names[name]: mx.array(architectures.weight(file, name)).astype(getattr(mx, dtype))
            for name in shard
        }
        mx.save_safetensors(str(draft / f"{title}.safetensors"), arrays, {"format": "mlx"})
        index |= dict.fromkeys(arrays, f"{title}.safetensors")
        total += sum(int(array.nbytes) for array in arrays.values())
    _write_json(
        draft / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))},
    )
    return total


def _try_out(folder: Path, source: Path) -> None:
    """Open the folder as mlx-lm does and run a few tokens."""
    from mlx_lm.utils import load_model, load_tokenizer

    try:
        model, config = load_model(folder, lazy=True)
        tokenizer = load_tokenizer(folder)
        ids = tokenizer.encode("1 + 1 =", add_special_tokens=False)[:4] or [0]
        finite = mx.isfinite(model(mx.array([ids]))).all().item()
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"{source} does not give a working model: {error}") from error
    if not finite or max(ids) >= config["vocab_size"]:
        raise ModelError(f"the weights in {source} are damaged: the model gives no finite numbers")

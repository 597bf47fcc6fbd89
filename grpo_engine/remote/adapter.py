"""A downloaded PEFT adapter as a folder of mlx-lm's.

base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight [r, in]  -> ….lora_a [in, r]
base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight [out, r] -> ….lora_b [r, out]
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from grpo_engine.errors import ModelError, quoted
from grpo_engine.paths import irregular_file

NAME: Final = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
LAYER: Final = re.compile(r"(?:.*\.)?layers\.\d+\.(.+)")
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

Write = Callable[[Path], None]


def write_nothing(_folder: Path) -> None:
    """Leave a checkpoint without an adapter."""


def converted(folder: Path, model: str) -> Write:
    """What writes a PEFT adapter as mlx-lm's, or an error that says why it cannot be read."""
    if problem := irregular_file(folder):
        raise ModelError(f"the downloaded adapter is unusable: {problem}")
    files = sorted(folder.rglob(WEIGHTS))
    if not files:
        raise ModelError(f"the downloaded adapter has no {WEIGHTS}")
    try:
        settings = json.loads(files[0].with_name(CONFIG).read_text(encoding="utf-8"))
        rank, alpha = int(settings["r"]), float(settings["lora_alpha"])
        arrays: dict[str, mx.array] = mx.load(str(files[0]))  # type: ignore[assignment]
        mx.eval(arrays)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ModelError(f"the downloaded adapter cannot be read ({error})") from error
    if rank < 1 or settings.get("use_dora") or settings.get("use_rslora"):
        raise ModelError("the downloaded adapter is not plain LoRA")
    weights, keys = _weights(arrays, rank)
    described = {
        "model": model,
        "fine_tune_type": "lora",
        "num_layers": -1,
        "lora_parameters": {
            "rank": rank,
            "scale": alpha / rank,
            "dropout": 0.0,
            "keys": sorted(keys),
        },
    }
    return partial(_write, weights, described)


def _weights(arrays: Mapping[str, mx.array], rank: int) -> tuple[dict[str, mx.array], set[str]]:
    """The matrices by mlx-lm's names, and the paths within a layer of what they adapt."""
    weights, keys = {}, set()
    for name, array in arrays.items():
        match = NAME.fullmatch(name)
        layer = LAYER.fullmatch(match[1]) if match else None
        if match is None or layer is None:
            raise ModelError(f"the downloaded adapter has {quoted(name)}, which is no layer's LoRA")
        if array.ndim != 2 or array.shape[0 if match[2] == "A" else 1] != rank:
            raise ModelError(
                f"the downloaded adapter's {quoted(name)} is {array.shape}, of rank {rank}"
            )
        keys.add(layer[1])
        weights[f"{match[1]}.lora_{match[2].lower()}"] = array.T.astype(mx.float32)
    return weights, keys


def _write(weights: Mapping[str, mx.array], described: Mapping[str, Any], folder: Path) -> None:
    mx.save_safetensors(
        str(folder / "adapters.safetensors"), dict(weights), metadata={"format": "mlx"}
    )
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=4, sort_keys=True))

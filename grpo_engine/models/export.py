"""Writes a trained model for other programs, reopens what was written, and compares the two.

The weights are put together in float32 and rounded once, at the end.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.utils import load_model, load_tokenizer

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.frozen import frozen
from grpo_engine.models.folders import (
    appearing,
    read_json,
    require_space,
    write_json,
    write_weights,
)
from grpo_engine.models.from_gguf import import_gguf
from grpo_engine.models.gguf.writer import write_gguf
from grpo_engine.policy import adapters
from grpo_engine.policy.source import load_parts, rotary_settings
from grpo_engine.policy.trees import flatten, nest

Target = Literal["mlx", "hf", "peft", "gguf"]
Format = Literal["float32", "float16", "bfloat16", "q8_0"]
TARGETS: Mapping[Target, tuple[Format, ...]] = {
    "mlx": ("float32", "float16", "bfloat16"),
    "hf": ("float32", "float16", "bfloat16"),
    "peft": ("float32",),
    "gguf": ("float32", "float16", "q8_0"),
}
# The mean difference of log-probabilities, in nats, that rounding to a format may cause.
BOUNDS: Mapping[Format, float] = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 5e-2, "q8_0": 0.1}
TEXTS = (
    "The quick brown fox jumps over the lazy dog. ",
    "Question: what is 12 + 30? Answer: 42\n",
    "def add(a, b):\n    return a + b\n",
)
PEFT_FILE = "adapter_model.safetensors"


@frozen
class Exported:
    """Result of an export; `difference` is the mean over the tokens of some texts, in nats."""

    folder: Path
    bytes: int
    difference: float


def export(
    config: ModelConfig, folder: Path, to: Target, format_: Format, card: str = ""
) -> Exported:
    """Write the model of `config`, with its adapter, to a folder that must not exist.

    `card` becomes its README.md.
    """
    if format_ not in TARGETS[to]:
        raise ModelError(f"{to} is written as {', '.join(TARGETS[to])}, not as {format_}")
    in_float32 = config.model_copy(update={"dtype": "float32", "quantized": "dequantize"})
    model, tokenizer, _, base, _ = load_parts(in_float32)
    adapter = adapters.attach(model, in_float32, seed=0)
    model.eval()
    ids = [tokenizer.encode(text)[:128] for text in TEXTS]
    expected = _logprobs(model, ids)
    with appearing(folder) as draft:
        if to == "peft":
            _write_peft(draft, model, adapter, config)
            reopened = _opened_peft(draft, in_float32)
        else:
            adapters.fuse(model)
            weights = flatten(model.parameters())
            if to == "gguf":
                reopened = _write_gguf(draft, base, weights, format_, folder.name, ids, tokenizer)
            else:
                reopened = _write_folder(draft, base, weights, to, format_)
        # Computed in float32, to compare the stored weights and not 16-bit arithmetic.
        reopened.set_dtype(mx.float32)
        difference = float(np.mean(np.abs(_logprobs(reopened, ids) - expected)))
        if not difference <= BOUNDS[format_]:
            raise ModelError(
                f"the exported model differs from the trained one by {difference:.2g} nats a "
                f"token, more than the {BOUNDS[format_]:g} that {format_} explains; nothing was "
                "written"
            )
        if card:
            (draft / "README.md").write_text(card, encoding="utf-8")
        size = sum(file.stat().st_size for file in draft.iterdir())
    return Exported(folder=folder, bytes=size, difference=difference)


def _logprobs(model: nn.Module, ids: Sequence[Sequence[int]]) -> "np.ndarray[Any, Any]":
    """The log-probability of each token of some texts, given those before it."""
    texts = []
    for row in ids:
        tokens = mx.array([row])
        losses = nn.losses.cross_entropy(model(tokens[:, :-1]).astype(mx.float32), tokens[:, 1:])
        texts.append(-np.array(losses).ravel())
    return np.concatenate(texts)


# -- a model folder, for MLX and for transformers ------------------------------------------------


def _write_folder(
    draft: Path, base: Path, weights: Mapping[str, mx.array], to: Target, dtype: Any
) -> nn.Module:
    if to == "hf":
        _require_hub_names(base, weights)
    _copy_settings(base, draft, dtype)
    require_space(draft, sum(value.size for value in weights.values()), dtype)
    write_weights(draft, {name: a.astype(getattr(mx, dtype)) for name, a in weights.items()})
    load_tokenizer(draft)
    return _opened(draft)


def _opened(folder: Path) -> nn.Module:
    model: nn.Module = load_model(folder)[0]
    return model


def _copy_settings(base: Path, draft: Path, dtype: str) -> None:
    """Tokenizer and settings as they are, without the quantisation that is gone."""
    for file in sorted(base.iterdir()):
        if file.is_file() and adapters.belongs(file.name) and file.name != "README.md":
            shutil.copyfile(file, draft / file.name)
    settings = read_json(base / "config.json")
    for name in ("quantization", "quantization_config", "dtype"):
        settings.pop(name, None)
    settings |= rotary_settings(settings) | {"torch_dtype": dtype}
    write_json(draft / "config.json", settings)


def _require_hub_names(base: Path, weights: Mapping[str, mx.array]) -> None:
    """Refuse a model whose weights mlx-lm renames: transformers would not find them."""
    stored: set[str] = set()
    for file in base.glob("*.safetensors"):
        arrays: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]  # a file of arrays
        stored |= arrays.keys()
    unknown = sorted(weights.keys() - stored)
    if unknown:
        raise ModelError(
            f"mlx-lm renames the weights of this model ({unknown[0]}), so transformers could not "
            "open them; export it as mlx, or as peft"
        )


# -- GGUF ----------------------------------------------------------------------------------------


def _write_gguf(
    draft: Path,
    base: Path,
    weights: Mapping[str, mx.array],
    precision: Any,
    name: str,
    ids: Sequence[Sequence[int]],
    tokenizer: Any,
) -> nn.Module:
    file = draft / f"{name}.gguf"
    write_gguf(base, file, weights, precision, name)
    with tempfile.TemporaryDirectory(dir=draft.parent, prefix=".reopened-") as temporary:
        imported = Path(temporary) / "model"
        import_gguf(file, imported)
        model = _opened(imported)
        mx.eval(model.parameters())
        reopened = load_tokenizer(imported)
        for text, row in zip(TEXTS, ids, strict=True):
            if reopened.encode(text)[:128] != row:
                raise ModelError(
                    f"the tokenizer in the GGUF file splits {text!r} differently from the model's "
                    f"own ({tokenizer.name_or_path}); it cannot be written as GGUF"
                )
    return model


# -- peft ----------------------------------------------------------------------------------------


def _write_peft(
    draft: Path, model: nn.Module, adapter: Mapping[str, Any], config: ModelConfig
) -> None:
    """Write the adapter as peft has it: lora_A [r, in] and lora_B [out, r] of each layer."""
    tuning = adapter["fine_tune_type"]
    if tuning == "full":
        raise ModelError("this run trained all weights and has no adapter; export it as hf")
    settings = adapter["lora_parameters"]
    arrays: dict[str, mx.array] = {}
    layers: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, adapters.ADAPTED):
            continue
        prefix = f"base_model.model.{name}"
        arrays[f"{prefix}.lora_A.weight"] = module.lora_a.T
        arrays[f"{prefix}.lora_B.weight"] = module.lora_b.T
        if tuning == "dora":
            arrays[f"{prefix}.lora_magnitude_vector"] = module.m
        layers.add(int(name.split("layers.")[1].split(".")[0]))
    mx.save_safetensors(str(draft / PEFT_FILE), arrays, {"format": "pt"})
    every = len(layers) == len(model.layers)
    write_json(
        draft / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "inference_mode": True,
            "bias": "none",
            "base_model_name_or_path": config.path,
            "r": settings["rank"],
            "lora_alpha": settings["scale"] * settings["rank"],
            "lora_dropout": 0.0,
            "use_dora": tuning == "dora",
            "fan_in_fan_out": False,
            "target_modules": sorted(settings["keys"]),
            "layers_to_transform": None if every else sorted(layers),
            "layers_pattern": None if every else "layers",
        },
    )


def _opened_peft(draft: Path, config: ModelConfig) -> nn.Module:
    """The base model with the written adapter added to its weights: W + alpha / r * B A."""
    model, *_ = load_parts(config.model_copy(update={"adapter": None}))
    settings = read_json(draft / "adapter_config.json")
    arrays: dict[str, mx.array] = mx.load(str(draft / PEFT_FILE))  # type: ignore[assignment]  # a file of arrays
    scale = settings["lora_alpha"] / settings["r"]
    weights = flatten(model.parameters())
    changed: dict[str, mx.array] = {}
    for name, low in arrays.items():
        stem = name.removesuffix(".lora_A.weight")
        if stem == name:
            continue
        target = f"{stem.removeprefix('base_model.model.')}.weight"
        weight = weights[target] + scale * arrays[f"{stem}.lora_B.weight"] @ low
        if settings["use_dora"]:
            size = arrays[f"{stem}.lora_magnitude_vector"]
            weight = weight * (size / mx.linalg.norm(weight, axis=1))[:, None]
        changed[target] = weight
    model.update(nest(changed))
    return model

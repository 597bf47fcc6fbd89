"""LoRA and DoRA adapters: attach, switch off, fuse, and save in mlx-lm's format."""

import hashlib
import inspect
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.dora import DoRAEmbedding, DoRALinear
from mlx_lm.tuner.lora import LoRAEmbedding, LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import save_model

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.paths import irregular_file
from grpo_engine.platform.faults import raise_fault
from grpo_engine.policy import lora
from grpo_engine.policy.source import quantised_layers
from grpo_engine.policy.trees import flatten, nest

ADAPTED = (LoRALinear, DoRALinear, LoRASwitchLinear, LoRAEmbedding, DoRAEmbedding)
LINEAR = (nn.Linear, nn.QuantizedLinear, SwitchLinear, QuantizedSwitchLinear)


def attach(model: nn.Module, config: ModelConfig, seed: int) -> dict[str, Any]:
    """Select what is trained; return the adapter's configuration in mlx-lm's format."""
    model.freeze()
    if config.adapter is not None:
        return _attach_saved(model, config, Path(config.adapter))
    depth = len(model.layers)
    if config.lora_layers > depth:
        raise ModelError(
            f"model.lora_layers is {config.lora_layers}, but the model has {depth} layers; "
            "use -1 for all",
            "model.lora_layers",
        )
    if config.tuning == "full":
        _require_floats(model)
        model.unfreeze()
        return {"fine_tune_type": "full", "num_layers": config.lora_layers}
    keys = _resolve_keys(model, config.lora_keys)
    settings: dict[str, Any] = {
        "rank": config.lora_rank,
        "scale": config.lora_scale,
        "dropout": 0.0,
        "keys": keys,
    }
    try:
        linear_to_lora_layers(model, config.lora_layers, settings, config.tuning == "dora")
    except ValueError as error:
        raise ModelError(
            f"model.tuning {config.tuning} does not fit this model: {error}", "model.tuning"
        ) from error
    _initialise(model, seed)
    lora.install(model)
    return {
        "fine_tune_type": config.tuning,
        "num_layers": config.lora_layers,
        "lora_parameters": settings,
    }


def _attach_saved(model: nn.Module, config: ModelConfig, folder: Path) -> dict[str, Any]:
    """Attach a saved adapter with its own rank, scale and layers."""
    if problem := irregular_file(folder):
        raise ModelError(f"model.adapter {folder}: {problem}", "model.adapter")
    try:
        saved: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.adapter {folder} has no readable adapter_config.json ({error}); "
            "give a folder that mlx-lm or grpo-tui wrote",
            "model.adapter",
        ) from error
    tuning = saved.get("fine_tune_type", "lora")
    if tuning != config.tuning:
        raise ModelError(
            f"model.adapter {folder} is of type {tuning}, but model.tuning is {config.tuning}; "
            f"set model.tuning to {tuning}",
            "model.adapter",
        )
    formats = {name: value.dtype for name, value in flatten(model.parameters()).items()}
    try:
        load_adapters(model, str(folder))
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise_fault(error)
        raise ModelError(
            f"model.adapter {folder} does not fit the model: {error}", "model.adapter"
        ) from error
    if tuning == "full":
        model.unfreeze()
    lora.install(model)
    # full weights keep the model's format; adapters are float32, so that small steps count
    model.update(
        nest(
            {
                name: value.astype(formats.get(name, mx.float32))
                for name, value in flatten(model.trainable_parameters()).items()
            }
        )
    )
    names = ("num_layers", "lora_parameters")
    return {"fine_tune_type": tuning, **{name: saved[name] for name in names if name in saved}}


def _require_floats(model: nn.Module) -> None:
    if names := quantised_layers(model):
        raise ModelError(
            f"model.tuning full cannot train quantised weights ({names[0]} and "
            f"{len(names) - 1} more); set model.quantized to dequantize, or model.tuning to lora",
            "model.tuning",
        )


def _resolve_keys(model: nn.Module, requested: tuple[str, ...]) -> list[str]:
    """Resolve names such as `q_proj` to paths within a layer; no names means all linear layers."""
    read = _weights_read(model)
    names = {
        path: path.rpartition(".")[2]
        for layer in model.layers
        for path, module in layer.named_modules()
        # mlx-lm does not open adapters of layers with a LoRA of their own (afm7)
        if isinstance(module, LINEAR) and path not in read and not hasattr(module, "to_lora")
    }
    if missing := [name for name in requested if name not in {*names, *names.values()}]:
        raise ModelError(
            f"model.lora_keys names {', '.join(missing)}, which the model does not have; "
            f"it has {', '.join(sorted(set(names.values())))}",
            "model.lora_keys",
        )
    if not names:
        raise ModelError(
            "this model has no linear layers that LoRA could adapt; set model.tuning to full",
            "model.tuning",
        )
    return sorted(
        path for path, name in names.items() if not requested or {path, name} & set(requested)
    )


def _weights_read(model: nn.Module) -> set[str]:
    """Paths within a layer of modules whose weights the model's code reads, so none may be LoRA."""
    return {
        f"{path}.{name}".lstrip(".")
        for layer in model.layers
        for path, module in layer.named_modules()
        for name in _weights_read_by(type(module))  # type: ignore[arg-type]
    }


@cache
def _weights_read_by(kind: type) -> list[str]:
    return re.findall(r"self\.(\w+)\.weight\b", inspect.getsource(kind))


def _initialise(model: nn.Module, seed: int) -> None:
    """Draw each A from its own key, so that layers, ranks and machines agree."""
    matrices: dict[str, mx.array] = {}
    for name, layer in _adapted(model).items():
        shape = layer.lora_a.shape
        bound = 1 / shape[-1 if len(shape) == 3 else 0] ** 0.5
        digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
        key = mx.random.key(int.from_bytes(digest, "big"))
        matrices[f"{name}.lora_a"] = mx.random.uniform(-bound, bound, shape, key=key)
    model.update(nest(matrices))


def _adapted(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, ADAPTED)}


@contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Run the base model: as LoRA at scale 0, without computing the adapter."""
    layers = _adapted(model)
    base = {name: layer.get("linear", layer.get("embedding")) for name, layer in layers.items()}
    model.update_modules(nest(base))
    try:
        yield
    finally:
        model.update_modules(nest(layers))


def fuse(model: nn.Module) -> None:
    """Add every adapter to the weights that it adapts, for good."""
    model.update_modules(nest({name: layer.fuse() for name, layer in _adapted(model).items()}))
    mx.eval(model.parameters())


def save(
    model: nn.Module,
    base: Path,
    source: str,
    adapter: Mapping[str, Any],
    folder: Path,
    weights: Mapping[str, mx.array] | None = None,
) -> None:
    """Write an adapter folder; for full fine-tuning a complete model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if adapter["fine_tune_type"] == "full":
        save_model(folder, model)
        for file in sorted(base.iterdir()):
            if file.is_file() and belongs(file.name):
                shutil.copyfile(file, folder / file.name)
        return
    arrays = dict(weights) if weights is not None else flatten(model.trainable_parameters())
    mx.save_safetensors(str(folder / "adapters.safetensors"), arrays, metadata={"format": "mlx"})
    written = {"model": source, **adapter}
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=4, sort_keys=True))


def belongs(name: str) -> bool:
    """Whether a file of a model folder is copied unchanged: neither weights nor a run's state."""
    is_state = name == "state.json" or name.endswith(".safetensors.index.json")
    return not is_state and name.endswith((".json", ".jinja", ".txt", ".model", ".tiktoken"))

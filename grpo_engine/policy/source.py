"""Finds and loads models: the embedded starter, a folder, or a hub id."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import load_model, load_tokenizer

from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ModelError
from grpo_engine.platform.formats import STORED, auto_format
from grpo_engine.policy.trees import nest

STARTER = Path(__file__).parents[1] / "models" / "starter" / "model"
FILES = (
    "*.json", "*.safetensors", "*.py", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja",
)  # fmt: skip


def find_folder(path: str) -> Path:
    """The folder of `starter`, of a path, or of a hub id, downloaded if not cached."""
    if path == "starter":
        return STARTER
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if folder.suffix == ".gguf":
        raise ModelError(
            f"model.path {path} is a GGUF file; make a model folder of it with "
            f"`grpo-tui models import {path}`"
        )
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ModelError(
            f"model.path {path} is no folder; give `starter`, a model folder, or a hub id "
            "such as mlx-community/Qwen3-0.6B-4bit"
        )
    return _fetch(path)


def _fetch(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(repository, allow_patterns=list(FILES), local_files_only=True)
        )
    except (LocalEntryNotFoundError, HFValidationError, FileNotFoundError):
        pass
    try:
        return Path(snapshot_download(repository, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(
            f"model.path {repository} is neither a folder here nor in the Hugging Face cache, and "
            f"could not be fetched: {_first_line(error)}"
        ) from error


def load_parts(
    config: ModelConfig, *, lazy: bool = False
) -> tuple[nn.Module, Any, dict[str, Any], Path, list[str]]:
    """Load model, tokenizer, configuration, folder and notes; apply dtype and quantisation."""
    folder = find_folder(config.path)
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path {folder} has no config.json, so it is no model folder")
    trust = config.trust_remote_code
    try:
        model, settings = load_model(folder, lazy=True, trust_remote_code=trust)
        tokenizer = load_tokenizer(
            folder, {"trust_remote_code": trust}, eos_token_ids=settings.get("eos_token_id")
        )
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelError(f"the model in {folder} cannot be loaded: {_first_line(error)}") from error
    notes = _settle_quantisation(model, config)
    notes += _settle_dtype(model, config)
    if lazy:
        return model, tokenizer, settings, folder, notes
    try:
        mx.eval(model.parameters())
    except RuntimeError as error:
        raise ModelError(f"the weights in {folder} are damaged: {_first_line(error)}") from error
    return model, tokenizer, settings, folder, notes


def on_cpu() -> bool:
    """Whether MLX's default device is the CPU."""
    return bool(mx.default_device() == mx.cpu)


def _settle_quantisation(model: nn.Module, config: ModelConfig) -> list[str]:
    packed = [
        (name, module) for name, module in model.named_modules()
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding | QuantizedSwitchLinear)
    ]  # fmt: skip
    wanted = config.quantized == "dequantize" or (config.quantized == "auto" and on_cpu())
    if not packed or not wanted:
        return []
    model.update_modules(nest({name: _dequantised(m) for name, m in packed}))
    return [f"{len(packed)} quantised layers were dequantised, which is faster on this device"]


def _dequantised(module: Any) -> nn.Module:
    """The same layer with plain weights."""
    weight = mx.dequantize(
        module.weight, module.scales, module.get("biases"),
        group_size=module.group_size, bits=module.bits, mode=module.mode,
    )  # fmt: skip
    plain: nn.Module
    if isinstance(module, nn.QuantizedEmbedding):
        plain = nn.Embedding(1, 1)
    elif isinstance(module, QuantizedSwitchLinear):
        plain = SwitchLinear(1, 1, 1, bias="bias" in module)
    else:
        plain = nn.Linear(1, 1, bias="bias" in module)
    plain.weight = weight
    if "bias" in module:
        plain.bias = module.bias
    return plain


def _settle_dtype(model: nn.Module, config: ModelConfig) -> list[str]:
    wanted = auto_format(on_gpu=not on_cpu()) if config.dtype == "auto" else config.dtype
    if wanted == STORED:
        return []
    model.set_dtype(getattr(mx, wanted))
    if wanted != "float32" and on_cpu():
        return [f"model.dtype {wanted} is slow on this device; float32 is many times faster"]
    return []


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]

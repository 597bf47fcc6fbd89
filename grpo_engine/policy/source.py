"""Finds and loads models: the embedded starter, a folder, or a hub id."""

import hashlib
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from threading import get_ident
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import dequantize_model, load_model

from grpo_engine.config.safe_json import read_text
from grpo_engine.config.settings import ModelConfig
from grpo_engine.errors import ConfigError, ModelError, NotFetchedError, quoted
from grpo_engine.platform import kernels
from grpo_engine.platform.faults import raise_fault
from grpo_engine.platform.formats import STORED, auto_format
from grpo_engine.platform.library_logs import escape_library_logs
from grpo_engine.policy.embedded import EMBEDDED, local_folder
from grpo_engine.policy.repairs import repair
from grpo_engine.policy.tokenizer import load_tokenizer
from grpo_engine.policy.trees import flatten

# The largest numbers of a model's config.json, far above any that fits a machine.
LIMITS = {
    "num_hidden_layers": 500,
    "hidden_size": 1_000_000,
    "intermediate_size": 10_000_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "vocab_size": 10_000_000,
    "head_dim": 1_000_000,
    "num_experts": 10_000,
    "num_local_experts": 10_000,
    "n_routed_experts": 10_000,
    "num_vocab": 10_000_000,
}
POSITIVE = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "norm_epsilon",
    "rope_theta",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
)
FAULTS = {  # why models of mlx-lm do not train
    "bitnet": "its layers are a Metal kernel without a gradient",
    "deepseek_v41": "its attention has no gradient",
    "muse_spark": "its layers are Metal kernels without a gradient",
    "phi3small": "its backward pass ends the program",
    "prism_hadamard_qwen35": "its packed layers take no adapter",
}
STARTER = EMBEDDED["starter"]
WEIGHTS = "*.safetensors"
FILES = ("*.json", WEIGHTS, "*.py", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja")

PIECES, PIECE_BYTES = 64, 1 << 16  # a fingerprint reads so much of a large file


def fingerprint(folder: Path) -> str:
    """A digest of a model's files: small ones whole, 64 even pieces of the others.

    It notices another model, or a folder that was cut or written to, in milliseconds.
    """
    digest = hashlib.sha256()
    for file in sorted(path for pattern in FILES for path in folder.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            for number in range(PIECES if size > PIECES * PIECE_BYTES else 1):
                stream.seek(number * (size - PIECE_BYTES) // (PIECES - 1) if number else 0)
                digest.update(stream.read(PIECE_BYTES if size > PIECES * PIECE_BYTES else -1))
    return digest.hexdigest()


def find_folder(path: str, into: Path | None = None, *, with_tokenizer: bool = False) -> Path:
    """The folder of an embedded model, of a path, or of a hub id, downloaded if not cached.

    With `into` only the configuration is downloaded, and the tokenizer if it is needed, to there:
    in the cache they would be taken for the model.
    """
    if local := local_folder(path):
        return local
    folder = Path(path).expanduser()
    if folder.suffix == ".gguf":
        raise ModelError(
            f"model.path {path} is a GGUF file; make a model folder of it with "
            f"`grpo-tui models import {path}`"
        )
    if folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1:
        raise ModelError(
            f"model.path {path} is no folder; give {', '.join(EMBEDDED)}, a model folder, "
            "or a hub id such as mlx-community/Qwen3-0.6B-4bit"
        )
    few = tuple(name for name in FILES if name != WEIGHTS) if with_tokenizer else ("config.json",)
    return _fetch(path, into, FILES if into is None else few)


def _fetch(repository: str, into: Path | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    few = list(patterns)
    with suppress(HFValidationError, OSError):
        return Path(snapshot_download(repository, allow_patterns=few, local_files_only=True))
    try:
        return Path(snapshot_download(repository, allow_patterns=few, local_dir=into))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise NotFetchedError(
            f"model.path {repository} is neither a folder here nor in the Hugging Face cache, and "
            f"could not be fetched: {first_line(error)}"
        ) from error


def load_parts(
    config: ModelConfig, *, lazy: bool = False
) -> tuple[nn.Module, Any, dict[str, Any], Path, list[str]]:
    """Load model, tokenizer, configuration, folder and notes; apply dtype and quantisation."""
    kernels.prepare()  # again: a script may have changed TMPDIR
    folder = find_folder(config.path)
    if not (folder / "config.json").is_file():
        raise ModelError(f"model.path {folder} has no config.json, so it is no model folder")
    check_config(folder)
    escape_library_logs()
    trust = config.trust_remote_code
    with opening(str(folder)):
        rotary = rotary_settings(json.loads(read_text(folder / "config.json")))
        model, settings = load_model(
            folder, lazy=True, model_config=rotary, trust_remote_code=trust
        )
        repair(model)
        end_ids = settings.get("eos_token_id")
        tokenizer = load_tokenizer(folder, trust=trust, end_ids=end_ids)
    notes = dequantise(model, config) + set_dtype(model, config)
    if lazy:
        return model, tokenizer, settings, folder, notes
    try:
        mx.eval(model.parameters())
    except RuntimeError as error:
        raise_fault(error)
        raise ModelError(f"the weights in {folder} are damaged: {first_line(error)}") from error
    _check_finite(model, folder)
    return model, tokenizer, settings, folder, notes


class PrintedHere(io.StringIO):
    """Collects what this thread prints; other threads print as before."""

    def __init__(self) -> None:
        super().__init__()
        self._thread, self._others = get_ident(), sys.stdout

    def write(self, text: str) -> int:
        return super().write(text) if get_ident() == self._thread else self._others.write(text)

    def flush(self) -> None:
        self._others.flush()

    def isatty(self) -> bool:
        return self._others.isatty()


@contextmanager
def opening(path: str) -> Iterator[None]:
    """Raise whatever goes wrong within mlx-lm as an error about the model."""
    printed = PrintedHere()
    try:
        with redirect_stdout(printed):  # mlx-lm prints which package a model needs, and exits
            yield
    except SystemExit as error:
        raise ModelError(
            f"the model in {path} cannot be loaded: {printed.getvalue().strip()}", "model.path"
        ) from error
    except ModelError:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        raise_fault(error)
        raise ModelError(
            f"the model in {path} cannot be loaded: {first_line(error)}", "model.path"
        ) from error


def check_config(folder: Path) -> None:
    """Refuse a configuration whose model could not be built or computed; mlx-lm would try."""
    try:
        text = read_text(folder / "config.json")
        settings = json.loads(text)
    except (ConfigError, ValueError, RecursionError) as error:
        raise ModelError(f"{folder / 'config.json'} cannot be read: {error}") from error
    sections = [settings] if isinstance(settings, dict) else []
    if sections and (fault := FAULTS.get(kind := str(settings.get("model_type")))):
        raise ModelError(
            f"mlx-lm's model {kind} does not train: {fault}; choose another model", "model.path"
        )
    while sections:
        section = sections.pop()
        sections += [value for value in section.values() if isinstance(value, dict)]
        for name, value in section.items():
            items = value if isinstance(value, list) else [value]
            if problem := next(filter(None, (_value_problem(name, item) for item in items)), ""):
                raise ModelError(
                    f"model.path: {folder / 'config.json'}: {name} is {quoted(value)}; {problem}",
                    "model.path",
                )


def rotary_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What most of mlx-lm's models read of `rope_parameters`, as which transformers 5 writes it.

    Without these they would silently take their own `rope_theta`, and no scaling.
    """
    result: dict[str, Any] = {}
    text = settings.get("text_config")
    if isinstance(text, dict) and (changes := rotary_settings(text)):
        result["text_config"] = text | changes
    parameters = settings.get("rope_parameters")
    if not isinstance(parameters, dict):
        return result
    values = {name: parameters.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    if parameters.get("rope_type", "default") != "default":
        values["rope_scaling"] = parameters
    return result | {
        name: value
        for name, value in values.items()
        if value is not None and settings.get(name) is None
    }


def _value_problem(name: str, value: Any) -> str:
    if not isinstance(value, int | float):
        is_number = name in LIMITS or name in POSITIVE
        return "it must be a number" if is_number and value not in (None, {}) else ""
    limit, fewest = LIMITS.get(name), 0 if "experts" in name else 1  # dense models have 0 experts
    if limit is not None and not (fewest <= value <= limit and value == int(value)):
        return f"models have {fewest} to {limit}"
    minimum = 0.0 if "eps" in name else math.ulp(0.0)
    if name in POSITIVE and not minimum <= value < math.inf:
        return "it must be a positive number"
    return ""


def _check_finite(model: nn.Module, folder: Path) -> None:
    """Refuse weights that hold NaN or infinity: every probability would be NaN."""
    floats = {
        name: array
        for name, array in flatten(model.parameters()).items()
        if mx.issubdtype(array.dtype, mx.floating)
    }
    finite = [mx.isfinite(array).all() for array in floats.values()]
    mx.eval(finite)
    bad = [name for name, is_finite in zip(floats, finite, strict=True) if not is_finite.item()]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise ModelError(
            f"the weights in {folder} are damaged: {bad[0]}{more} hold NaN or infinite numbers; "
            "get the model again"
        )


def on_cpu() -> bool:
    """Whether MLX's default device is the CPU."""
    return bool(mx.default_device() == mx.cpu)


def quantised_layers(model: nn.Module) -> list[str]:
    """The names of the layers with quantised weights."""
    types = (nn.QuantizedLinear, nn.QuantizedEmbedding, QuantizedSwitchLinear)
    return [name for name, module in model.named_modules() if isinstance(module, types)]


def dequantise(model: nn.Module, config: ModelConfig) -> list[str]:
    """Undo a quantisation where the settings or this device want it; return notes."""
    names = quantised_layers(model)
    if not names or config.quantized not in ("dequantize", "auto" if on_cpu() else ""):
        return []
    dequantize_model(model)
    return [f"{len(names)} quantised layers were dequantised, which is faster on this device"]


def set_dtype(model: nn.Module, config: ModelConfig) -> list[str]:
    """Give the weights the number format of the settings; return notes."""
    dtype = auto_format(on_gpu=not on_cpu()) if config.dtype == "auto" else config.dtype
    if dtype == STORED:
        return []
    model.set_dtype(getattr(mx, dtype))
    if dtype != "float32" and on_cpu():
        if any(isinstance(module, SwitchLinear) for module in model.modules()):
            raise ModelError(
                f"mlx-lm's model {model.model_type} does not train here: its experts' products "
                "are in float32 on this device; set model.dtype to float32",
                "model.dtype",
            )
        return [f"model.dtype {dtype} is slow on this device; float32 is many times faster"]
    return []


def first_line(error: BaseException) -> str:
    """An error of a library, in one line."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]

"""Describes a policy from a model's config.json alone, without its weights."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.utils import _get_classes, load_config

from grpo_engine.config.settings import ModelConfig
from grpo_engine.cpu.kernels import Kernels
from grpo_engine.policy import adapters, compute, gated_delta
from grpo_engine.policy.caches import empty_prefixes
from grpo_engine.policy.load import context_length, main_dtype, number
from grpo_engine.policy.memory import HEAD_NAMES, KV_HEAD_NAMES
from grpo_engine.policy.policy import Policy, Trained
from grpo_engine.policy.repairs import repair
from grpo_engine.policy.source import (
    check_config,
    dequantise,
    find_folder,
    opening,
    quantised_layers,
    rotary_settings,
    set_dtype,
)
from grpo_engine.policy.structure import UNKNOWN, structure

# Models whose rows do not share the states of a prompt.
UNSHARED = (
    *("afm7", "bailing_moe_linear", "jamba", "mamba"),
    *("nemotron_h", "olmo_hybrid", "recurrent_gemma", "rwkv7"),
)


def describe(config: ModelConfig) -> Policy:
    """A policy whose weights are never computed: it has sizes, and cannot be run."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = find_folder(config.path, into=Path(scratch))
        check_config(folder)
        with opening(config.path):
            settings = load_config(folder)
            settings |= rotary_settings(settings)
            model = _build(settings)
    notes = dequantise(model, config) + set_dtype(model, config)
    return without_weights(model, config, settings, folder, notes)


def without_weights(
    model: nn.Module,
    config: ModelConfig,
    settings: Mapping[str, Any],
    folder: Path,
    notes: Sequence[str],
    vocabulary: int = 0,
) -> Policy:
    """The policy of a model whose arrays are lazy; a `vocabulary` if its settings name none."""
    # The graph of a file that is not read yet cannot be counted.
    model.update(tree_map(mx.zeros_like, model.parameters()))
    policy = _policy(model, config, settings, folder, notes, vocabulary)
    if not quantised_layers(model):
        policy.kernels = _kernels(policy, settings)
    return policy


def _kernels(policy: Policy, settings: Mapping[str, Any]) -> Kernels | None:
    """The kernels that a run would use, if they serve a small random model of this kind."""
    config = policy.config.model_copy(update={"adapter": None})
    try:
        model = _model(small := _small(settings))
        model.set_dtype(getattr(mx, policy.dtype))
        twin = _policy(model, config, small, policy.folder, ())
    except (*UNKNOWN, ArithmeticError):
        return None
    return compute.kernels_for(twin)


def _small(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a model of the same kind with two layers and two heads of the same width."""
    heads = number(settings, *HEAD_NAMES) or 1
    is_grouped = number(settings, *KV_HEAD_NAMES) not in (0, heads)
    small = dict(settings)
    small |= {"num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 64}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1 if is_grouped else 2}
    small["hidden_size"] = 2 * (number(settings, "hidden_size") // heads)
    if text := settings.get("text_config"):
        small["text_config"] = _small(text)
    return small


def _policy(
    model: nn.Module,
    config: ModelConfig,
    settings: Mapping[str, Any],
    folder: Path,
    notes: Sequence[str],
    vocabulary: int = 0,
) -> Policy:
    gated_delta.install()
    adapter = adapters.attach(model, config, seed=0)
    parts = structure(model)
    shares = parts is not None and settings.get("model_type") not in UNSHARED
    return Policy(
        config=config,
        folder=folder,
        module=Trained(model, None),
        tokenizer=None,
        end_ids=frozenset(),
        pad_id=0,
        context_length=context_length(settings),
        vocabulary=number(settings, "vocab_size", "num_vocab") or vocabulary,
        dtype=main_dtype(model),
        adapter=adapter,
        parts=parts,
        prefix_caches=empty_prefixes(model) if shares else None,
        head_is_trained=False,
        notes=tuple(notes),
    )


def _build(settings: dict[str, Any]) -> nn.Module:
    """The model as its configuration describes it, quantised, in its stored format."""
    model = _model(settings)
    model.set_dtype(_stored_dtype(settings))
    if quantization := settings.get("quantization"):
        _quantise(model, quantization)
    # Each random array depends on all earlier ones, and MLX traces by recursion.
    model.update(tree_map(lambda array: mx.zeros(array.shape, array.dtype), model.parameters()))
    state: Any = mx.random.state
    mx.eval(state[0])
    return model


def _model(settings: dict[str, Any]) -> nn.Module:
    model_class, arguments = _get_classes(settings)
    model: nn.Module = model_class(arguments.from_dict(settings))
    repair(model)
    return model


def _stored_dtype(settings: Mapping[str, Any]) -> mx.Dtype:
    text = settings.get("text_config") or {}
    names = (section.get(key) for section in (settings, text) for key in ("dtype", "torch_dtype"))
    stored = next(filter(None, names), "float32").removeprefix("torch.")
    dtype: mx.Dtype = getattr(mx, stored)
    return dtype


def _quantise(model: nn.Module, settings: Mapping[str, Any]) -> None:
    """Quantise the layers that `mlx_lm.convert` would."""
    predicate = getattr(model, "quant_predicate", None) or (lambda _path, _module: True)

    def of_layer(path: str, module: nn.Module) -> Any:
        if path in settings:
            return settings[path]
        fits = hasattr(module, "to_quantized") and not module["weight"].shape[-1] % group_size
        return fits and predicate(path, module)

    group_size = int(settings["group_size"])
    nn.quantize(
        model,
        group_size,
        int(settings["bits"]),
        mode=settings.get("mode", "affine"),
        class_predicate=of_layer,
    )

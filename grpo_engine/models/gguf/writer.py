"""Writes a model folder of the llama or qwen2 family as one GGUF file, with its tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, RopeScalingType
from gguf.quants import quantize

from grpo_engine.errors import ModelError
from grpo_engine.models.folders import read_json
from grpo_engine.models.gguf import tokenizers
from grpo_engine.models.gguf.architectures import (
    ARCHITECTURES,
    ROPE_FACTORS,
    Floats,
    gguf_name,
    interleaved,
    llama3_factors,
)
from grpo_engine.policy.source import rotary_settings

Precision = Literal["float32", "float16", "q8_0"]
FORMATS: Mapping[Precision, tuple[GGMLQuantizationType, LlamaFileType]] = {
    "float32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "float16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}
BLOCK = 32  # numbers that share a scale in q8_0


def write_gguf(
    folder: Path, file: Path, weights: Mapping[str, mx.array], precision: Precision, name: str
) -> None:
    """Write `weights`, by their names in mlx-lm, with settings and tokenizer of `folder`."""
    config = read_json(folder / "config.json")
    config |= rotary_settings(config)
    architecture = str(config.get("model_type"))
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"models of type {architecture} cannot be written as GGUF; "
            f"{', '.join(ARCHITECTURES)} can"
        )
    unknown = [weight for weight in weights if not gguf_name(weight)]
    if unknown:
        raise ModelError(f"{unknown[0]} has no place in a GGUF file of the type {architecture}")
    writer = GGUFWriter(file, architecture)
    writer.add_name(name)
    writer.add_file_type(FORMATS[precision][1])
    _add_settings(writer, config)
    tokenizers.add(writer, folder, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": _kv_heads(config)}
    for weight, value in weights.items():
        array = np.array(value.astype(mx.float32))
        layer = weight.split(".")[-2]
        if ARCHITECTURES[architecture].permuted and layer in heads:
            array = interleaved(array, heads[layer])
        written = _format(array, precision)
        writer.add_tensor(gguf_name(weight), quantize(array, written), raw_dtype=written)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _format(array: Floats, precision: Precision) -> GGMLQuantizationType:
    """Vectors stay in float32, as do rows that q8_0's blocks do not divide."""
    fits = precision != "q8_0" or array.shape[-1] % BLOCK == 0
    return FORMATS[precision][0] if array.ndim > 1 and fits else GGMLQuantizationType.F32


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def _add_settings(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    size, base = config.get("head_dim") or width // heads, config.get("rope_theta", 10000.0)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(_kv_heads(config))
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(base)
    writer.add_vocab_size(config["vocab_size"])
    scaling = config.get("rope_scaling") or {}
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "linear":
            writer.add_rope_scaling_type(RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(scaling["factor"])
        case "llama3":
            factors = llama3_factors(scaling, base, size)
            writer.add_tensor(ROPE_FACTORS, factors.astype(np.float32))
        case rope_type if rope_type != "default":
            raise ModelError(f"the rope scaling {rope_type!r} cannot be written as GGUF")

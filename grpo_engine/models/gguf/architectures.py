"""Maps the llama family's weights and settings from GGUF names to those of mlx-lm."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from grpo_engine.errors import ModelError, quoted
from grpo_engine.models.gguf.reader import GgufFile

Floats = npt.NDArray[np.float32]


class Architecture(NamedTuple):
    """A value of `general.architecture` that can be imported."""

    model_class: str
    permuted: bool  # rotary halves of q and k are interleaved in the file


ARCHITECTURES: Final = {
    "llama": Architecture("LlamaForCausalLM", permuted=True),
    "qwen2": Architecture("Qwen2ForCausalLM", permuted=False),
    "qwen3": Architecture("Qwen3ForCausalLM", permuted=False),
}
OUTER: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INNER: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
LAYER: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def architecture_of(file: GgufFile) -> str:
    """The file's architecture, if it can be imported."""
    name = str(file.metadata.get("general.architecture", ""))
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file.path} holds a model of the architecture {name or 'unknown'}; "
            f"{', '.join(ARCHITECTURES)} can be imported"
        )
    return name


def weight_names(file: GgufFile) -> dict[str, str]:
    """The mlx-lm name of each tensor in the file."""
    names: dict[str, str] = {}
    for name in file.tensors:
        if name == ROPE_FACTORS:
            continue
        stem, _, leaf = name.rpartition(".")
        inner = LAYER.fullmatch(name)
        if inner and inner[2] in INNER:
            names[name] = f"model.layers.{inner[1]}.{INNER[inner[2]]}.{inner[3]}"
        elif stem in OUTER and leaf in ("weight", "bias"):
            names[name] = f"{OUTER[stem]}.{leaf}"
        else:
            raise ModelError(
                f"{file.path} holds the tensor {name}, which no dense "
                f"{file.metadata['general.architecture']} model has; it cannot be imported"
            )
    return names


def gguf_name(name: str) -> str:
    """A weight's name in a GGUF file; empty if these architectures have no such weight."""
    stem, _, leaf = name.rpartition(".")
    outer, inner = ({name: key for key, name in names.items()} for names in (OUTER, INNER))
    if stem in outer:
        return f"{outer[stem]}.{leaf}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    return f"blk.{match[1]}.{inner[match[2]]}.{leaf}" if match and match[2] in inner else ""


def interleaved(array: Floats, heads: int) -> Floats:
    """The rotary halves of q or k as the llama architecture's files have them: in pairs."""
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def weight(file: GgufFile, name: str) -> Floats:
    """A tensor in mlx-lm's layout, with the rotary halves of q and k de-interleaved."""
    array = file.tensor(name)
    match = LAYER.fullmatch(name)
    permuted = ARCHITECTURES[architecture_of(file)].permuted
    if not (match and permuted and match[2] in ("attn_q", "attn_k")):
        return array
    heads = count(file, "attention.head_count")
    if match[2] == "attn_k":
        heads = count(file, "attention.head_count_kv", heads)
    if array.shape[0] % (2 * heads):
        raise ModelError(f"{file.path} is damaged: {name} has {array.shape[0]} rows, {heads} heads")
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def setting(file: GgufFile, name: str, default: Any = None) -> Any:
    """A setting of the architecture; raise if it is missing and has no default."""
    key = f"{file.metadata['general.architecture']}.{name}"
    value = file.metadata.get(key, default)
    if value is None:
        raise ModelError(f"{file.path} lacks {key}; the file is incomplete")
    return value


def count(file: GgufFile, name: str, default: int | None = None) -> int:
    """A setting that is a whole number from 1."""
    value = setting(file, name, default)
    if type(value) is not int or value < 1:
        raise ModelError(f"{file.path} is damaged: {name} is {quoted(value)}, not a number from 1")
    return value


def model_config(file: GgufFile) -> dict[str, Any]:
    """`config.json` as Hugging Face and mlx-lm read it."""
    architecture = architecture_of(file)
    heads, width = count(file, "attention.head_count"), count(file, "embedding_length")
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path} holds no token_embd.weight; the file is incomplete")
    return {
        "architectures": [ARCHITECTURES[architecture].model_class],
        "model_type": architecture,
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": count(file, "feed_forward_length"),
        "num_hidden_layers": count(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": count(file, "attention.head_count_kv", heads),
        "head_dim": count(file, "attention.key_length", width // heads),
        "max_position_embeddings": count(file, "context_length"),
        "rms_norm_eps": setting(file, "attention.layer_norm_rms_epsilon"),
        "rope_theta": setting(file, "rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(file),
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "vocab_size": file.shape("token_embd.weight")[0],
    }


def rope_scaling(file: GgufFile) -> dict[str, Any] | None:
    """The `rope_scaling` setting; llama 3's factors are stored as a tensor."""
    if ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file)
    rope_type = setting(file, "rope.scaling.type", "none")
    if rope_type == "none":
        return None
    if rope_type != "linear":
        raise ModelError(
            f"{file.path} uses the rope scaling {rope_type!r}, which cannot be imported"
        )
    return {"rope_type": "linear", "factor": setting(file, "rope.scaling.factor")}


def _llama3_scaling(file: GgufFile) -> dict[str, Any]:
    """Find the llama 3 settings that reproduce the file's factors, or raise."""
    factors = file.tensor(ROPE_FACTORS).astype(np.float64)
    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    base = setting(file, "rope.freq_base", 10000.0)
    if not np.allclose(factors, llama3_factors(scaling, base, 2 * len(factors)), rtol=1e-3):
        raise ModelError(f"{file.path} has rotary factors of its own, which cannot be imported")
    return scaling


def llama3_factors(scaling: Mapping[str, Any], base: float, size: int) -> npt.NDArray[np.float64]:
    """Llama 3's factor of each rotary frequency of a head of this size.

    With wavelength w and original length L: 1 below w = L / high, the full factor above L / low,
    and interpolated in between.
    """
    waves = 2 * np.pi * base ** (np.arange(0, size, 2) / size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] / waves
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors: npt.NDArray[np.float64] = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return factors

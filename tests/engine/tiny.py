"""A llama of a few thousand weights with a byte tokenizer, written as a model folder."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.utils import _get_classes

from grpo_engine.policy.trees import flatten

SPECIAL = ("<pad>", "<end>", "<stop>", "<user>", "<assistant>")
VOCABULARY = 256 + len(SPECIAL)
END, STOP = 257, 258
CHAT = (
    "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A configuration in the format of `config.json`."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": [END, STOP],
        **changes,
    }


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of single bytes and a few special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    core.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "pad_token": "<pad>",
        "chat_template": CHAT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(folder: Path, *, seed: int = 3, scale: float = 3.0, **changes: Any) -> Path:
    """Write a random model; `scale` sharpens its predictions."""
    return write_config(folder, tiny_config(**changes), seed=seed, scale=scale)


def write_config(folder: Path, config: dict[str, Any], *, seed: int = 3, scale: float) -> Path:
    """Write a random model of any configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    key = mx.random.key(seed)
    weights = {}
    for name, value in flatten(model.parameters()).items():
        key, own = mx.random.split(key)
        drawn = mx.random.normal(value.shape, key=own) * scale / (value.shape or (1,))[-1] ** 0.5
        weights[name] = 1 + 0.1 * drawn if value.ndim < 2 else drawn
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


MAMBA: dict[str, Any] = {
    "model_type": "mamba",
    "architectures": ["MambaForCausalLM"],
    "state_size": 4,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
    "expand": 2,
}
GEMMA2: dict[str, Any] = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "head_dim": 8,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 5.0,
    "query_pre_attn_scalar": 8,
}
AFM7: dict[str, Any] = {
    "model_type": "afm7",
    "architectures": ["AFM7ForCausalLM"],
    "hidden_dim": 32,
    "num_layers": 4,
    "num_kv_reuse_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
}
QWEN3_5: dict[str, Any] = {
    "model_type": "qwen3_5",
    "architectures": ["Qwen3_5ForCausalLM"],
    "head_dim": 16,
    "num_hidden_layers": 3,
    "full_attention_interval": 3,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
}
KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "head_dim": 8,
    "num_key_value_heads": 4,
    "model_max_length": 256,
    "num_experts": 2,
    "moe_intermediate_size": 16,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 16,
        "kda_layers": [1],
        "full_attn_layers": [2],
        "short_conv_kernel_size": 4,
    },
}

"""What TRL's trainer and ours are given alike: a llama of 700 weights, prompts, and rewards.

Imports neither torch nor mlx, so that `make_trl_runs.py` and `test_trl_runs.py` share it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LETTERS, DIGITS, END, PAD = "abcdefgh", "0123456789", "$", "_"
VOCABULARY = LETTERS + DIGITS + END + PAD  # one token each
PROMPTS = 64
HIDDEN, INNER, HEADS, HEAD_DIM = 8, 16, 2, 4
Weights = dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]


def shapes() -> dict[str, tuple[int, ...]]:
    """The weights of the model and their shapes."""
    layer = "model.layers.0"
    width, kv = HEADS * HEAD_DIM, HEAD_DIM
    return {
        "model.embed_tokens.weight": (len(VOCABULARY), HIDDEN),
        f"{layer}.self_attn.q_proj.weight": (width, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (kv, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (kv, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, width),
        f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
        "model.norm.weight": (HIDDEN,),
    }


def flat(arrays: Mapping[str, Any]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """All weights, or their gradients, as one vector."""
    return np.concatenate([np.asarray(arrays[name], np.float32).ravel() for name in shapes()])


def write_model(folder: Path, seed: int = 7) -> Path:
    """Write the model in the format of the hub."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in shapes().items():
        drawn = rng.normal(size=shape) * 2.0 / shape[-1] ** 0.5
        weights[name] = (1 + 0.1 * drawn if len(shape) == 1 else drawn).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    end, pad = VOCABULARY.index(END), VOCABULARY.index(PAD)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(VOCABULARY),
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": end,
        "pad_token_id": pad,
        "bos_token_id": None,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models

    ids = {character: index for index, character in enumerate(VOCABULARY)}
    core = Tokenizer(models.BPE(vocab=ids, merges=[]))
    core.decoder = decoders.Fuse()
    core.add_special_tokens([END, PAD])
    core.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def prompts() -> list[str]:
    return [f"{number:02}" for number in range(PROMPTS)]


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(VOCABULARY.index(character) for character in text)


# Reward functions of TRL's signature. Their values are exact in float32, so that equal rewards are.


def share_of_a(completions: Sequence[str], **_: Any) -> list[float]:
    return [text.count("a") / 4 for text in completions]


def has_b(completions: Sequence[str], **_: Any) -> list[float | None]:
    """1 with a b, else 0; does not apply to answers without a vowel."""
    return [float("b" in text) if set("ae") & set(text) else None for text in completions]


def length(completions: Sequence[str], **_: Any) -> list[float]:
    return [-len(text) / 2 for text in completions]


REWARDS = {function.__name__: function for function in (share_of_a, has_b, length)}

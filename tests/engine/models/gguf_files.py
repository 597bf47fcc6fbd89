"""Write GGUF files of the tiny model in the usual layout: q and k interleaved by halves."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.engine.tiny import CHAT, END, SPECIAL, STOP, VOCABULARY, tiny_config, write_model

STRING, ARRAY = 8, 9
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> bytes:
    """A metadata value with its matching type."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    first, items = typed(value[0])[:4], b"".join(typed(item)[4:] for item in value)
    return struct.pack("<I", ARRAY) + first + struct.pack("<Q", len(value)) + items


def write_gguf(
    file: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    version: int = 3,
    kind: int = 0,
) -> Path:
    """Write float32 tensors, or raw bytes of another `kind`."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(text(key) + typed(value) for key, value in metadata.items())
    body = b""
    for name, array in tensors.items():
        body += b"\0" * (-len(body) % 32)
        sizes = tuple(reversed(array.shape))
        head += text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        head += struct.pack("<IQ", kind, len(body))
        body += array.astype(np.float32).tobytes()
    head += b"\0" * (-len(head) % 32)
    file.write_bytes(head + body)
    return file


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """A llama's metadata; a None value removes the key."""
    from tokenizers import pre_tokenizers

    config = tiny_config()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = {
        "general.architecture": "llama",
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*alphabet, *SPECIAL, "ab"],
        "tokenizer.ggml.token_type": [1] * len(alphabet) + [3] * len(SPECIAL) + [1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.eot_token_id": STOP,
        "tokenizer.ggml.padding_token_id": END - 1,
        "tokenizer.chat_template": CHAT,
    }
    changed = {**known, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in changed.items() if value is not None}


def tiny_tensors(model: Path) -> dict[str, Any]:
    """The tiny model's weights under GGUF's names."""
    weights: Any = mx.load(str(model / "model.safetensors"))
    config = tiny_config()
    found = {}
    for name, value in weights.items():
        array = np.array(value)
        parts = name.removesuffix(".weight").split(".")
        if parts[1] != "layers":
            found[f"{NAMES['.'.join(parts)]}.weight"] = array
            continue
        stem = NAMES[".".join(parts[3:])]
        if stem in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if stem == "attn_q" else "num_key_value_heads"]
            halves = array.reshape(heads, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        found[f"blk.{parts[2]}.{stem}.weight"] = array
    return found


def write_tiny(folder: Path) -> tuple[Path, Path]:
    """The tiny model as a folder and as a GGUF file."""
    model = write_model(folder / "model", vocab_size=VOCABULARY + 1)
    return model, write_gguf(folder / "tiny.gguf", tiny_metadata(), tiny_tensors(model))

"""The structures that the functions of `decode.c` and `passes.c` take."""

import ctypes
from typing import Any

ADDRESS = ctypes.c_void_p
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Linear(ctypes.Structure):
    """A weight, [in, out], with an optional bias and LoRA, [rank, in] and [rank, out]."""

    _fields_ = [
        *((name, ADDRESS) for name in ("weight", "bias", "lora_a", "lora_b")),
        ("rank", ctypes.c_int),
    ]  # fmt: skip


class Layer(ctypes.Structure):
    """Weights of one layer, and its cache while it decodes."""

    _fields_ = [
        *((name, ADDRESS) for name in ("input_norm", "post_attention_norm", "q_norm", "k_norm")),
        *((name, Linear) for name in PROJECTIONS),
        *((name, ADDRESS) for name in ("key_cache", "value_cache")),
        *((name, ADDRESS) for name in ("prompt_keys", "prompt_values")),
    ]


class Model(ctypes.Structure):
    """The sizes that all layers share."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("layers", "hidden_size", "intermediate_size")),
        *((name, ctypes.c_int) for name in ("heads", "kv_heads", "head_dim", "rotary_dims")),
        ("max_rank", ctypes.c_int), ("epsilon", ctypes.c_float), ("scale", ctypes.c_float),
    ]  # fmt: skip


class Step(ctypes.Structure):
    """A decode step: where its tokens are stored, and their rotations."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("rows", "capacity", "position", "prompt_length")),
        ("starts", ADDRESS), ("cos_sin", ADDRESS),
    ]  # fmt: skip


class Packed(ctypes.Structure):
    """Where the prompts and completions are in one packed sequence."""

    _fields_ = [
        ("tokens", ctypes.c_int),
        *((name, ADDRESS) for name in ("prompt_starts", "prompt_ends", "segment_starts")),
        ("cos_sin", ADDRESS),
    ]  # fmt: skip


class LoraGradients(ctypes.Structure):
    """Gradients of LoRA's two matrices."""

    _fields_ = [("lora_a", ADDRESS), ("lora_b", ADDRESS)]


class LayerGradients(ctypes.Structure):
    """Gradients of a layer's LoRA."""

    _fields_ = [(name, LoraGradients) for name in PROJECTIONS]


class HeadPass(ctypes.Structure):
    """Tokens to score with the head, a chunk at a time."""

    _fields_ = [
        ("head", ctypes.POINTER(Linear)),
        *((name, ctypes.c_int) for name in ("tokens", "hidden_size", "vocabulary", "chunk_size")),
        ("temperature", ctypes.c_float),
        *((name, ADDRESS) for name in ("states", "targets", "sums", "gradients", "logits")),
    ]  # fmt: skip


def declare(library: ctypes.CDLL) -> Any:
    """Declare the argument types of the library's functions to ctypes."""
    model, layers = ctypes.POINTER(Model), ctypes.POINTER(Layer)
    step, packed, integer = ctypes.POINTER(Step), ctypes.POINTER(Packed), ctypes.c_int
    gradients, saved = ctypes.POINTER(LayerGradients), ctypes.POINTER(ADDRESS)
    arguments: dict[str, list[Any]] = {
        "decode_layers": [model, layers, step, ADDRESS, ADDRESS],
        "decode_head": [model, integer, integer, ADDRESS, Linear, ADDRESS, ADDRESS],
        "forward_pass": [model, layers, packed, ADDRESS, integer, ADDRESS, saved, ADDRESS],
        "backward_pass": [
            model, layers, packed, ADDRESS, integer, ADDRESS, gradients, saved, ADDRESS,
        ],
        "head_pass": [ctypes.POINTER(HeadPass)],
    }  # fmt: skip
    sizes: dict[str, list[Any]] = {
        "decode_workspace": [model, step],
        "saved_size": [model, layers, integer],
        "pass_workspace": [model, integer],
    }
    for name, types in (arguments | sizes).items():
        function = getattr(library, name)
        function.argtypes = types
        function.restype = ctypes.c_size_t if name in sizes else None
    return library

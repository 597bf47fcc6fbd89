"""The structures that the functions of `passes.c` take."""

import ctypes
from typing import Any

ADDRESS = ctypes.c_void_p
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Linear(ctypes.Structure):
    """A weight, [in, out], with an optional bias and LoRA, [rank, in] and [rank, out]."""

    _fields_ = [
        *((name, ADDRESS) for name in ("weight", "bias", "lora_a", "lora_b")),
        *((name, ctypes.c_int) for name in ("input_size", "output_size", "rank")),
    ]


class Layer(ctypes.Structure):
    """Weights of one layer, and its cache while it decodes."""

    _fields_ = [
        *((name, ADDRESS) for name in ("input_norm", "post_attention_norm", "q_norm", "k_norm")),
        *((name, Linear) for name in PROJECTIONS),
        *((name, ADDRESS) for name in ("key_cache", "value_cache")),
    ]


class Model(ctypes.Structure):
    """The sizes that all layers share."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("layers", "hidden_size", "intermediate_size")),
        *((name, ctypes.c_int) for name in ("heads", "kv_heads", "head_dim", "rotary_dims")),
        ("max_rank", ctypes.c_int),
        ("epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    ]


class BatchStruct(ctypes.Structure):
    """Tokens, and the positions of the keys and values that they attend to."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("tokens", "positions", "longest")),
        *(
            (name, ADDRESS)
            for name in (
                "prompt_starts",
                "prompt_lengths",
                "segment_starts",
                "segment_lengths",
                "cos_sin",
            )
        ),
    ]


class LoraGradients(ctypes.Structure):
    """Gradients of LoRA's two matrices."""

    _fields_ = [("lora_a", ADDRESS), ("lora_b", ADDRESS)]


class LayerGradients(ctypes.Structure):
    """Gradients of a layer's LoRA."""

    _fields_ = [(name, LoraGradients) for name in PROJECTIONS]


class PassStruct(ctypes.Structure):
    """A pass over all layers; see `passes.c`."""

    _fields_ = [
        *((name, ADDRESS) for name in ("model", "layers", "batch", "norm", "states")),
        ("first_layer", ctypes.c_int),
        *((name, ADDRESS) for name in ("saved", "gradients", "workspace")),
    ]


class HeadPass(ctypes.Structure):
    """Tokens to score with the head, a chunk at a time."""

    _fields_ = [
        ("head", ctypes.POINTER(Linear)),
        *((name, ctypes.c_int) for name in ("tokens", "chunk_size")),
        ("temperature", ctypes.c_float),
        *((name, ADDRESS) for name in ("states", "targets", "sums", "gradients", "logits")),
    ]


def declare(library: ctypes.CDLL) -> Any:
    """Declare the argument types of the library's functions to ctypes."""
    pointer = ctypes.POINTER
    arguments: dict[str, list[Any]] = {
        "forward_pass": [pointer(PassStruct)],
        "backward_pass": [pointer(PassStruct)],
        "head_pass": [pointer(HeadPass)],
        "pass_workspace": [pointer(PassStruct)],
        "saved_size": [pointer(Model), pointer(Layer), ctypes.c_int],
    }
    for name, types in arguments.items():
        function = getattr(library, name)
        function.argtypes = types
        function.restype = None if name.endswith("pass") else ctypes.c_size_t
    return library

"""The structures that the functions of `passes.c` take."""

import ctypes
from collections.abc import Iterator
from typing import Any

ADDRESS = ctypes.c_void_p
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def fields(kind: Any, names: str) -> Iterator[tuple[str, Any]]:
    """Fields of one type."""
    return ((name, kind) for name in names.split())


class Linear(ctypes.Structure):
    """A weight, [in, out], with an optional bias and LoRA, [rank, in] and [rank, out]."""

    _fields_ = [
        *fields(ADDRESS, "weight bias lora_a lora_b"),
        *fields(ctypes.c_int, "input_size output_size rank"),
    ]


class Layer(ctypes.Structure):
    """Weights of one layer, and its cache while it decodes."""

    _fields_ = [
        *fields(ADDRESS, "input_norm post_attention_norm q_norm k_norm"),
        *((name, Linear) for name in PROJECTIONS),
        *fields(ADDRESS, "key_cache value_cache"),
    ]


class Model(ctypes.Structure):
    """The sizes that all layers share."""

    _fields_ = [
        *fields(ctypes.c_int, "layers hidden_size intermediate_size"),
        *fields(ctypes.c_int, "heads kv_heads head_dim rotary_dims max_rank"),
        *fields(ctypes.c_float, "epsilon scale"),
    ]


class BatchStruct(ctypes.Structure):
    """Tokens, and the positions of the keys and values that they attend to."""

    _fields_ = [
        *fields(ctypes.c_int, "tokens positions longest"),
        *fields(ADDRESS, "prompt_starts prompt_lengths segment_starts segment_lengths cos_sin"),
    ]


class LoraGradients(ctypes.Structure):
    """Gradients of LoRA's two matrices."""

    _fields_ = [*fields(ADDRESS, "lora_a lora_b")]


class LayerGradients(ctypes.Structure):
    """Gradients of a layer's LoRA."""

    _fields_ = [(name, LoraGradients) for name in PROJECTIONS]


class PassStruct(ctypes.Structure):
    """A pass over all layers; see `passes.c`."""

    _fields_ = [
        *fields(ADDRESS, "model layers batch norm states"),
        ("first_layer", ctypes.c_int),
        *fields(ADDRESS, "saved gradients workspace"),
    ]


class HeadPass(ctypes.Structure):
    """Tokens to score with the head, a chunk at a time."""

    _fields_ = [
        ("head", ctypes.POINTER(Linear)),
        *fields(ctypes.c_int, "tokens chunk_size"),
        ("temperature", ctypes.c_float),
        *fields(ADDRESS, "states targets sums gradients logits"),
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

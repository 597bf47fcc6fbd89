"""The structures that `layers.c` and `passes.c` take."""

import ctypes
from typing import Any

ADDRESS = ctypes.c_void_p
LINEARS = ("queries", "keys", "values", "out", "gate", "up", "down")


class Linear(ctypes.Structure):
    """A weight, [in, out], with a bias and LoRA, [rank, in] and [rank, out], if any."""

    _fields_ = [
        *((name, ADDRESS) for name in ("weight", "bias", "narrow", "wide")), ("rank", ctypes.c_int),
    ]  # fmt: skip


class Layer(ctypes.Structure):
    """Weights and stored keys and values of one layer."""

    _fields_ = [
        *((name, ADDRESS) for name in ("norm", "norm_after", "norm_queries", "norm_keys")),
        *((name, Linear) for name in LINEARS),
        *((name, ADDRESS) for name in ("stored_keys", "stored_values")),
        *((name, ADDRESS) for name in ("prompt_keys", "prompt_values")),
    ]


class Model(ctypes.Structure):
    """The sizes that all layers share."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("layers", "width", "inner", "heads", "kinds")),
        *((name, ctypes.c_int) for name in ("each", "turned", "rank")),
        ("epsilon", ctypes.c_float), ("scale", ctypes.c_float),
    ]  # fmt: skip


class Step(ctypes.Structure):
    """What is new in a step."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("rows", "room", "end", "prompt")),
        ("starts", ADDRESS), ("turns", ADDRESS),
    ]  # fmt: skip


class Packed(ctypes.Structure):
    """Where the tokens of prompts and answers are in one sequence."""

    _fields_ = [
        ("tokens", ctypes.c_int),
        *((name, ADDRESS) for name in ("prompt", "end", "own", "turns")),
    ]  # fmt: skip


class Slopes(ctypes.Structure):
    """Gradients of a LoRA's two halves."""

    _fields_ = [("narrow", ADDRESS), ("wide", ADDRESS)]


class LayerSlopes(ctypes.Structure):
    """Gradients of a layer's LoRA."""

    _fields_ = [(name, Slopes) for name in LINEARS]


class Scored(ctypes.Structure):
    """Tokens whose log-probabilities the head is asked for."""

    _fields_ = [
        ("head", ctypes.POINTER(Linear)),
        *((name, ctypes.c_int) for name in ("tokens", "width", "vocabulary", "most")),
        ("temperature", ctypes.c_float),
        *((name, ADDRESS) for name in ("states", "wanted", "sums", "slopes", "logits")),
    ]  # fmt: skip


def declare(library: ctypes.CDLL) -> Any:
    """Tell ctypes the functions' arguments."""
    model, step = ctypes.POINTER(Model), ctypes.POINTER(Step)
    library.scratch.argtypes = [model, step]
    library.scratch.restype = ctypes.c_size_t
    library.run_layers.argtypes = [model, ctypes.POINTER(Layer), step, ADDRESS, ADDRESS]
    library.run_layers.restype = None
    number = ctypes.c_int
    library.run_head.argtypes = [model, number, number, ADDRESS, Linear, ADDRESS, ADDRESS]
    library.run_head.restype = None
    layers, packed, places = (
        ctypes.POINTER(Layer), ctypes.POINTER(Packed), ctypes.POINTER(ADDRESS),
    )  # fmt: skip
    library.kept_size.argtypes = [model, layers, number]
    library.pass_scratch.argtypes = [model, number]
    library.kept_size.restype = library.pass_scratch.restype = ctypes.c_size_t
    library.forward_pass.argtypes = [
        model, layers, packed, ADDRESS, number, ADDRESS, places, ADDRESS,
    ]  # fmt: skip
    library.backward_pass.argtypes = [
        model, layers, packed, ADDRESS, number, ADDRESS, ctypes.POINTER(LayerSlopes), places,
        ADDRESS,
    ]  # fmt: skip
    library.forward_pass.restype = library.backward_pass.restype = None
    library.score_tokens.argtypes = [ctypes.POINTER(Scored)]
    library.score_tokens.restype = None
    return library

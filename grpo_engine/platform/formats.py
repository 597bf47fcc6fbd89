"""Resolves `model.dtype: auto` for a device; does not load MLX."""

STORED = "as stored"


def auto_format(*, on_gpu: bool) -> str:
    """The number format of the weights, or `STORED`."""
    return STORED if on_gpu else "float32"


def auto_text(*, on_gpu: bool) -> str:
    """The format with its reason."""
    reason = "a processor multiplies 16-bit numbers many times more slowly"
    if on_gpu:
        reason = "a GPU computes 16-bit numbers at full speed, and they need half the memory"
    return f"auto is {auto_format(on_gpu=on_gpu)}: {reason}"

"""What MLX raises when a GPU fails, told apart by its text.

A failed command buffer raises once, at a wait, and arrays that it computed then read as if they
were valid. Whoever goes on after such an error discards all that was computed since the last
`mx.synchronize()`. Texts are those of MLX 0.32.4.
"""

from collections.abc import Mapping
from typing import Final, Literal

Fault = Literal["memory", "size", "watchdog", "victim", "lost"]

TEXTS: Final[Mapping[Fault, tuple[str, ...]]] = {
    "lost": ("SubmissionsIgnored", "CallbackErrorHang", "PageFault"),
    "watchdog": ("CallbackErrorTimeout", "ImpactingInteractivity"),
    "victim": ("InnocentVictim",),
    "size": ("maximum allowed buffer size",),
    "memory": (
        "Insufficient Memory",
        "kIOGPUCommandBufferCallbackErrorOutOfMemory",
        "[metal::malloc] Resource limit",
        "[malloc] Unable to allocate",
    ),
}
FAILED_BUFFER: Final = "Command buffer execution failed"


def fault_of(error: BaseException) -> Fault | None:
    """Which failure of the GPU an error reports; None for any other error."""
    if not isinstance(error, RuntimeError):
        return None
    text = str(error)
    for fault, parts in TEXTS.items():
        if any(part in text for part in parts):
            return fault
    return "lost" if FAILED_BUFFER in text else None


def raise_fault(error: BaseException) -> None:
    """Raise an error again if the GPU failed: it says nothing about a model or a file."""
    if fault_of(error):
        raise error

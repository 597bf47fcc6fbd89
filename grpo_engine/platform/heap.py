"""Keeps the memory of freed arrays in the process, since fresh pages cost more than they hold.

MLX's CPU back end takes each array from `malloc`. glibc maps large ones anew and gives them back at
once, so that every sum of a training step first has its pages made and zeroed by the kernel.
"""

import ctypes
import os
import sys
from typing import Final

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # of <malloc.h>
USERS_OWN: Final = (
    "GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_ARENA_MAX",
)  # fmt: skip
"""Where the user has set one of these, it is left at that."""
CHOICES: Final = (
    (ARENA_MAX, 1),  # the others cannot grow beyond 64 MiB and are unmapped when empty
    (MMAP_THRESHOLD, 32 << 20),  # the most that glibc takes
    (TRIM_THRESHOLD, (1 << 31) - 1),
    (TOP_PAD, 64 << 20),
)


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for what comes next; False where there is nothing to set."""
    if sys.platform != "linux" or any(name in os.environ for name in USERS_OWN):
        return False
    try:
        libc = ctypes.CDLL(None)
        _ = libc.gnu_get_libc_version
        taken = [int(libc.mallopt(name, value)) for name, value in CHOICES]
        return all(taken)
    except (OSError, AttributeError):
        return False  # another C library


def give_back() -> None:
    """Return free memory to the system, where a run has ended and the program goes on."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

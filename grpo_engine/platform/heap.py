"""Keeps the memory of freed arrays in the process, to avoid page faults.

MLX's CPU back end allocates each array with `malloc`. glibc maps large blocks separately and unmaps
them at once, so the kernel would have to create and zero the pages of every intermediate array.
"""

import ctypes
import os
import sys
from typing import Final

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, ARENA_MAX = -1, -2, -3, -8  # from <malloc.h>
VARIABLES: Final = (
    "GLIBC_TUNABLES",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_ARENA_MAX",
)  # nothing is changed if the user has set one of these
CHOICES: Final = (
    (ARENA_MAX, 1),  # other arenas cannot grow beyond 64 MiB and are unmapped when empty
    (MMAP_THRESHOLD, 32 << 20),  # glibc's maximum
    (TRIM_THRESHOLD, (1 << 31) - 1),
    (TOP_PAD, 64 << 20),
)


def retain_freed_memory() -> bool:
    """Tell glibc to keep freed memory for reuse; False if nothing was set."""
    if sys.platform != "linux" or any(name in os.environ for name in VARIABLES):
        return False
    try:
        libc = ctypes.CDLL(None)
        _ = libc.gnu_get_libc_version
        accepted = [int(libc.mallopt(name, value)) for name, value in CHOICES]
        return all(accepted)
    except (OSError, AttributeError):
        return False  # another C library


def trim() -> None:
    """Return free memory to the system, when a run ends and the program does not."""
    if sys.platform == "linux":
        malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if malloc_trim is not None:
            malloc_trim(0)

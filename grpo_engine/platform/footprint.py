"""What macOS says of memory: this process's footprint, swap, and how short memory is.

The resident size errs both ways there: compressed pages are missing in it, and shared ones count.
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from typing import Final

RUSAGE_V0: Final = 0  # flavour of `proc_pid_rusage`
RUSAGE_BYTES: Final = 96  # a UUID of 16 bytes, then ten numbers of 8
FOOTPRINT_AT: Final = 72  # offset of `ri_phys_footprint`
PRESSURE: Final = b"kern.memorystatus_vm_pressure_level"
NORMAL, WARNING, CRITICAL = 1, 2, 4
# Share of the available memory: the rest is taken from other programs by swapping.
USABLE: Final[Mapping[int, float]] = {NORMAL: 1.0, WARNING: 0.5, CRITICAL: 0.0}
GIGABYTE: Final = 1e9


def footprint() -> int | None:
    """Bytes that this process has in memory, compressed and swapped ones included."""
    if sys.platform != "darwin":
        return None
    usage = ctypes.create_string_buffer(RUSAGE_BYTES)
    try:
        failed = ctypes.CDLL(None).proc_pid_rusage(os.getpid(), RUSAGE_V0, usage)
    except (OSError, AttributeError):
        return None
    if failed:
        return None
    return int.from_bytes(usage.raw[FOOTPRINT_AT : FOOTPRINT_AT + 8], sys.byteorder)


def pressure() -> int:
    """How short memory is: normal, a warning, or critical; normal where the system does not say."""
    if sys.platform != "darwin":
        return NORMAL
    level, size = ctypes.c_int(NORMAL), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    try:
        failed = ctypes.CDLL(None).sysctlbyname(
            PRESSURE, ctypes.byref(level), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (OSError, AttributeError):
        return NORMAL
    return NORMAL if failed else level.value


def memory_metrics() -> dict[str, float]:
    """Metrics of a step that MLX's peak leaves out; empty but on macOS."""
    size = footprint()
    if size is None:
        return {}
    import psutil

    return {
        "memory/footprint_gb": size / GIGABYTE,
        "memory/swap_gb": psutil.swap_memory().used / GIGABYTE,
        "memory/pressure": float(pressure()),
    }

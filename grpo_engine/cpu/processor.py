"""The processor and its instruction sets, as NumPy finds them by CPUID.

Under emulation `/proc/cpuinfo` describes the host, and two machines may share one home folder.
"""

import platform
from pathlib import Path
from typing import Final

NAMES: Final = {
    "SSE42": "SSE4.2",
    "AVX": "AVX",
    "FMA3": "FMA",
    "AVX2": "AVX2",
    "AVX512F": "AVX-512",
    "NEON": "NEON",
    "ASIMDDP": "dot products",
    "SVE": "SVE",
}
"""Instruction sets for matrix products, by NumPy's names."""
MODEL_FIELDS: Final = ("model name", "CPU part")


def features() -> list[str]:
    """NumPy's names of the instruction sets that this processor has."""
    from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found]  # no stubs

    return [name for name, is_present in __cpu_features__.items() if is_present]


def extensions() -> list[str]:
    """The instruction sets for matrix products that this processor has."""
    present = features()
    return [name for feature, name in NAMES.items() if feature in present]


def identity() -> str:
    """A text that differs between types of processors."""
    return "-".join([platform.machine(), *features(), *sorted(set(models()))])


def models() -> list[str]:
    """The model of each processor, as the kernel names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(MODEL_FIELDS)]

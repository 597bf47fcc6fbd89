"""Identifies the processor by its own registers.

Under emulation `/proc/cpuinfo` describes the host, and two machines may share one home folder.
"""

import ctypes
import platform
from functools import cache
from pathlib import Path
from typing import Final

AT_HWCAP, AT_HWCAP2 = 16, 26  # of <elf.h>
REGISTERS: Final = ((0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (6, 0))
"""CPUID leaf in glibc's numbering and register (eax, ebx, ecx, edx) of the instruction sets."""
X86_NAMES: Final = {"SSE4.2": (1, 20), "AVX": (1, 28), "FMA": (1, 12), "AVX2": (3, 5),
                    "AVX-512": (3, 16)}  # fmt: skip
"""Instruction sets for matrix products: index into `words`, and bit."""
ARM_NAMES: Final = {"NEON": (0, 1), "dot products": (0, 20), "SVE": (0, 22), "SVE2": (1, 1),
                    "SME": (1, 23)}  # fmt: skip
IDENTIFICATION: Final = "sys/devices/system/cpu/cpu*/regs/identification/midr_el1"


class _Leaf(ctypes.Structure):
    _fields_ = (("has", ctypes.c_uint32 * 4), ("active", ctypes.c_uint32 * 4))


@cache
def words() -> tuple[int, ...]:
    """The processor's feature words; empty if they cannot be read."""
    libc = ctypes.CDLL(None)
    if platform.machine() == "x86_64" and hasattr(libc, "__x86_get_cpuid_feature_leaf"):
        ask = libc.__x86_get_cpuid_feature_leaf
        ask.restype = ctypes.POINTER(_Leaf)
        family_and_model = ask(0).contents.has[0]
        return (family_and_model, *(ask(leaf).contents.active[i] for leaf, i in REGISTERS))
    if platform.machine() == "aarch64" and hasattr(libc, "getauxval"):
        libc.getauxval.restype = ctypes.c_ulong
        kinds = {file.read_text().strip() for file in Path("/").glob(IDENTIFICATION)}
        asked = (libc.getauxval(AT_HWCAP), libc.getauxval(AT_HWCAP2))
        return (*asked, *sorted(int(kind, 16) for kind in kinds))
    return ()


def identity() -> str:
    """A text that differs between kinds of processors."""
    return "-".join([platform.machine(), *(f"{word:x}" for word in words())])


def extensions() -> list[str]:
    """The instruction sets for matrix products that this processor has."""
    found = words()
    names = X86_NAMES if platform.machine() == "x86_64" else ARM_NAMES
    return [name for name, (word, bit) in names.items() if found and found[word] >> bit & 1]

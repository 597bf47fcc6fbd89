"""Which processor computes, as it says itself: what the system prints may be another one's.

Under emulation `/proc/cpuinfo` is the host's, and two machines may share one home folder.
"""

import ctypes
import platform
from functools import cache
from pathlib import Path
from typing import Final

AT_HWCAP, AT_HWCAP2 = 16, 26  # of <elf.h>
LEAVES: Final = 9  # that glibc keeps of CPUID
X86_NAMES: Final = (("SSE4.2", 0, 2, 20), ("AVX", 0, 2, 28), ("FMA", 0, 2, 12), ("AVX2", 1, 1, 5),
                    ("AVX-512", 1, 1, 16))  # fmt: skip
"""Leaf, register (eax, ebx, ecx, edx) and bit of what matrix products are made with."""
ARM_NAMES: Final = (("NEON", 0, 1), ("dot products", 0, 20), ("SVE", 0, 22), ("SVE2", 1, 1),
                    ("SME", 1, 23))  # fmt: skip
IDENTIFICATION: Final = "sys/devices/system/cpu/cpu*/regs/identification/midr_el1"


class _Leaf(ctypes.Structure):
    _fields_ = (("has", ctypes.c_uint32 * 4), ("active", ctypes.c_uint32 * 4))


@cache
def words() -> tuple[int, ...]:
    """What the processor says of itself; empty where it cannot be asked."""
    libc = ctypes.CDLL(None)
    if platform.machine() == "x86_64" and hasattr(libc, "__x86_get_cpuid_feature_leaf"):
        ask = libc.__x86_get_cpuid_feature_leaf
        ask.restype = ctypes.POINTER(_Leaf)
        leaves = [ask(index).contents for index in range(LEAVES)]
        # The first leaf's ebx is the number of the core that was asked.
        signature = leaves[0].has[0]
        return (signature, *(leaf.active[i] for leaf in leaves for i in range(4)))
    if platform.machine() == "aarch64" and hasattr(libc, "getauxval"):
        libc.getauxval.restype = ctypes.c_ulong
        kinds = {file.read_text().strip() for file in Path("/").glob(IDENTIFICATION)}
        asked = (libc.getauxval(AT_HWCAP), libc.getauxval(AT_HWCAP2))
        return (*asked, *sorted(int(kind, 16) for kind in kinds))
    return ()


def identity() -> str:
    """A text that is equal on processors of one kind only."""
    return "-".join([platform.machine(), *(f"{word:x}" for word in words())])


def extensions() -> list[str]:
    """The instructions for matrix products that this processor has."""
    found = words()
    if not found:
        return []
    if platform.machine() == "x86_64":
        return [
            name for name, leaf, register, bit in X86_NAMES
            if found[1 + 4 * leaf + register] >> bit & 1
        ]  # fmt: skip
    return [name for name, word, bit in ARM_NAMES if found[word] >> bit & 1]

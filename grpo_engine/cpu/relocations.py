"""Points a loaded library's calls to a function at another library's.

A shared library on Linux calls its imports through addresses that the loader has filled in (its
relocations). They are found in memory through the library's dynamic section and overwritten. No
symbol becomes visible to the rest of the process, and the order of loading does not matter.
"""

import ctypes
import mmap
import platform
import struct
from collections.abc import Iterator
from typing import Final

from grpo_engine.errors import EngineError

# Tags of <elf.h>.
PLTRELSZ, STRTAB, SYMTAB, RELA, RELASZ, JMPREL = 2, 5, 6, 7, 8, 23
SYMBOL_SIZE: Final = 24  # of Elf64_Sym, which begins with the offset of its name
RELOCATION: Final = struct.Struct("<QIIq")  # Elf64_Rela: offset, type, symbol, addend
TYPES: Final = {
    "x86_64": frozenset({1, 6, 7}),  # R_X86_64_64, GLOB_DAT, JUMP_SLOT
    "aarch64": frozenset({257, 1025, 1026}),  # R_AARCH64_ABS64, GLOB_DAT, JUMP_SLOT
}
DI_LINKMAP: Final = 2


class BlasError(EngineError, OSError):
    """A library that MLX cannot use; the message completes a sentence that begins with "it"."""


class _LinkMap(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_size_t),
    )


def redirect(library: ctypes.CDLL, name: str, function: int) -> None:
    """Let a loaded library call the function at this address for its import `name`."""
    addresses = list(imports(library, name))
    if not addresses:
        raise BlasError(f"does not fit this build of MLX, which imports no {name}")
    libc = ctypes.CDLL(None, use_errno=True)
    for address in addresses:
        page = ctypes.c_void_p(address - address % mmap.PAGESIZE)  # may be read-only
        size = ctypes.c_size_t(mmap.PAGESIZE)
        if libc.mprotect(page, size, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
            raise BlasError(f"cannot be connected to MLX (error {ctypes.get_errno()})")
        ctypes.c_size_t.from_address(address).value = function


def imports(library: ctypes.CDLL, name: str) -> Iterator[int]:
    """The addresses from which a loaded library reads that of an import."""
    types = TYPES.get(platform.machine(), frozenset())
    base, entries = _dynamic_section(library)

    def address(tag: int) -> int:  # glibc adds the base to these entries, other loaders do not
        value = entries[tag]
        return value if value >= base else base + value

    for table, size in ((JMPREL, PLTRELSZ), (RELA, RELASZ)):
        if table not in entries:
            continue
        relocations = ctypes.string_at(address(table), entries[size])
        for offset, type_, symbol, _ in RELOCATION.iter_unpack(relocations):
            if type_ not in types:
                continue
            text = ctypes.c_uint32.from_address(address(SYMTAB) + SYMBOL_SIZE * symbol).value
            if ctypes.string_at(address(STRTAB) + text) == name.encode():
                yield base + offset


def _dynamic_section(library: ctypes.CDLL) -> tuple[int, dict[int, int]]:
    """A library's base address, and the entries of its dynamic section by tag."""
    link_map = ctypes.POINTER(_LinkMap)()
    # glibc has it in libc since 2.34; other C libraries may lack it.
    dlinfo = getattr(ctypes.CDLL(None), "dlinfo", None)
    handle = ctypes.c_void_p(library._handle)
    if dlinfo is None or dlinfo(handle, DI_LINKMAP, ctypes.byref(link_map)) != 0:
        raise BlasError("cannot be connected to MLX: the loader does not say where MLX is")
    entries: dict[int, int] = {}
    address = link_map.contents.dynamic
    while tag := ctypes.c_int64.from_address(address).value:
        entries[tag] = ctypes.c_uint64.from_address(address + 8).value
        address += 16
    return link_map.contents.base, entries

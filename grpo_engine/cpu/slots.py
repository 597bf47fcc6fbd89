"""Points a loaded library's calls to BLAS and LAPACK at the functions of another library.

A shared library on Linux calls its imports through slots that the loader fills with addresses, one
per name (its relocations). They are found in memory through the library's dynamic section and
overwritten. No symbol becomes visible to the rest of the process, names may have a prefix, and the
order of loading does not matter.
"""

import ctypes
import mmap
import platform
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from grpo_engine.errors import EngineError

# of <elf.h>
NULL, PLTRELSZ, STRTAB, SYMTAB, RELA, RELASZ, STRSZ, JMPREL = 0, 2, 5, 6, 7, 8, 10, 23
SYMBOL: Final = struct.Struct("<I20x")  # Elf64_Sym; only the offset of the name is read
RELOCATION: Final = struct.Struct("<QIIq")  # Elf64_Rela: offset, type, symbol, addend
TYPES: Final = {
    "x86_64": frozenset({1, 6, 7}),  # R_X86_64_64, GLOB_DAT, JUMP_SLOT
    "aarch64": frozenset({257, 1025, 1026}),  # R_AARCH64_ABS64, GLOB_DAT, JUMP_SLOT
}
REPLACED: Final = re.compile(rb"(cblas_[a-z0-9_]+|[a-z][a-z0-9]{3,}_)\0")
"""`cblas_sgemm`, and Fortran names such as `sgetrf_`."""
PRODUCTS: Final = frozenset({"cblas_sgemm", "cblas_dgemm", "cblas_cgemm"})
DI_LINKMAP: Final = 2
PROT_READ, PROT_WRITE = mmap.PROT_READ, mmap.PROT_WRITE


class SlotsError(EngineError, OSError):
    """The library's imports cannot be found or written."""


class _LinkMap(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_size_t),
    )


def redirect(library: ctypes.CDLL, find: Callable[[str], int | None]) -> frozenset[str]:
    """Fill the slots of all BLAS and LAPACK names in `library`; `find` maps a name to an address.

    All or nothing: raise `SlotsError` if a product has no slot or `find` lacks an imported name.
    """
    slots = list(imports(library))
    names = {name for name, _ in slots}
    missing = sorted(PRODUCTS - names)
    if missing:
        raise SlotsError(f"it does not import {missing[0]}")
    addresses = {name: find(name) for name in names}
    missing = sorted(name for name, address in addresses.items() if not address)
    if missing:
        raise SlotsError(f"the new library lacks {', '.join(missing)}")
    _write({slot: addresses[name] or 0 for name, slot in slots})
    return frozenset(names)


def imports(library: ctypes.CDLL) -> Iterator[tuple[str, int]]:
    """BLAS and LAPACK names that a loaded library imports, with the addresses of their slots."""
    types = TYPES.get(platform.machine())
    if types is None or struct.calcsize("P") != 8:
        raise SlotsError(f"nothing is known of the relocations of {platform.machine()}")
    base, entries = _dynamic_section(library)
    if SYMTAB not in entries or STRTAB not in entries:
        raise SlotsError("it has no dynamic symbols")

    def address(tag: int) -> int:  # glibc adds the base to these entries, other loaders do not
        value = entries[tag]
        return value if value >= base else base + value

    names = ctypes.string_at(address(STRTAB), entries[STRSZ])
    slots = [
        (symbol, base + offset)
        for table, size in ((JMPREL, PLTRELSZ), (RELA, RELASZ))
        if table in entries
        for offset, kind, symbol, _ in RELOCATION.iter_unpack(
            ctypes.string_at(address(table), entries[size])
        )
        if kind in types
    ]
    last = max((symbol for symbol, _ in slots), default=0)
    symbols = ctypes.string_at(address(SYMTAB), SYMBOL.size * (last + 1))
    places = [place for (place,) in SYMBOL.iter_unpack(symbols)]
    for symbol, slot in slots:
        if found := REPLACED.match(names, places[symbol]):
            yield found[1].decode(), slot


def _dynamic_section(library: ctypes.CDLL) -> tuple[int, dict[int, int]]:
    """A library's base address, and the entries of its dynamic section by tag."""
    found = ctypes.POINTER(_LinkMap)()
    # in libc since glibc 2.34; other C libraries may lack it
    dlinfo = getattr(ctypes.CDLL(None), "dlinfo", None)
    handle = ctypes.c_void_p(library._handle)
    if dlinfo is None or dlinfo(handle, DI_LINKMAP, ctypes.byref(found)) != 0:
        raise SlotsError("the loader does not say where it is")
    entries: dict[int, int] = {}
    at = found.contents.dynamic
    while True:
        tag = ctypes.c_int64.from_address(at).value
        if tag == NULL:
            return found.contents.base, entries
        entries[tag] = ctypes.c_uint64.from_address(at + 8).value
        at += 16


def _write(addresses: Mapping[int, int]) -> None:
    """Write addresses to slots, on pages that the loader may have made read-only."""
    libc = ctypes.CDLL(None, use_errno=True)

    def protect(page: int, protection: int) -> None:
        size = ctypes.c_size_t(mmap.PAGESIZE)
        if libc.mprotect(ctypes.c_void_p(page), size, protection) != 0:
            raise SlotsError(f"its imports cannot be written (error {ctypes.get_errno()})")

    pages = {slot - slot % mmap.PAGESIZE for slot in addresses}
    locked = {page: flags for page, flags in _protection(pages).items() if not flags & PROT_WRITE}
    for page, flags in locked.items():
        protect(page, flags | PROT_WRITE)
    for slot, address in addresses.items():
        ctypes.c_size_t.from_address(slot).value = address
    for page, flags in locked.items():
        protect(page, flags)


def _protection(pages: Iterable[int]) -> dict[int, int]:
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        for page in pages:
            if start <= page < end:
                found[page] = PROT_READ * (flags[0] == "r") | PROT_WRITE * (flags[1] == "w")
    return found

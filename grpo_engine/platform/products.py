"""Compiles `products.c`, matrix products of few rows, for the processor it runs on.

A decode step multiplies a few rows by every weight. OpenBLAS first copies the weights, which takes
two to three times as long as the product itself. A machine without a C compiler goes without.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

CHOICE: Final = "GRPO_TUI_PRODUCTS"
"""`none` leaves all products to the BLAS."""
SOURCE: Final = Path(__file__).with_name("products.c")
COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = ("-O3", "-march=native", "-shared", "-fPIC")
SEVERAL_THREADS: Final = ("-fopenmp",)
LIMIT_S: Final = 120.0


class Products:
    """A compiled library; products of many rows are passed on to `other`, an address."""

    def __init__(self, path: str, other: int, threads: int) -> None:
        library = ctypes.CDLL(path)
        library.set_other(ctypes.c_void_p(other))
        self._set_threads = library.set_threads
        self._set_threads(threads)
        self.address = ctypes.cast(library.cblas_sgemm, ctypes.c_void_p).value

    def set_threads(self, count: int) -> None:
        """Use `count` threads from the next product on."""
        self._set_threads(count)


def compiler() -> str | None:
    """The C compiler to use; None if there is none or nothing is to be compiled."""
    if os.environ.get(CHOICE) == "none":
        return None
    names = (os.environ.get("CC", ""), *COMPILERS)
    return next((found for name in names if name and (found := shutil.which(name))), None)


def compiled(folder: Path, identity: str) -> str:
    """Path of the library in a cache folder, compiled if it is not there; "" if it cannot be.

    `identity` names the processor, since two machines may share one home folder.
    """
    tool = compiler()
    if tool is None:
        return ""
    try:
        stamp = Path(tool).stat()
        parts = [SOURCE.read_text(), identity, tool, str(stamp.st_size), str(stamp.st_mtime_ns)]
        place = folder / f"products-{sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
        if place.is_file():
            return str(place)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            made = Path(draft) / place.name
            for more in (SEVERAL_THREADS, ()):  # the compiler may lack the library for threads
                command = [tool, *FLAGS, *more, "-o", str(made), str(SOURCE)]
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                    timeout=LIMIT_S,
                )  # fmt: skip
                if done.returncode == 0:
                    made.replace(place)
                    return str(place)
    except (OSError, subprocess.SubprocessError):
        pass
    return ""

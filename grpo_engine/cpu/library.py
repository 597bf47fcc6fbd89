"""Compiles products of few rows, decode steps and the layers of training for this processor.

A decode step multiplies a few rows by every weight. OpenBLAS first copies the weights, which takes
as long as the product itself or longer. Scoring and update multiply many rows; between the products
MLX computes one small operation after another. A machine without a C compiler, or whose processor
has none of the instruction sets below, leaves all this to OpenBLAS and MLX.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

from grpo_engine.cpu import processor
from grpo_engine.platform import private

CHOICE: Final = "GRPO_TUI_PRODUCTS"
"""`none` leaves all products to the BLAS."""
SOURCE: Final = Path(__file__).with_name("passes.c")
"""It includes `decode.c`, and that `matmul.c`."""
COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = ("-O3", "-shared", "-fPIC", "-pthread")
KINDS: Final = (
    (("AVX-512", "FMA"), ("-mavx512f", "-mfma")),
    (("AVX2", "FMA"), ("-mavx2", "-mfma")),
)
"""Instruction sets, and the compiler's flags for them. A compiler's own `native` may be another
processor: under emulation, it runs on the real one."""
LIMIT_S: Final = 120.0


class Products:
    """A compiled library; products of many rows are passed on to the BLAS, an address."""

    def __init__(self, path: str, blas: int, threads: int) -> None:
        self.library = ctypes.CDLL(path)
        self.library.set_blas(ctypes.c_void_p(blas))
        self.set_threads(threads)
        self.sgemm = ctypes.cast(self.library.sgemm, ctypes.c_void_p).value

    def set_threads(self, count: int) -> None:
        """Use `count` threads from the next product on."""
        self.library.set_threads(count)


def instructions() -> tuple[str, ...]:
    """The compiler's flags for this processor; empty if nothing is to be compiled for it."""
    has = processor.extensions()
    return next((flags for needed, flags in KINDS if all(name in has for name in needed)), ())


def compiler() -> str | None:
    """The C compiler to use; None if there is none or it is not wanted."""
    if os.environ.get(CHOICE) == "none":
        return None
    names = (os.environ.get("CC", ""), *COMPILERS)
    return next((found for name in names if name and (found := shutil.which(name))), None)


def compiled(folder: Path | None) -> str:
    """Path of the library in a private folder, compiled if it is not there; "" if it cannot be."""
    tool, chosen = compiler(), instructions()
    if folder is None or tool is None or not chosen:
        return ""
    try:
        stamp = Path(tool).stat()
        sources = [source.read_text() for source in sorted(SOURCE.parent.glob("*.c"))]
        parts = [*sources, *chosen, tool, str(stamp.st_size), str(stamp.st_mtime_ns)]
        path = folder / f"products-{sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
        if private.is_intact(path):
            return str(path)
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            library = Path(draft) / path.name
            done = subprocess.run(
                [tool, *FLAGS, *chosen, "-o", str(library), str(SOURCE)],
                stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
            if done.returncode == 0:
                private.write(path, library.read_bytes())
                return str(path)
    except (OSError, subprocess.SubprocessError):
        pass
    return ""

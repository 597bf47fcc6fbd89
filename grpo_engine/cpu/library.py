"""Our C, compiled when the package was built or installed: which library fits this processor.

A decode step multiplies a few rows by every weight. OpenBLAS first packs the weights, which takes
as long as the product itself or longer. Scoring and update multiply many rows; between the products
MLX computes one small operation after another. Where there is no library, OpenBLAS and MLX do it.
"""

import os
import platform
from hashlib import sha256
from pathlib import Path
from typing import Final

from grpo_engine.cpu import processor
from grpo_engine.frozen import frozen

CHOICE: Final = "GRPO_TUI_PRODUCTS"
"""`none` leaves everything to the BLAS and MLX."""
FOLDER: Final = Path(__file__).parent
VARIANTS: Final = {"avx512": ("AVX-512", "FMA"), "avx2": ("AVX2", "FMA")}
"""Instruction sets that a library needs, the best first."""
REINSTALL: Final = (
    "install the package again (`make run` in a checkout does; else `pip install --force-reinstall "
    "--no-deps`)"
)


@frozen
class Available:
    """The library for this processor, or why there is none."""

    path: str = ""
    problem: str = ""
    """The fault and its remedy; empty if there is nothing to do."""


def available() -> Available:
    """Find the library for this processor, and check that it was compiled from these sources."""
    if os.environ.get(CHOICE) == "none" or platform.machine() != "x86_64":
        return Available()
    extensions = processor.extensions()
    name = next((name for name, sets in VARIANTS.items() if set(sets) <= set(extensions)), None)
    if name is None:
        return Available()
    path = FOLDER / f"kernels-{name}.so"
    try:
        content = path.read_bytes()
    except OSError:
        return Available(
            problem=f"was not compiled when the package was installed: get a C compiler and "
            f"{REINSTALL}"
        )
    if f"grpo-tui-sources={source_hash()}".encode() not in content:
        return Available(problem=f"was compiled from other sources: {REINSTALL}")
    return Available(path=str(path))


def source_hash() -> str:
    """The hash of the C files, as the build writes it into a library."""
    sources = sorted(FOLDER.glob("*.c"))
    return sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()

"""Loads a fast BLAS into the process before MLX, where MLX would compute on a slow one.

The MLX wheel for Linux processors brings the reference BLAS, at 2.5-6 GFLOP/s. Its products are
resolved in the process's global symbol scope first, so an optimised library that is loaded there
earlier serves them. macOS has Accelerate and a GPU build does not multiply here: both need nothing.
"""

import ctypes
import os
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

from grpo_engine.platform import device, libraries, threads

CHOICE: Final = "GRPO_TUI_BLAS"
"""A library's path, or `none` to compute on what MLX ships."""
SYSTEM: Final = "libopenblas.so.0"
BUNDLED_THREADS: Final = 4
"""The package's build uses at most so many threads; a system's uses more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blas:
    """What serves the matrix products of this process, and why."""

    library: str | None = None
    config: str = ""
    threads: int = 0
    max_threads: int = 0
    reason: str = ""
    """Why no library is loaded."""
    problem: str = ""
    remedy: str = ""

    @property
    def loaded(self) -> bool:
        """True where a library of our choice is in place."""
        return self.library is not None


_state: Blas | None = None
_handle: ctypes.CDLL | None = None
_lock = threading.RLock()


def ensure() -> Blas:
    """Load the BLAS once per process, before `mlx.core`; later calls return what was done."""
    global _state
    with _lock:
        if _state is None:
            _state = _choose()
            if _state.problem:
                message = f"{_state.problem} {_state.remedy}"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        return _state


def state() -> Blas | None:
    """What `ensure` did, or None where it has not been called."""
    return _state


def _choose() -> Blas:
    if sys.platform != "linux":
        return Blas(reason="Accelerate serves MLX on macOS")
    if device.uses_gpu():
        return Blas(reason="MLX computes on the GPU")
    choice = os.environ.get(CHOICE, "")
    if choice == "none":
        return Blas(reason=f"{CHOICE}=none")
    if "mlx.core" in sys.modules:
        return Blas(
            reason="mlx.core was imported first",
            problem="Matrix products are slow: mlx.core was imported before grpo_engine.",
            remedy="Import grpo_engine first.",
        )
    return _load_first([choice] if choice else _candidates())


def _candidates() -> list[str]:
    """Libraries in the order of preference; the system's first where it can use more cores."""
    found = bundled()
    if found is None:
        return [SYSTEM]
    wide = threads.cores() > BUNDLED_THREADS
    return [SYSTEM, str(found)] if wide else [str(found), SYSTEM]


def bundled() -> Path | None:
    """OpenBLAS of the package `cmeel-openblas`."""
    try:
        listed = files("cmeel-openblas") or []
    except PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in listed if file.name == "libopenblas.so.0"]
    return next((path for path in paths if path.is_file()), None)


def _load_first(candidates: list[str]) -> Blas:
    errors = []
    for candidate in candidates:
        try:
            loaded = libraries.load(candidate)
            return _describe(candidate, loaded)
        except (OSError, AttributeError) as error:
            errors.append(f"{Path(candidate).name}: {error}")
    return Blas(
        reason="no fast BLAS could be loaded",
        problem=f"Matrix products are slow, at 2.5-6 GFLOP/s: {'; '.join(errors)}.",
        remedy="Install one: pip install cmeel-openblas, or your system's libopenblas.",
    )


def _describe(name: str, handle: ctypes.CDLL) -> Blas:
    """Set the threads and say what was loaded."""
    global _handle
    handle.openblas_get_config.restype = ctypes.c_char_p
    config = handle.openblas_get_config().decode(errors="replace")
    words = dict(word.split("=", 1) for word in config.split() if "=" in word)
    most = int(words.get("MAX_THREADS", "0"))
    _handle = handle
    return replace(
        Blas(library=name, config=config, max_threads=most), threads=set_threads(threads.share())
    )


def set_threads(count: int) -> int:
    """Use `count` threads from the next product on; returns how many the library really uses."""
    global _state
    if _handle is None:
        return 0
    _handle.openblas_set_num_threads(count)
    used = int(_handle.openblas_get_num_threads())
    if _state is not None:
        _state = replace(_state, threads=used)
    return used


def rebalance() -> tuple[int, int] | None:
    """Take this engine's share of the cores anew; (before, after) where it changed."""
    before = _state.threads if _state else 0
    wanted = threads.share()
    if _handle is None or before == wanted:
        return None
    after = set_threads(wanted)
    return (before, after) if after != before else None

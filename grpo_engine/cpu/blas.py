"""Replaces MLX's BLAS with a faster one where the bundled one is slow.

The CPU wheel of MLX for Linux contains the reference BLAS, at 2.5-6 GFLOP/s; OpenBLAS reaches 40 or
more per core. macOS has Accelerate, and a GPU build does not use the BLAS: neither needs this.
"""

import ctypes
import os
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Final

from grpo_engine.cpu import blas_check, openblas
from grpo_engine.cpu.relocations import BlasError
from grpo_engine.frozen import frozen
from grpo_engine.platform import device, threads

CHOICE: Final = "GRPO_TUI_BLAS"
"""Path of a library, or `none` for the BLAS that MLX ships."""


@frozen
class Blas:
    """The BLAS that this process uses, and why."""

    library: str | None = None
    config: str = ""
    kernel: str = ""
    """The core type whose kernels the library runs."""
    compiled: bool = False
    """Whether our C computes products of few rows, and layers of Llama-like models."""
    compiled_problem: str = ""
    """Why it does not; completes a sentence that begins with "it"."""
    threads: int = 0
    reason: str = ""
    """Why no library is loaded."""
    skipped: tuple[str, ...] = ()
    """Libraries that were rejected, one sentence each."""
    problem: str = ""
    remedy: str = ""

    @property
    def loaded(self) -> bool:
        """Whether a library of our choice is loaded."""
        return self.library is not None

    @property
    def kernels(self) -> str:
        """The code that computes products; other code adds numbers in another order."""
        return f"{self.kernel} and our own code" if self.compiled else self.kernel


_state: Blas | None = None
_library: openblas.OpenBlas | None = None
_lock = threading.RLock()


def ensure(*, check: bool = False) -> Blas:
    """Load the BLAS once per process; later calls return the first result.

    `check` tests the libraries again instead of trusting a cached verdict.
    """
    global _state
    with _lock:
        if _state is None:
            _state = _choose(check)
            for sentence in (*_state.skipped, f"{_state.problem} {_state.remedy}".strip()):
                if sentence:
                    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        return _state


def state() -> Blas | None:
    """The result of `ensure`, or None before its first call."""
    return _state


def _choose(check: bool) -> Blas:
    if sys.platform != "linux":
        return Blas(reason="MLX uses Accelerate on macOS")
    if device.uses_gpu():
        return Blas(reason="MLX computes on the GPU")
    choice = os.environ.get(CHOICE, "")
    if choice == "none":
        return Blas(reason=f"{CHOICE}=none")
    skipped: list[str] = []
    for path in (choice, openblas.bundled(), openblas.installed()):
        if not path:
            continue
        verdict = blas_check.verdict(path, fresh=check)
        reason = verdict.reason
        if verdict.works:
            try:
                return replace(_load(path, verdict), skipped=tuple(skipped))
            except BlasError as error:
                reason = str(error)
        name = f"{CHOICE}={path}" if path == choice else Path(path).name
        skipped.append(f"{name} is not used: it {reason}.")
    return Blas(
        reason="no fast BLAS could be loaded",
        skipped=tuple(skipped),
        problem="Matrix products are slow, at 2.5-6 GFLOP/s: no fast BLAS is in use.",
        remedy="Run grpo-tui doctor to try again."
        if skipped
        else "Install one: pip install scipy-openblas32.",
    )


def _load(path: str, verdict: blas_check.Verdict) -> Blas:
    global _library
    library = openblas.OpenBlas(
        path, threads=threads.share(), kernel=verdict.kernel, kernels=verdict.kernels
    )
    library.connect()
    _library = library
    return Blas(
        library=path,
        config=library.config,
        kernel=library.kernel,
        compiled=bool(verdict.kernels),
        compiled_problem=verdict.kernels_problem,
        threads=library.set_threads(threads.share()),
    )


def products() -> ctypes.CDLL | None:
    """Our compiled library, if this process uses it."""
    return None if _library is None else _library.kernels


def set_threads(count: int) -> int:
    """Use `count` threads from the next product on; return how many the library really uses."""
    global _state
    if _library is None:
        return 0
    used = _library.set_threads(count)
    if _state is not None:
        _state = replace(_state, threads=used)
    return used


def rebalance() -> tuple[int, int] | None:
    """Update the threads to this engine's current share of cores; (before, after) if it changed."""
    before = _state.threads if _state else 0
    share = threads.share()
    if _library is None or before == share:
        return None
    after = set_threads(share)
    return (before, after) if after != before else None

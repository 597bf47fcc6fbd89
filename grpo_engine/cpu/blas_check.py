"""Tests a BLAS in a child process before it is loaded here, once per processor.

A library built for another processor dies of an illegal instruction; one that picks a faulty kernel
computes wrong results. The child compares products with exact ones. Verdicts are cached by library,
MLX and processor.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path

from grpo_engine.cpu import library, openblas, processor
from grpo_engine.cpu.relocations import BlasError
from grpo_engine.frozen import frozen
from grpo_engine.platform import device, threads
from grpo_engine.platform.interpreter import command
from grpo_engine.platform.private import private_folder, temporary_folder

VERSION: Final = 5
"""Version of the check; a new number invalidates cached verdicts."""
LIMIT_S = 120.0
CRASHES: Final = frozenset(
    {signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT}
)
HANGS: Final = "hangs"
MARK: Final = "result:"  # before the line that the child prints
CODE: Final = "from grpo_engine.cpu.blas_check import main; main()"
SHAPES: Final = (
    (1, 1, 1),
    (3, 7, 5),
    (1, 576, 130),
    (65, 129, 33),
    (384, 256, 320),
    (8, 576, 1536),
    (13, 100, 1700),
    *((rows, 70, 200) for rows in range(2, 10)),
)


@frozen
class Verdict:
    works: bool
    kernel: str = ""
    """The core type to request; empty for the library's own choice."""
    kernels: str = ""
    """Our library, if it passed the check with it."""
    kernels_problem: str = ""
    """Why that library is not used, as `reason`."""
    reason: str = ""
    """Why it is rejected; completes a sentence that begins with "it"."""
    is_final: bool = True
    """False if another try may succeed."""


def verdict(path: str, *, fresh: bool = False) -> Verdict:
    """Whether a library may be loaded here; from the cache, or tested in a child."""
    folder = private_folder(user_cache_path("grpo-tui") / "blas") or temporary_folder()
    compiled = library.available()
    file = folder / _name(path, compiled.path) if folder else None
    result = None if fresh or file is None else _read(file)
    if result is None:
        result = _try_kernels(path)
        if result.works and compiled.path:
            combined = _try(path, result.kernel, compiled.path)
            result = replace(
                result,
                kernels=compiled.path if combined.works else "",
                kernels_problem=combined.reason,
                is_final=combined.is_final,
            )
        if result.is_final and file is not None:
            _write(file, result)
    return replace(result, kernels_problem=compiled.problem) if compiled.problem else result


def _try_kernels(path: str) -> Verdict:
    """Try the library's own choice of kernel, then safer ones if its results are wrong."""
    requested = os.environ.get("OPENBLAS_CORETYPE", "")
    first = _try(path, requested)
    if first.works or requested or not first.is_final or first.reason.startswith(HANGS):
        return first
    verdicts = (_try(path, kernel) for kernel in openblas.KERNELS.get(platform.machine(), ()))
    return next((verdict for verdict in verdicts if verdict.works), first)


def _try(path: str, kernel: str, kernels: str = "") -> Verdict:
    """Run the child, which prints a mistake that it finds."""
    environment = {**os.environ, "GRPO_TUI_BLAS": "none", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        child = subprocess.run(
            command(CODE, path, kernel, kernels, str(threads.share())),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(works=False, reason=f"{HANGS} in its check, for {LIMIT_S:g} s")
    except OSError as error:
        return Verdict(works=False, reason=f"cannot be checked ({error})", is_final=False)
    status, last = child.returncode, (child.stdout.splitlines() or [""])[-1]
    signal_number = -status if status < 0 else status - 128
    if signal_number in CRASHES:
        name = signal.Signals(signal_number).name
        return Verdict(works=False, reason=f"crashes on this processor ({name})")
    if status or not last.startswith(MARK):
        reason = f"cannot be checked ({last or f'status {status}'})"
        return Verdict(works=False, reason=reason, is_final=False)
    mistake = last.removeprefix(MARK)
    return Verdict(works=not mistake, kernel=kernel, reason=mistake)


def main() -> None:
    """Child process: load the library that the arguments name, compute, print a mistake."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path, kernel, kernels, count = sys.argv[1:5]
    try:
        openblas.OpenBlas(path, threads=int(count), kernel=kernel, kernels=kernels).connect()
        mistake = next(mistakes(), "")
    except BlasError as error:
        mistake = str(error)
    except RuntimeError as error:
        mistake = f"fails in its check ({error})"
    print(f"{MARK}{mistake}", flush=True)
    os._exit(0)  # a crash while unloading the library must not count


def mistakes() -> Iterator[str]:
    """Mistakes of this process's MLX: products of small integers must be exact."""
    import mlx.core as mx
    import numpy as np

    mx.set_default_device(mx.Device(mx.cpu))
    for m, k, n in SHAPES:
        random = np.random.default_rng(0)
        left, right = random.integers(-8, 9, (m, k)), random.integers(-8, 9, (k, n))
        a, b = mx.array(left, mx.float32), mx.array(right, mx.float32)
        at, bt = mx.array(left.T.copy(), mx.float32).T, mx.array(right.T.copy(), mx.float32).T
        products = [a @ b, at @ b, a @ bt, at @ bt, mx.stack([a, a]) @ mx.stack([b, b])]
        exact = left @ right  # NumPy multiplies integers without a BLAS
        if not all((np.array(product) == exact).all() for product in products):
            yield f"computes wrong products (float32, {m}x{k}x{n})"


def _name(path: str, kernels: str) -> str:
    """The name of a verdict's file: a hash of everything that it depends on."""
    libraries = [_stamp(name) for name in (path, str(device.library()), kernels)]
    requested = os.environ.get("OPENBLAS_CORETYPE", "")
    content = json.dumps([VERSION, *libraries, processor.identity(), requested])
    return f"{sha256(content.encode()).hexdigest()[:24]}.json"


def _stamp(path: str) -> list[str | int]:
    try:
        status = Path(path).stat()
    except OSError:
        return [path]
    return [path, status.st_size, status.st_mtime_ns]


def _read(file: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(file: Path, result: Verdict) -> None:
    """Cache the verdict atomically; without a cache the next start checks again."""
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as draft,
    ):
        json.dump(asdict(result), draft)
        draft.flush()
        Path(draft.name).replace(file)

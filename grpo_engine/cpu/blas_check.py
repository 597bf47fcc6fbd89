"""Tests a BLAS in a child process before it is loaded here, once per processor.

A library built for another processor dies of an illegal instruction; one that picks a faulty kernel
computes wrong results. The child compares products and decompositions with NumPy's. Verdicts are
cached by library, MLX and processor.
"""

import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_path

from grpo_engine.cpu import library, openblas, processor
from grpo_engine.platform import device, threads
from grpo_engine.platform.interpreter import command
from grpo_engine.platform.private import private_folder, temporary_folder

VERSION: Final = 4
"""Version of the check; a new number invalidates cached verdicts."""
LIMIT_S = 60.0  # without output from the child
CRASHES: Final = frozenset(
    {signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT}
)
BOOT: Final = "from grpo_engine.cpu.blas_check import main; main()"
SMALL: Final = ((1, 1, 1), (3, 7, 5), (1, 576, 130), (65, 129, 33))
SKINNY: Final = (*((rows, 70, 200) for rows in range(2, 10)), (8, 576, 1536), (13, 100, 1700))
SHAPES: Final = (*SMALL, *SKINNY, (384, 256, 320))
SIZES: Final = (1, 6, 40, 130)


@dataclass(frozen=True, slots=True, kw_only=True)
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
    processor: str = ""
    """The processor that the child ran on."""
    lasting: bool = True
    """False if another try may succeed."""


def verdict(path: str, *, fresh: bool = False) -> Verdict:
    """Whether a library may be loaded here; from the cache, or tested in a child."""
    folder = private_folder(user_cache_path("grpo-tui") / "blas") or temporary_folder()
    ours = library.available()
    file = folder / _name(path, ours.path) if folder else None
    result = None if fresh or file is None else _read(file)
    if result is None:
        result = _try_kernels(path)
        if result.works and ours.path:
            both = _try(path, result.kernel, ours.path)[0]
            result = replace(
                result, kernels=ours.path if both.works else "", kernels_problem=both.reason,
                lasting=both.lasting,
            )  # fmt: skip
        if result.lasting and file is not None:
            _write(file, result)
    return replace(result, kernels_problem=ours.problem) if ours.problem else result


def _try_kernels(path: str) -> Verdict:
    """Try the library's own choice of kernel, then safer ones if its results are wrong."""
    asked = os.environ.get("OPENBLAS_CORETYPE", "")
    first, kernel_failed = _try(path, asked)
    if not kernel_failed or asked:
        return first
    others = (_try(path, kernel)[0] for kernel in openblas.KERNELS.get(platform.machine(), ()))
    return next((found for found in others if found.works), first)


def _try(path: str, kernel: str, kernels: str = "") -> tuple[Verdict, bool]:
    """Run the child; return the verdict, and whether another kernel may do better."""
    environment = {**os.environ, "GRPO_TUI_BLAS": "none", "PYTHONDONTWRITEBYTECODE": "1"}
    check = command(BOOT, path, kernel, kernels, str(threads.share()))
    try:
        status, lines = _watched(check, environment)
    except TimeoutError:
        return Verdict(works=False, reason=f"hangs in its check, for {LIMIT_S:g} s"), False
    except OSError as error:
        return Verdict(works=False, reason=f"cannot be checked ({error})", lasting=False), False
    ended = -status if status < 0 else status - 128
    if ended in CRASHES:
        crash = f"crashes on this processor ({signal.Signals(ended).name})"
        return Verdict(works=False, reason=crash), True
    try:
        said: dict[str, str] = json.loads(lines[-1])
        reason, wrong = said["refused"] or said["wrong"], bool(said["wrong"])
    except (ValueError, IndexError, KeyError):
        last = lines[-1] if lines else f"status {status}"
        return Verdict(works=False, reason=f"cannot be checked ({last})", lasting=False), False
    there = said["processor"]
    return Verdict(works=not reason, kernel=kernel, reason=reason, processor=there), wrong


def _watched(command: list[str], environment: dict[str, str]) -> tuple[int, list[str]]:
    """Exit status and output of a child; `TimeoutError` if it is silent for too long."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=environment,
    ) as process:  # fmt: skip
        output, pipe = b"", process.stdout
        while pipe is not None and select.select([pipe], [], [], LIMIT_S)[0]:
            if not (part := os.read(pipe.fileno(), 1 << 16)):
                return process.wait(), output.decode(errors="replace").split("\n")[:-1]
            output += part
        process.kill()
    raise TimeoutError


def main() -> None:
    """Child process: load the library named in the arguments, compute, print what is wrong."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    path, kernel, kernels, count = sys.argv[1:5]
    said = {"refused": "", "wrong": "", "processor": processor.identity()}
    try:
        openblas.OpenBlas(path, threads=int(count), kernel=kernel, kernels=kernels).serve()
        for wrong in checks():
            print("checked", flush=True)  # keeps the parent from timing out
            if wrong:
                said["wrong"] = wrong
                break
    except openblas.BlasError as error:
        said["refused"] = str(error)
    except RuntimeError as error:
        said["wrong"] = f"fails in its check ({error})"
    print(json.dumps(said), flush=True)
    os._exit(0)  # a crash while unloading the library must not count


def checks() -> Iterator[str]:
    """Run the checks and yield what this process's MLX computes wrong, "" if right."""
    import mlx.core as mx

    mx.set_default_device(mx.Device(mx.cpu))
    for kind in (mx.float32, mx.float64, mx.complex64):
        name = str(kind).rpartition(".")[2]
        for shape in SHAPES if kind == mx.float32 else SMALL:  # others are rare and slow
            said = f"computes wrong products ({name}, {'x'.join(map(str, shape))})"
            yield "" if _products_agree(kind, shape) else said
    for kind, tolerance in ((mx.float32, 1e-4), (mx.float64, 1e-11)):
        name = str(kind).rpartition(".")[2]
        for size in SIZES:
            for what, error in _decompositions(kind, size):
                said = f"computes a wrong {what} ({name}, {size}x{size})"
                yield "" if error <= tolerance else said


def _products_agree(kind: Any, shape: tuple[int, int, int]) -> bool:
    """Whether products of small integers are exact; NumPy multiplies integers without a BLAS."""
    import mlx.core as mx
    import numpy as np

    m, k, n = shape
    draw = np.random.default_rng(0)
    left, right = draw.integers(-8, 9, (m, k)), draw.integers(-8, 9, (k, n))
    wanted = left @ right
    a, b = mx.array(left).astype(kind), mx.array(right).astype(kind)
    at, bt = mx.array(left.T.copy()).astype(kind).T, mx.array(right.T.copy()).astype(kind).T
    several = [a @ b, at @ b, a @ bt, at @ bt, mx.stack([a, a]) @ mx.stack([b, b])]
    return all(bool((np.array(found) == wanted).all()) for found in several)


def _decompositions(kind: Any, size: int) -> Iterator[tuple[str, float]]:
    """Largest errors of `inv`, `svd` and `qr`, multiplied back without a BLAS."""
    import mlx.core as mx
    import numpy as np

    def back(*factors: Any) -> Any:
        out = np.asarray(factors[0], dtype=np.float64)
        for factor in factors[1:]:
            # for two operands, einsum calls no BLAS unless it may rearrange them
            out = np.einsum("ij,jk->ik", out, np.asarray(factor, dtype=np.float64), optimize=False)
        return out

    draw = np.random.default_rng(size)
    matrix = draw.normal(size=(size, size)) / np.sqrt(size) + 2 * np.eye(size)
    given, one = mx.array(matrix, dtype=kind), np.eye(size)
    cpu = mx.Device(mx.cpu)
    inverse = mx.linalg.inv(given, stream=cpu)
    yield "inverse", float(np.abs(back(matrix, inverse) - one).max())
    u, s, vt = (np.array(part) for part in mx.linalg.svd(given, stream=cpu))
    off = max(np.abs(back(u, np.diag(s), vt) - matrix).max(), np.abs(back(u.T, u) - one).max())
    yield "singular value decomposition", float(off)
    q, r = (np.array(part) for part in mx.linalg.qr(given, stream=cpu))
    off = max(np.abs(back(q, r) - matrix).max(), np.abs(back(q.T, q) - one).max())
    yield "QR decomposition", float(off)


def _name(path: str, kernels: str) -> str:
    """The name of a verdict's file, made of everything that it depends on."""
    mlx = device.library()
    asked = os.environ.get("OPENBLAS_CORETYPE", "")
    parts = [VERSION, _stamp(path), _stamp(str(mlx)), processor.identity(), asked]
    parts.append(_stamp(kernels) if kernels else "")
    return f"{sha256(json.dumps(parts).encode()).hexdigest()[:24]}.json"


def _stamp(path: str) -> list[str | int]:
    try:
        found = Path(path).stat()
    except OSError:
        return [path]
    return [path, found.st_size, found.st_mtime_ns]


def _read(file: Path) -> Verdict | None:
    try:
        return Verdict(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write(file: Path, found: Verdict) -> None:
    """Cache the verdict atomically; without a cache the next start checks again."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as draft:
            json.dump(asdict(found), draft)
        Path(draft.name).replace(file)
    except OSError:
        return

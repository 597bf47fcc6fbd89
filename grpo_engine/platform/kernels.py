"""Gives MLX a private folder for the kernels that it compiles on Linux.

MLX compiles chains of operations to libraries in the temporary folder, under names that anyone can
predict, and loads what has such a name: another user's library, or one that is cut off. So each
process has a folder of its own; the kernels that it loaded are kept, with their hash, for later
processes. Only MLX gets to know the folder: Python's `os.environ` and `tempfile` stay as they are.
"""

import atexit
import ctypes
import os
import re
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Final

from grpo_engine.errors import EngineError
from grpo_engine.paths import remove
from grpo_engine.platform import device, private
from grpo_engine.platform.device import TEMPORARY
from grpo_engine.platform.scratch import locked_folder

CUDA: Final = "MLX_PTX_CACHE_DIR"
LIBRARY: Final = re.compile(r"/.*/mlx/[^/]+/cpu/lib[^/]+\.so$", re.MULTILINE)
CACHE: Final = "kernels"

_folder: Path | None = None
_process = 0  # a forked process needs a folder of its own
_lock = Lock()


def prepare() -> None:
    """Let MLX compile in this process's folder; call it before MLX computes."""
    global _folder, _process
    if sys.platform != "linux":  # kernels for Metal are compiled in memory
        return
    with _lock:
        if _folder is None or _process != os.getpid():
            _folder, _process = _new_folder(), os.getpid()
            atexit.register(_finish, _folder, _process)
        name = next((name for name in TEMPORARY if name in os.environ), TEMPORARY[-1])
        _set_for_mlx(name, _folder)
        if device.uses_gpu() and CUDA not in os.environ:
            # MLX does not tell apart what its versions compiled
            _set_for_mlx(CUDA, _shared(_folder) / "ptx" / version("mlx"))


def folder() -> Path | None:
    """Where MLX compiles in this process, once it is prepared."""
    return _folder


def is_shared(folder: Path) -> bool:
    """Whether later processes get the kernels of a process's folder."""
    return folder.parent.name == private.temporary_path().name


def loaded_elsewhere() -> list[str]:
    """Kernels that this process has loaded from other folders than its own."""
    return [path for path in _loaded() if _folder is None or not path.startswith(f"{_folder}/")]


def _new_folder() -> Path:
    try:
        folder, _ = locked_folder("mlx")
    except OSError as error:
        raise EngineError(
            f"no temporary folder can be written ({error}); set TMPDIR to a folder of yours"
        ) from error
    if is_shared(folder):
        _restore(folder.parent / CACHE, folder)
    return folder


def _restore(cache: Path, folder: Path) -> None:
    """Link earlier kernels into a process's folder, and remove those that are damaged."""
    for file in cache.rglob("*.so"):
        with suppress(OSError):
            if not private.is_intact(file):
                file.unlink()
                continue
            target = folder / file.relative_to(cache)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(file)


def _finish(folder: Path, process: int) -> None:
    """Cache the kernels that this process has loaded, and remove its folder."""
    if process != os.getpid():
        return
    with suppress(OSError):
        _save(folder, _shared(folder) / CACHE)
    remove(folder.parent, folder.name, ignore_errors=True)


def _save(folder: Path, cache: Path) -> None:
    """Cache the kernels that this process has loaded from a folder."""
    for path in _loaded():
        target = cache / os.path.relpath(path, folder)
        if path.startswith(f"{folder}/") and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            private.write(target, Path(path).read_bytes())


def _shared(folder: Path) -> Path:
    """The folder of all processes of this user, or the process's if another user took its name."""
    return folder.parent if is_shared(folder) else folder


def _loaded() -> list[str]:
    """Paths of the kernels that are loaded in this process."""
    maps = Path("/proc/self/maps").read_text(errors="surrogateescape")
    return sorted(set(LIBRARY.findall(maps)))


def _set_for_mlx(name: str, path: Path) -> None:
    """Set a variable that only native code sees, and programs that get no environment."""
    libc, value = ctypes.CDLL(None), os.fsencode(path)
    libc.getenv.restype = ctypes.c_char_p
    if libc.getenv(name.encode()) != value:
        libc.setenv(name.encode(), value, 1)

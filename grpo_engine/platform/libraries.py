"""Opens OpenBLAS on machines that have no Fortran runtime, with the one that MLX's wheel brings.

OpenBLAS asks for `libgfortran.so.5` by name. The wheel's copy carries another name, so a copy in
memory gets the name overwritten in place and is loaded first; nothing is written to a disk unless
the system allows no programs in memory.
"""

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

FORTRAN: Final = b"libgfortran.so.5"


def load(path: str) -> ctypes.CDLL:
    """Open a BLAS for the whole process, with a Fortran runtime where the system has none."""
    try:
        return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        if FORTRAN.decode() not in str(error):
            raise
        provide_fortran()
        return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def provide_fortran() -> None:
    """Load the Fortran runtime of MLX's wheel under the name that OpenBLAS asks for."""
    quadmath = wheel_library("libquadmath")  # absent on aarch64, whose runtime needs none
    if quadmath is not None:
        ctypes.CDLL(str(quadmath))
    fortran = wheel_library("libgfortran")
    if fortran is None:
        raise OSError("libgfortran.so.5 is neither in the system nor in MLX's wheel")
    image = renamed(fortran.read_bytes(), fortran.name.encode())
    errors = []
    for place in (in_memory, in_cache, in_temporary_folder):
        try:
            with place(image) as copy:
                ctypes.CDLL(copy)
        except OSError as error:
            errors.append(str(error))
        else:
            return
    raise OSError(f"libgfortran.so.5 could not be loaded from a copy: {'; '.join(errors)}")


def wheel_library(stem: str) -> Path | None:
    """A library that MLX's processor wheel brings, by the start of its name."""
    try:
        listed = files("mlx-cpu") or []
    except PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in listed if file.name.startswith(stem)]
    return next((path for path in paths if path.is_file()), None)


def renamed(image: bytes, name: bytes) -> bytes:
    """The library with its own name, a string of its name table, overwritten in place."""
    if image.count(name + b"\0") != 1 or len(name) < len(FORTRAN):
        raise OSError(f"{name.decode()} does not carry its own name exactly once")
    return image.replace(name + b"\0", FORTRAN.ljust(len(name) + 1, b"\0"))


@contextmanager
def in_memory(image: bytes) -> Iterator[str]:
    """The image as a nameless file in memory."""
    descriptor = os.memfd_create(FORTRAN.decode())
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(image)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextmanager
def written(image: bytes, folder: Callable[[], Path]) -> Iterator[str]:
    """The image as a file that only this user can read, removed as soon as it is mapped."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix="libgfortran-", dir=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(image)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def in_cache(image: bytes) -> AbstractContextManager[str]:
    """The image in the user's cache folder."""
    return written(image, cache_folder)


def in_temporary_folder(image: bytes) -> AbstractContextManager[str]:
    """The image in the folder for temporary files."""
    return written(image, lambda: Path(tempfile.gettempdir()))


def cache_folder() -> Path:
    """The platform's folder for what can be made again."""
    from platformdirs import user_cache_path

    return user_cache_path("grpo-tui")
